"""Receives nothing; hands each test a way to open a mesh in its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mesh.world import Opening, make_schemas


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    make_schemas(folder)
    return folder


@pytest.fixture
def mesh_of(tmp_path: Path, empty: Path) -> Opening:
    return Opening(tmp_path, empty)
