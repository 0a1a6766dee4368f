"""Receives texts and pixels; hands on scores in 0..1 by category. The models live here.

Everything blocks: call it from a thread, never from the event loop.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vendors.models.errors import library

Scores = dict[str, float]

PROFANITY = "profanity"

SEXUAL = frozenset(
    {
        "ANUS_EXPOSED",
        "BUTTOCKS_EXPOSED",
        "FEMALE_BREAST_EXPOSED",
        "FEMALE_GENITALIA_EXPOSED",
        "MALE_GENITALIA_EXPOSED",
    }
)
"""The detector's labels that count as `sexual`."""

SUGGESTIVE = frozenset({"BELLY_EXPOSED", "MALE_BREAST_EXPOSED"})
"""The detector's labels that count as `sexual/suggestive`."""

_LABELS: Mapping[str, frozenset[str]] = {"sexual": SEXUAL, "sexual/suggestive": SUGGESTIVE}


class Detectors:
    """The text classifier, and one image detector per inference thread, all loaded once.

    Args:
        threads: How many threads may judge images at once.

    Raises:
        ModelsMissingError: if the extra `models` is not installed.
    """

    def __init__(self, threads: int) -> None:
        self._predict = library("profanity_check").predict_prob
        library("PIL.Image").init()
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(threads):
            self._idle.put(_image_detector())

    def score_texts(self, texts: Sequence[str]) -> list[Scores]:
        """Judge a batch of texts in one call of the model; one result per text, in order."""
        return [{PROFANITY: _clamp(p)} for p in self._predict(list(texts))]

    def score_image(self, pixels: Any) -> Scores:
        """Judge one image, a BGR array of height x width x 3 unsigned bytes."""
        detector = self._idle.get()
        try:
            found = detector.detect(pixels)
        finally:
            self._idle.put(detector)
        return scores_of_detections((each["class"], each["score"]) for each in found)


def scores_of_detections(found: Iterable[tuple[str, float]]) -> Scores:
    """The best score in each category, of (label, score) pairs as the detector gives them."""
    scores = dict.fromkeys(_LABELS, 0.0)
    for label, score in found:
        for category, labels in _LABELS.items():
            if label in labels:
                scores[category] = max(scores[category], _clamp(score))
    return scores


def _image_detector() -> Any:
    """A detector that runs in the calling thread alone.

    By itself each would keep a thread spinning per core; two of them then judged a half to a
    third of the images per second (measured on two busy cores).
    """
    nudenet, onnxruntime = library("nudenet"), library("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    detector = nudenet.NudeDetector()
    model = Path(nudenet.__file__).with_name("320n.onnx")
    detector.onnx_session = onnxruntime.InferenceSession(str(model), options)
    return detector


def _clamp(score: float) -> float:
    return min(1.0, max(0.0, float(score)))
