"""The map from the detector's labels to categories, and pixels as people see them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from vendors.models.detectors import scores_of_detections
from vendors.models.images import decode_image

nudenet = pytest.importorskip("nudenet.nudenet", reason="the extra `models` is not installed")
cv2 = pytest.importorskip("cv2", reason="the extra `models` is not installed")
numpy = pytest.importorskip("numpy", reason="the extra `models` is not installed")
pil = pytest.importorskip("PIL.Image", reason="the extra `models` is not installed")


def test_faces_and_covered_parts_are_no_risk() -> None:
    found = [("FACE_FEMALE", 0.9), ("FEMALE_BREAST_COVERED", 0.9), ("FEET_EXPOSED", 0.9)]
    assert scores_of_detections(found) == {"sexual": 0.0, "sexual/suggestive": 0.0}


def test_the_best_score_of_a_category_counts() -> None:
    found = [("BUTTOCKS_EXPOSED", 0.4), ("ANUS_EXPOSED", 0.7), ("BELLY_EXPOSED", 0.3)]
    assert scores_of_detections(found) == {"sexual": 0.7, "sexual/suggestive": 0.3}


def test_photographs_decode_to_the_pixels_that_the_detector_reads_itself(
    corpus: tuple[Path, dict[str, str]],
) -> None:
    for name in ("astronaut.png", "camera.png", "color.png"):
        path = corpus[0] / name
        assert numpy.array_equal(decode_image(path.read_bytes(), "input"), cv2.imread(str(path)))


def test_deep_grey_is_scaled_and_transparent_parts_show_white() -> None:
    grey = numpy.full((4, 4), 0x8000, dtype=numpy.uint16)
    encoded = cv2.imencode(".png", grey)[1].tobytes()
    assert decode_image(encoded, "input")[0, 0].tolist() == [128, 128, 128]
    file = io.BytesIO()
    pil.new("RGBA", (4, 4), (10, 20, 30, 0)).save(file, "PNG")
    assert decode_image(file.getvalue(), "input")[0, 0].tolist() == [255, 255, 255]


def test_a_long_thin_image_is_scaled_before_it_is_padded_to_a_square() -> None:
    file = io.BytesIO()
    pil.new("L", (60_000, 10)).save(file, "PNG")
    assert decode_image(file.getvalue(), "input").shape == (1, 4_096, 3)


def test_every_label_that_is_mapped_exists_in_the_detector() -> None:
    from vendors.models.detectors import SEXUAL, SUGGESTIVE

    labels = set(vars(nudenet)["__labels"])
    assert labels >= SEXUAL | SUGGESTIVE
