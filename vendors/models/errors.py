"""Receives a module's name or a refusal; hands on the library, or an error that says what to do.

No text of an error ever repeats what was sent.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


class ModelsMissingError(RuntimeError):
    """The extra `models` is not installed, or one of its libraries does not load."""


class NotAVideoError(ValueError):
    """The file is no video that can be read."""


@dataclass(eq=False)
class RequestRefusedError(Exception):
    """A request that is answered with an error, in OpenAI's shape.

    `status` is the HTTP status, `param` the path of the field at fault.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    kind: str = "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """The JSON body: `{"error": {"message", "type", "param", "code"}}`."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def library(name: str) -> Any:
    """Import one library of the extra `models` when it is first needed.

    Raises:
        ModelsMissingError: if it is not installed or does not load.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ModelsMissingError(
            f"`{name}` does not load ({type(error).__name__}). The local models need the extra "
            "`models`: run pip install 'sluice[models]' and try again."
        ) from error
