"""Frames of real videos: where they are taken, that they cover the video, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from vendors.models.corpus import IN_REVIEW, verdict, write_video
from vendors.models.detectors import Detectors
from vendors.models.errors import ModelsMissingError, NotAVideoError, library
from vendors.models.images import decode_image
from vendors.models.sampling import sample_frames

pytest.importorskip("cv2", reason="the extra `models` is not installed")
pytest.importorskip("skimage", reason="the extra `models` is not installed")
pytest.importorskip("nudenet", reason="the extra `models` is not installed")


@pytest.fixture(scope="module", params=[".avi", ".mp4"])
def video(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / f"short{request.param}"
    write_video(path)
    return path


def test_a_frame_a_second_from_the_first_frame_on(video: Path) -> None:
    frames = sample_frames(video)
    assert [frame.position_seconds for frame in frames] == pytest.approx([0, 1, 2, 3, 4, 5])
    assert all(frame.data.startswith(b"\xff\xd8") for frame in frames)
    assert sample_frames(video) == frames


def test_frames_are_judged_like_the_photographs_they_show(video: Path) -> None:
    detectors = Detectors(1)
    verdicts = [
        verdict(detectors.score_image(decode_image(frame.data, "input")))
        for frame in sample_frames(video)
    ]
    assert verdicts == ["APPROVED"] * 4 + [IN_REVIEW] * 2


@pytest.mark.parametrize(
    ("most", "positions"),
    [(60, [n / 10 for n in range(60)]), (4, [0, 1.6, 3.2, 4.8]), (3, [0, 3.2]), (1, [0])],
)
def test_a_bound_widens_the_step_and_still_covers_the_whole_video(
    video: Path, most: int, positions: list[float]
) -> None:
    frames = sample_frames(video, every_seconds=0.1, most=most)
    assert [frame.position_seconds for frame in frames] == pytest.approx(positions)


def test_a_playlist_a_picture_and_a_missing_file_are_no_videos(tmp_path: Path) -> None:
    for name, data in (("a.mp4", b"#EXTM3U\nhttp://127.0.0.1/x.ts\n"), ("b.avi", b""), ("c", None)):
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(NotAVideoError, match="The file"):
            sample_frames(tmp_path / name)


def test_a_container_without_frames_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "hollow.mp4"
    path.write_bytes(b"\x00\x00\x00\x18ftypisom" + bytes(64))
    with pytest.raises(NotAVideoError, match="no frame"):
        sample_frames(path)


def test_steps_and_bounds_out_of_range_are_refused(video: Path) -> None:
    for every, most in ((0.0, 1), (float("nan"), 1), (1.0, 0)):
        with pytest.raises(ValueError, match="every_seconds"):
            sample_frames(video, every, most)


def test_a_video_is_written_only_where_it_can_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.avi or \.mp4"):
        write_video(tmp_path / "a.mov")


def test_a_missing_library_says_what_to_install() -> None:
    with pytest.raises(ModelsMissingError, match=r"pip install 'sluice\[models\]'"):
        library("no_such_library_of_models")
