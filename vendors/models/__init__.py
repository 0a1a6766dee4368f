"""The local models: receives texts and images over HTTP, hands back scores in 0..1.

Outside our walls: a vendor like any other, imported by no service. Real models run on
this machine, offline, behind OpenAI's `POST /v1/moderations`. Needs the extra `models`;
importing this package does not.

What the categories mean, and no more than that:

- `profanity` (text; `alt-profanity-check`): the probability that the text swears or
  insults. A linear classifier over English words: it knows neither who is addressed nor
  what is meant, so it is *not* OpenAI's `harassment`, `hate` or `violence`. It misses
  spellings such as `1d10t` and is fooled by harmless words (see `corpus`).
- `sexual` (image; `nudenet`): the best score of an uncovered private part (`SEXUAL` in
  `detectors` lists them).
- `sexual/suggestive` (image; `nudenet`): the best score of a bare belly or bare male chest.
  It says what is bare, not what is meant.

A category that no model judged is absent, never 0. An image's 0.0 means that nothing was
found above the detector's own floor of 0.25. Faces, feet, armpits and whatever is covered
are no risk, and count for nothing.
"""

from __future__ import annotations

from vendors.models.errors import ModelsMissingError
from vendors.models.server import RunningModels, serve

__all__ = ["ModelsMissingError", "RunningModels", "serve"]
