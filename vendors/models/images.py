"""Receives a data: URL; hands on pixels, or a refusal. The network is never asked.

The header is read first, and the sizes are checked before a single pixel is decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from typing import Any

from vendors.models.errors import RequestRefusedError, library

MAX_PIXELS = 40_000_000
"""Pixels of one image: 120 MB decoded. More is refused as a decompression bomb."""

MAX_SIDE = 4_096
"""Pixels. A longer side is scaled down to this: the detector pads every image to a square."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")

_HEADER = re.compile(r"data:image/(png|jpeg|jpg|webp|gif);base64", re.IGNORECASE)


def bytes_of_data_url(url: str, param: str) -> bytes:
    """The bytes in a `data:image/...;base64,...` URL.

    Args:
        url: The URL; any other scheme is refused.
        param: The field's path, for the error.

    Raises:
        RequestRefusedError: 400, if it is no such URL or no base64.
    """
    header, comma, encoded = url.partition(",")
    if not comma or not _HEADER.fullmatch(header):
        raise RequestRefusedError(
            400,
            "Only data: URLs are accepted, nothing is fetched: send the image itself as "
            "data:image/png;base64,... (png, jpeg, webp or gif).",
            param,
            "invalid_image_url",
        )
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestRefusedError(
            400, "The data: URL is not valid base64: encode the file again.", param, "invalid_image"
        ) from error


def decode_image(data: bytes, param: str) -> Any:
    """Decode one still image to a BGR array, height x width x 3, of unsigned bytes.

    What is judged is what is seen on white paper: the camera's orientation is applied, and
    transparent parts show white. A side above `MAX_SIDE` is scaled down.

    Raises:
        RequestRefusedError: 400, if it is no readable image, has too many pixels, or moves.
    """
    pil, ops, numpy = library("PIL.Image"), library("PIL.ImageOps"), library("numpy")
    try:
        image = pil.open(io.BytesIO(data), formats=FORMATS)
        pixels, moves = image.width * image.height, getattr(image, "is_animated", False)
    except (pil.DecompressionBombError, pil.DecompressionBombWarning) as error:
        raise _too_large(param) from error
    except Exception as error:  # a decoder raises whatever the broken bytes trip
        raise _unreadable(param) from error
    if pixels > MAX_PIXELS:
        raise _too_large(param)
    if moves:
        raise RequestRefusedError(
            400,
            "The image moves: only one frame of it would be judged. Send its frames one by one.",
            param,
            "invalid_image",
        )
    try:
        if image.mode.startswith("I"):  # 16-bit grey, which a plain conversion would burn out
            image = pil.fromarray((numpy.asarray(image) >> 8).astype(numpy.uint8))
        image.thumbnail((MAX_SIDE, MAX_SIDE))
        still = ops.exif_transpose(image).convert("RGBA")
        paper = pil.new("RGBA", still.size, "white")
        array: Any = numpy.asarray(pil.alpha_composite(paper, still).convert("RGB"))
    except Exception as error:  # as above
        raise _unreadable(param) from error
    return array[:, :, ::-1].copy()


def _too_large(param: str) -> RequestRefusedError:
    return RequestRefusedError(
        400,
        f"The image has more than {MAX_PIXELS} pixels: scale it down and send it again.",
        param,
        "image_too_large",
    )


def _unreadable(param: str) -> RequestRefusedError:
    return RequestRefusedError(
        400,
        "The image cannot be decoded: send a whole png, jpeg, webp or gif file.",
        param,
        "invalid_image",
    )
