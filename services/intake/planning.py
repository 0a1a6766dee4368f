"""Which tasks a content becomes: one for each distinct input and model that must judge it.

Receives a valid content, the planning rules and the pools. Hands on planned tasks in a
stable order, or the parts that no rule covers. Equal inputs of one case and model version
are one task with a list of positions. Pure. Source: DESIGN section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from kernel.attempt import OnUnknown
from kernel.decision import Requirement
from kernel.errors import FieldViolation
from kernel.idempotency import Hasher
from kernel.runtime.settings import ModelSettings, PlanningRule, PlanningSettings
from kernel.vendor import PoolProfile
from services.intake.admission import Content, Kind, Part

IMAGE_URI = "IMAGE_URI"
VIDEO_URI = "VIDEO_URI"


@dataclass(frozen=True, slots=True)
class Input:
    """What one call is given: `payload` is the text, the image, or the URI, as bytes.

    `position` is "0" for part 0 and "2/17" for frame 17 of part 2, both from 0. `units` are
    counted as vendors count: requests, characters, frames.
    """

    position: str
    kind: str
    payload: bytes = field(repr=False)
    digest: str
    units: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task to be: `model` judges `input`, which stands at `positions` of the content."""

    n: int
    input: Input
    model: ModelSettings
    vendor: str
    on_unknown: OnUnknown
    units: Mapping[str, int]
    positions: tuple[str, ...]


def uncovered(content: Content, planning: PlanningSettings) -> list[FieldViolation]:
    """The parts that no planning rule covers, named."""
    return [
        FieldViolation(f"parts[{at}].kind", f"no planning rule covers this {part.kind}")
        for at, part in enumerate(content.parts)
        if part.kind is not None and _rule_for(part.kind, content, planning) is None
    ]


def plan(
    content: Content,
    planning: PlanningSettings,
    pools: Mapping[str, PoolProfile],
    hasher: Hasher,
) -> list[PlannedTask]:
    """The tasks of a content without `uncovered` parts; n from 1, in the order of its inputs.

    Where an input stands in several positions, the most needed of their models counts, and
    the larger of their units.
    """
    drafts: dict[tuple[str, str, str], _Draft] = {}
    for at, part in enumerate(content.parts):
        rule = _rule_for(part.kind, content, planning)
        if rule is None:
            raise ValueError(f"part {at} has no planning rule: `uncovered` was not asked")
        for each in _inputs(at, part, planning, hasher):
            for model in rule.models:
                key = (model.model, model.version, each.digest)
                drafts.setdefault(key, _Draft(each, model)).stands_at(each, model)
    wish = content.on_unknown
    return [
        PlannedTask(
            n,
            draft.input,
            draft.model,
            pools[draft.model.pool].vendor,
            draft.model.on_unknown.rule() if wish is None else wish.rule(),
            draft.units,
            tuple(draft.positions),
        )
        for n, draft in enumerate(drafts.values(), start=1)
    ]


_NEED = {Requirement.REQUIRED: 2, Requirement.OPTIONAL: 1, Requirement.SHADOW: 0}


@dataclass(slots=True)
class _Draft:
    """A task while its equal inputs are still being collected."""

    input: Input
    model: ModelSettings
    units: dict[str, int] = field(default_factory=dict)
    positions: list[str] = field(default_factory=list)

    def stands_at(self, each: Input, model: ModelSettings) -> None:
        if _NEED[model.requirement] > _NEED[self.model.requirement]:
            self.model = model
        for name, amount in each.units.items():
            self.units[name] = max(self.units.get(name, 0), amount)
        # A rule may name one model twice: the position still counts once.
        if self.positions[-1:] != [each.position]:
            self.positions.append(each.position)


def _rule_for(
    kind: Kind | None, content: Content, planning: PlanningSettings
) -> PlanningRule | None:
    """The first rule for this kind whose tenants and labels match."""
    for rule in planning.rules:
        if (
            rule.kind == kind
            and (not rule.tenants or content.tenant_id in rule.tenants)
            and all(content.labels.get(name) == value for name, value in rule.labels.items())
        ):
            return rule
    return None


def _inputs(at: int, part: Part, planning: PlanningSettings, hasher: Hasher) -> Iterator[Input]:
    requests = {"requests": 1}
    if part.frames is not None:
        for frame_at, frame in enumerate(part.frames):
            units = {**requests, "frames": 1}
            yield _input(f"{at}/{frame_at}", Kind.IMAGE, frame, units, hasher)
    elif part.text is not None:
        units = {**requests, "characters": len(part.text)}
        yield _input(str(at), Kind.TEXT, part.text.encode(), units, hasher)
    elif part.data is not None:
        yield _input(str(at), Kind.IMAGE, part.data, requests, hasher)
    elif part.uri is not None and part.kind is Kind.VIDEO:
        frames = frame_count(part.duration_seconds, planning.frames_per_second)
        units = {**requests, "frames": frames}
        yield _input(str(at), VIDEO_URI, part.uri.encode(), units, hasher)
    elif part.uri is not None:
        yield _input(str(at), IMAGE_URI, part.uri.encode(), requests, hasher)


def frame_count(duration_seconds: float, frames_per_second: float) -> int:
    """The frames sampled from a video, rounded up, without binary rounding: 0.07 s x 100 is 7."""
    return math.ceil(Fraction(repr(duration_seconds)) * Fraction(repr(frames_per_second)))


def _input(
    position: str, kind: str, payload: bytes, units: Mapping[str, int], hasher: Hasher
) -> Input:
    # The kind keeps a text apart from the URI that it spells: one model may judge both.
    return Input(position, kind, payload, hasher.digest(f"input:{kind}", payload), units)
