"""Receives a video file; hands on still frames with their positions, spread over all of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vendors.models.errors import NotAVideoError, library
from vendors.models.images import MAX_PIXELS

JPEG_QUALITY = 92
"""Of 100. Frames are the same bytes on every run, so equal frames have equal digests."""

_CONTAINERS: tuple[tuple[int, bytes], ...] = (
    (4, b"ftyp"),  # MP4, MOV
    (0, b"\x1a\x45\xdf\xa3"),  # Matroska, WebM
    (8, b"AVI "),
)
"""(offset, signature). Nothing else reaches the decoder: a playlist may name other files."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: its position in the video in seconds, and the bytes of a JPEG file."""

    position_seconds: float
    data: bytes
    media_type: str = "image/jpeg"


def sample_frames(path: Path | str, every_seconds: float = 1.0, most: int = 32) -> list[Frame]:
    """Take a frame every `every_seconds` of a video, from its first frame on.

    Where that would be more than `most`, the step is doubled until it is not, so the frames
    always cover the whole video; then at least `most // 2` of them come back. The file's own
    word on its length is not trusted: the video is read to its end. Blocks; use a thread.

    Args:
        path: An MP4, MOV, Matroska, WebM or AVI file.
        every_seconds: The step, above 0.
        most: The most frames handed back, at least 1.

    Raises:
        ValueError: if `every_seconds` or `most` is out of range.
        NotAVideoError: if the file is missing, no video, or has no readable frame.
        ModelsMissingError: if the extra `models` is not installed.
    """
    if not (math.isfinite(every_seconds) and every_seconds > 0) or most < 1:
        raise ValueError("every_seconds must be above 0 and most at least 1")
    cv2 = library("cv2")
    file = Path(path).resolve()  # absolute, so that no name reads as a protocol
    _check_container(file)
    capture = cv2.VideoCapture(str(file), cv2.CAP_FFMPEG)
    try:
        kept = _sample(cv2, capture, every_seconds, most)
    finally:
        capture.release()
    if not kept:
        raise NotAVideoError("The file has no frame that can be decoded: is it whole?")
    return kept


def _sample(cv2: Any, capture: Any, step: float, most: int) -> list[Frame]:
    kept: list[Frame] = []
    due = 0.0
    for position in _positions(cv2, capture):
        if position < due:
            continue
        kept.append(_frame(cv2, capture, position))
        if len(kept) > most:
            kept, step = kept[::2], step * 2
        due = (math.floor(position / step) + 1) * step
    return kept


def _positions(cv2: Any, capture: Any) -> Iterator[float]:
    """Move on frame by frame and give each one's position in seconds, which never goes back."""
    if not capture.isOpened():
        return
    pixels = capture.get(cv2.CAP_PROP_FRAME_WIDTH) * capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
    if pixels > MAX_PIXELS:
        raise NotAVideoError(f"A frame has more than {MAX_PIXELS} pixels: scale the video down.")
    position = 0.0
    while capture.grab():
        position = max(position, capture.get(cv2.CAP_PROP_POS_MSEC) / 1_000)
        yield position


def _frame(cv2: Any, capture: Any, position: float) -> Frame:
    decoded, pixels = capture.retrieve()
    if decoded:
        encoded, jpeg = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
        if encoded:
            return Frame(round(position, 6), jpeg.tobytes())
    raise NotAVideoError(f"The frame at {position:.3f} s cannot be decoded: is the file whole?")


def _check_container(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise NotAVideoError("The file cannot be opened: check the path and its rights.") from error
    if not any(head[at : at + len(sign)] == sign for at, sign in _CONTAINERS):
        raise NotAVideoError("The file is no video: give an MP4, MOV, Matroska, WebM or AVI file.")
