"""Receives the pages that are rendered from code; checks that they are what it renders."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_lifecycle_page_is_what_the_move_table_renders() -> None:
    rendered = runpy.run_path(str(ROOT / "docs" / "render_lifecycle.py"))["page"]()
    assert (ROOT / "docs" / "lifecycle.md").read_text() == rendered
