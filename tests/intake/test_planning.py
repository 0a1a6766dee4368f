"""A content becomes one task for each distinct input and model, covering every position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kernel.attempt import OnUnknown, OnUnknownMode
from kernel.decision import Requirement
from kernel.runtime.settings import Settings
from services.intake.admission import Content, Kind, OnUnknownWish, Part
from services.intake.planning import PlannedTask, frame_count, plan, uncovered
from tests.intake.world import HASHER, RULES, model, settings, text_content

SETTINGS = settings()


def planned(
    *parts: Part, rules: Sequence[dict[str, Any]] = RULES, **more: Any
) -> list[PlannedTask]:
    with_rules = _with(rules)
    content = text_content(parts=parts, **more)
    assert uncovered(content, with_rules.planning) == []
    return plan(content, with_rules.planning, with_rules.pool_profiles(), HASHER)


def _with(rules: Sequence[dict[str, Any]]) -> Settings:
    if rules is RULES:
        return SETTINGS
    return settings(planning={"rules": list(rules), "frames_per_second": 2.0})


def shown(tasks: list[PlannedTask]) -> list[tuple[int, str, str, tuple[str, ...]]]:
    return [(t.n, t.model.model, t.input.kind, t.positions) for t in tasks]


def test_each_part_and_model_is_a_task_in_a_stable_order() -> None:
    tasks = planned(Part(Kind.TEXT, text="a"), Part(Kind.IMAGE, data=b"i"))
    assert shown(tasks) == [
        (1, "text", "TEXT", ("0",)),
        (2, "tone", "TEXT", ("0",)),
        (3, "image", "IMAGE", ("1",)),
    ]
    assert [t.vendor for t in tasks] == ["alpha", "beta", "alpha"]
    assert [t.model.requirement for t in tasks] == [
        Requirement.REQUIRED,
        Requirement.OPTIONAL,
        Requirement.REQUIRED,
    ]


def test_equal_frames_of_one_case_collapse_to_one_task_with_all_positions() -> None:
    tasks = planned(Part(Kind.TEXT, text="a"), Part(Kind.VIDEO, frames=(b"x", b"y", b"x", b"x")))
    assert shown(tasks)[2:] == [
        (3, "image", "IMAGE", ("1/0", "1/2", "1/3")),
        (4, "motion", "IMAGE", ("1/0", "1/2", "1/3")),
        (5, "image", "IMAGE", ("1/1",)),
        (6, "motion", "IMAGE", ("1/1",)),
    ]


def test_an_image_equal_to_a_frame_is_judged_once_by_the_model_that_both_need() -> None:
    tasks = planned(Part(Kind.VIDEO, frames=(b"x",)), Part(Kind.IMAGE, data=b"x"))
    assert shown(tasks) == [
        (1, "image", "IMAGE", ("0/0", "1")),
        (2, "motion", "IMAGE", ("0/0",)),
    ]
    assert tasks[0].units == {"requests": 1, "frames": 1}


def test_a_text_that_spells_a_uri_is_another_input_than_the_uri() -> None:
    judge = [{"kind": k, "models": [model("omni", "text")]} for k in ("TEXT", "IMAGE", "VIDEO")]
    uri = "https://example.org/a"
    tasks = planned(
        Part(Kind.TEXT, text=uri),
        Part(Kind.IMAGE, uri=uri),
        Part(Kind.VIDEO, uri=uri, duration_seconds=1),
        rules=judge,
    )
    assert [t.input.kind for t in tasks] == ["TEXT", "IMAGE_URI", "VIDEO_URI"]
    assert [t.input.payload for t in tasks] == [uri.encode()] * 3


def test_a_video_by_uri_is_one_task_a_model_with_its_frames_counted() -> None:
    tasks = planned(Part(Kind.VIDEO, uri="s3://b/v", duration_seconds=3.2))
    assert shown(tasks) == [
        (1, "image", "VIDEO_URI", ("0",)),
        (2, "motion", "VIDEO_URI", ("0",)),
    ]
    assert tasks[0].units == {"requests": 1, "frames": 7}
    assert tasks[0].input.payload == b"s3://b/v"


def test_one_uri_given_twice_counts_the_longer_of_its_durations() -> None:
    tasks = planned(
        Part(Kind.VIDEO, uri="s3://b/v", duration_seconds=5),
        Part(Kind.VIDEO, uri="s3://b/v", duration_seconds=2),
    )
    assert [(t.positions, t.units["frames"]) for t in tasks] == [(("0", "1"), 10)] * 2


def test_frames_are_counted_without_binary_rounding() -> None:
    assert 0.07 * 100 > 7  # what floats would say
    assert frame_count(0.07, 100.0) == 7
    assert frame_count(0.001, 1.0) == 1
    assert frame_count(2.0, 2.0) == 4


def test_texts_count_their_characters() -> None:
    assert planned(Part(Kind.TEXT, text="né🍣"))[0].units == {"requests": 1, "characters": 3}


def test_the_first_rule_that_matches_kind_tenant_and_labels_decides() -> None:
    part = Part(Kind.TEXT, text="a")

    def models(tenant_id: str, labels: dict[str, str]) -> list[str]:
        return [t.model.model for t in planned(part, tenant_id=tenant_id, labels=labels)]

    assert models("acme", {"lane": "strict", "more": "1"}) == ["strict-text"]
    assert models("acme", {"lane": "Strict"}) == ["text", "tone"]
    assert models("acme", {}) == ["text", "tone"]
    assert models("other", {"lane": "strict"}) == ["text", "tone"]


def test_parts_without_a_rule_are_named() -> None:
    bare = _with([RULES[1]]).planning
    content = text_content(
        parts=(
            Part(Kind.IMAGE, data=b"i"),
            Part(Kind.TEXT, text="a"),
            Part(Kind.VIDEO, frames=(b"i",)),
        )
    )
    assert [v.field for v in uncovered(content, bare)] == ["parts[0].kind", "parts[2].kind"]


def test_the_callers_rule_for_unknown_outcomes_replaces_the_models() -> None:
    wish = OnUnknownWish(OnUnknownMode.AT_LEAST_ONCE, 3, 7)
    part = Part(Kind.TEXT, text="a")
    assert planned(part)[0].on_unknown == OnUnknown(OnUnknownMode.AT_LEAST_ONCE, 1, 1_000_000)
    assert planned(part, on_unknown=wish)[0].on_unknown == OnUnknown(
        OnUnknownMode.AT_LEAST_ONCE, 3, 7
    )


def test_a_shared_input_is_as_required_as_its_most_needed_position() -> None:
    rules = [
        {"kind": "IMAGE", "models": [model("m", "image", requirement="OPTIONAL"), REQUIRED]},
        {"kind": "VIDEO", "models": [model("m", "video")]},
    ]
    tasks = planned(Part(Kind.IMAGE, data=b"x"), Part(Kind.VIDEO, frames=(b"x",)), rules=rules)
    assert tasks[0].positions == ("0", "1/0")
    assert tasks[0].model.requirement is Requirement.REQUIRED
    assert (tasks[0].model.pool, tasks[0].vendor) == ("video", "beta")


REQUIRED = model("other", "image")

_BYTES = st.binary(min_size=1, max_size=1).map(lambda b: bytes([b[0] % 3]))
_PARTS = st.lists(
    st.one_of(
        st.sampled_from("abc").map(lambda t: Part(Kind.TEXT, text=t)),
        _BYTES.map(lambda b: Part(Kind.IMAGE, data=b)),
        st.sampled_from("ab").map(lambda u: Part(Kind.IMAGE, uri=f"http://{u}/i")),
        st.lists(_BYTES, min_size=1, max_size=6).map(
            lambda frames: Part(Kind.VIDEO, frames=tuple(frames))
        ),
        st.sampled_from((1.0, 2.5)).map(
            lambda s: Part(Kind.VIDEO, uri="http://a/v", duration_seconds=s)
        ),
    ),
    min_size=1,
    max_size=6,
)
_MODELS = st.lists(
    st.builds(
        model,
        st.sampled_from(("m1", "m2")),
        st.sampled_from(("text", "image")),
        version=st.sampled_from(("1", "2")),
    ),
    min_size=1,
    max_size=3,
)


@hypothesis_settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(parts=_PARTS, text=_MODELS, image=_MODELS, video=_MODELS)
def test_i1_every_position_is_covered_exactly_once_by_every_model_of_its_rule(
    parts: list[Part],
    text: list[dict[str, Any]],
    image: list[dict[str, Any]],
    video: list[dict[str, Any]],
) -> None:
    models = {"TEXT": text, "IMAGE": image, "VIDEO": video}
    tasks = planned(
        *parts, rules=[{"kind": kind, "models": listed} for kind, listed in models.items()]
    )

    expected = {
        (position, each["model"], each["version"]): payload
        for kind, position, payload in _positions(text_content(parts=tuple(parts)))
        for each in models[kind]
    }
    covered = Counter(
        (position, t.model.model, t.model.version) for t in tasks for position in t.positions
    )
    assert covered == Counter(expected.keys())
    for task in tasks:
        for position in task.positions:
            key = (position, task.model.model, task.model.version)
            assert expected[key] == task.input.payload
    logical = {(t.model.model, t.model.version, t.input.digest) for t in tasks}
    assert len(logical) == len(tasks)
    assert [t.n for t in tasks] == list(range(1, len(tasks) + 1))


def _positions(content: Content) -> Iterator[tuple[str, str, bytes]]:
    for at, part in enumerate(content.parts):
        if part.frames is not None:
            for frame_at, frame in enumerate(part.frames):
                yield "VIDEO", f"{at}/{frame_at}", frame
        else:
            payload = part.data or (part.text or part.uri or "").encode()
            yield str(part.kind), str(at), payload
