"""Real files through the whole mesh, judged by the local models."""

from __future__ import annotations

from pathlib import Path

import pytest

for module in ("profanity_check", "nudenet", "skimage", "cv2"):
    pytest.importorskip(module, reason="the extra `models` is not installed")

from cli import judging  # noqa: E402
from vendors.models.corpus import write_corpus, write_video  # noqa: E402

_PHOTOGRAPHS = ("astronaut.png", "coffee.png", "color.png")


async def test_every_sample_file_gets_its_expected_verdict_through_the_mesh(
    tmp_path: Path,
) -> None:
    samples = tmp_path / "samples"
    samples.mkdir()
    expected = write_corpus(samples)
    assert len(expected) == 20

    found = await judging.judge_contents(judging.read_folder(samples), tmp_path / "data")

    assert {each.name: each.state for each in found} == expected
    assert not [each.error for each in found if each.error]


async def test_a_video_is_judged_by_its_sampled_frames(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    write_video(videos / "clip.avi", _PHOTOGRAPHS)

    (judged,) = await judging.judge_contents(judging.read_folder(videos), tmp_path / "data")

    # The colour wheel's frames are doubtful for the model, so the clip goes to a person.
    assert (judged.state, judged.rule) == ("IN_REVIEW", "sexual>=0.5")
