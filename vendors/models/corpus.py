"""Receives a folder; hands on twenty real files in it, each with its expected verdict.

The texts are invented here; the photographs are those that the `scikit-image` wheel carries.
Verdicts and scores were measured with alt-profanity-check 1.9.1 and nudenet 3.4.2, looked
at one by one, and are held by a test. Where a model is plainly wrong, `mistake` says so: its
verdict is still what is expected of the machine, and is why people review.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vendors.models.errors import ModelsMissingError, library

REJECT_AT = 0.90
REVIEW_AT = 0.50
"""Scores, 0..1: the best one over all categories makes the verdict of `verdict`."""

APPROVED, REJECTED, IN_REVIEW = "APPROVED", "REJECTED", "IN_REVIEW"

BAND = 0.05
"""How far a score may lie from the measured one: libraries change, verdicts should not."""


@dataclass(frozen=True, slots=True)
class Item:
    """One file: its name, best measured score (0..1), text if it is one, and known mistake."""

    name: str
    score: float
    text: str | None = None
    mistake: str = ""

    @property
    def verdict(self) -> str:
        """What the thresholds make of the measured score."""
        return verdict({"": self.score})


def verdict(scores: Mapping[str, float]) -> str:
    """REJECTED from `REJECT_AT`, IN_REVIEW from `REVIEW_AT`, else APPROVED, by the best score."""
    best = max(scores.values(), default=0.0)
    if best >= REJECT_AT:
        return REJECTED
    return IN_REVIEW if best >= REVIEW_AT else APPROVED


ITEMS: tuple[Item, ...] = (
    Item("opening.txt", 0.088, "The library opens at nine on Saturdays and lends films too."),
    Item("thanks.txt", 0.021, "Thank you for the quick delivery, the kettle works well."),
    Item("kitchen.txt", 0.002, "I painted the kitchen yellow and the hall a pale green."),
    Item("disguised.txt", 0.036, "You 1d10t, you ru1ned it.", "an insult, missed by its spelling"),
    Item("parcel.txt", 0.870, "What the hell happened to my parcel?"),
    Item("bus.txt", 0.638, "Bugger, I missed the bus."),
    Item("york.txt", 0.797, "Dick Turpin rode from London to York.", "a man's name"),
    Item("game.txt", 1.000, "You stupid idiot, you ruined the whole game."),
    Item("phone.txt", 0.989, "This phone is crap and so is your damn shop."),
    Item("donkey.txt", 0.986, "The donkey, also called an ass, carries the load.", "an animal"),
    Item("astronaut.png", 0.0),  # a face, which is no risk
    Item("camera.png", 0.0),  # another
    Item("chelsea.png", 0.0),
    Item("coffee.png", 0.0),
    Item("color.png", 0.835, mistake="BUTTOCKS_EXPOSED: it is a colour wheel"),
    Item("moon.png", 0.388, mistake="BELLY_EXPOSED: it is the moon's surface"),
    Item("motorcycle_left.png", 0.0),
    Item("page.png", 0.0),
    Item("phantom.png", 0.0),  # BUTTOCKS_COVERED 0.30, a drawing of a skull; covered is no risk
    Item("rocket.jpg", 0.0),
)


def write_corpus(folder: Path) -> dict[str, str]:
    """Write the twenty files into `folder`, which is made if need be.

    Returns:
        File name -> expected verdict: APPROVED, REJECTED or IN_REVIEW.

    Raises:
        ModelsMissingError: if the extra `models`, which brings the photographs, is missing.
        OSError: if the folder cannot be written.
    """
    photographs = _photographs()
    folder.mkdir(parents=True, exist_ok=True)
    for item in ITEMS:
        if item.text is None:
            shutil.copyfile(photographs / item.name, folder / item.name)
        else:
            (folder / item.name).write_text(item.text + "\n", encoding="utf-8")
    return {item.name: item.verdict for item in ITEMS}


def write_video(
    path: Path,
    photographs: Sequence[str] = ("astronaut.png", "coffee.png", "color.png"),
    seconds_each: float = 2.0,
    frames_per_second: int = 10,
) -> None:
    """Write a real video that shows each photograph for `seconds_each` seconds, 512 x 512.

    Args:
        path: `.avi` makes Motion JPEG, `.mp4` MPEG-4.
        photographs: Names among scikit-image's own, shown in this order.
        seconds_each: Seconds that each is shown.
        frames_per_second: Frames per second of the video.

    Raises:
        ModelsMissingError: if the extra `models` is not installed.
        ValueError: if the suffix is another one.
        OSError: if the file cannot be written.
    """
    codec = {".avi": "MJPG", ".mp4": "mp4v"}.get(path.suffix)
    if codec is None:
        raise ValueError("the video's name must end in .avi or .mp4")
    cv2, folder, side = library("cv2"), _photographs(), 512
    fourcc = cv2.VideoWriter_fourcc(*codec)
    writer: Any = cv2.VideoWriter(str(path), fourcc, frames_per_second, (side, side))
    if not writer.isOpened():
        raise OSError("The video cannot be written: check that its folder exists.")
    try:
        for name in photographs:
            picture = cv2.resize(cv2.imread(str(folder / name)), (side, side))
            for _ in range(round(seconds_each * frames_per_second)):
                writer.write(picture)
    finally:
        writer.release()


def _photographs() -> Path:
    """Where scikit-image keeps its photographs; the package itself is not imported."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise ModelsMissingError(
            "The photographs come with `scikit-image`: run pip install 'sluice[models]'."
        )
    return Path(spec.origin).parent / "data"
