"""The data folder of an embedded Sluice: its databases and its keys.

Receives --data and --config. Hands on complete `Settings`. Keys are made once per folder,
readable by the owner alone, and must be kept as long as the databases beside them.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from kernel.runtime import settings as runtime
from kernel.runtime.settings import Settings, SettingsError

DEFAULT_DATA = Path(".run/data")


@dataclass(frozen=True, slots=True)
class Workspace:
    """A data folder with its keys; none, where it is no data folder."""

    folder: Path
    keys: dict[str, str]

    def secret(self, reference: str) -> str | None:
        """A secret by reference: keys:NAME from this folder, env:NAME or file:PATH."""
        kind, _, name = reference.partition(":")
        if kind == "keys":
            return self.keys.get(name)
        return runtime.secret(reference)


def open_workspace(folder: Path) -> Workspace:
    """The folder, made with fresh keys where it is new."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "keys.json"
    if not path.exists() and any(folder.glob("*.db")):
        raise SettingsError(
            f"{path} is missing, and the databases beside it were made with its keys. "
            "Put it back, or name another --data folder."
        )
    fresh = {
        "vault_keys": "k1:" + _random_key(32),
        "hash_key": _random_key(32),
        "receipts": "whsec_" + _random_key(24),
    }
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return Workspace(folder, _read_keys(path))
    with os.fdopen(descriptor, "w") as file:
        json.dump(fresh, file)
    return Workspace(folder, fresh)


def look_at_workspace(folder: Path) -> Workspace:
    """The folder as it is: nothing is made, and where there is none it has no keys."""
    try:
        return Workspace(folder, _read_keys(folder / "keys.json"))
    except (FileNotFoundError, NotADirectoryError):
        return Workspace(folder, {})


def _read_keys(path: Path) -> dict[str, str]:
    try:
        keys = json.loads(path.read_text())
    except ValueError:
        keys = None
    wanted = ("vault_keys", "hash_key", "receipts")
    if not isinstance(keys, dict) or not all(isinstance(keys.get(name), str) for name in wanted):
        raise SettingsError(
            f"{path} is damaged: it must hold {', '.join(wanted)}. Put back the file that belongs "
            "to the databases beside it."
        )
    return keys


def load_settings(workspace: Workspace, config: Path | None, **given: Any) -> Settings:
    """Settings for a data folder: its SQLite files and keys where nothing else is set.

    Without a file, the vendors are the three that `sluice vendor-sim` plays.
    """
    settings = runtime.load(config, os.environ, **given)
    missing: dict[str, Any] = {}
    for name in ("database", "proxy_database", "vault"):
        field = "vault_url" if name == "vault" else f"{name}_url"
        if not getattr(settings, field):
            missing[field] = sqlite_url(workspace.folder, name)
    for name in ("vault_keys", "hash_key"):
        if not getattr(settings, name) and name in workspace.keys:
            missing[name] = workspace.keys[name]
    if config is None and not settings.vendors:
        missing |= default_vendors()
    if not missing:
        return settings
    return runtime.load(config, os.environ, **(given | missing))


def sqlite_url(folder: Path, name: str) -> str:
    """The URL of one of a folder's databases."""
    file = {"database": "mesh", "proxy_database": "proxy", "vault": "vault"}[name]
    return f"sqlite:///{(folder / file).resolve()}.db"


def default_vendors(endpoint: str = "http://127.0.0.1:7200") -> dict[str, Any]:
    """Vendors, pools, planning and policies of the packaged default, at one simulator."""
    text = resources.files("cli").joinpath("default.yaml").read_text()
    loaded = yaml.safe_load(text.replace("http://127.0.0.1:7200", endpoint))
    if not isinstance(loaded, dict):
        raise SettingsError("the packaged default.yaml is damaged")
    return loaded


def _random_key(size: int) -> str:
    return base64.b64encode(os.urandom(size)).decode()
