"""Receives data folders and settings that lack something; checks what the doctor finds."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.main import app
from cli.workspace import open_workspace

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses at which nothing listens."""
    for name in ("INTAKE", "DISPATCHER", "VENDOR_PROXY", "AGGREGATOR"):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            monkeypatch.setenv(f"SLUICE_{name}_ADDR", f"127.0.0.1:{taken.getsockname()[1]}")


def checks(folder: Path, *more: str) -> dict[str, dict[str, Any]]:
    """What was found, by name; something is always wrong, since nothing runs."""
    answer = RUNNER.invoke(app, ["doctor", "--data", str(folder), "--json", *more])
    assert answer.exit_code == 1, answer.output
    text, found, decoder = answer.output, {}, json.JSONDecoder()
    while text.strip():
        check, end = decoder.raw_decode(text.lstrip())
        text = text.lstrip()[end:]
        found[check["name"]] = check
    return found


def test_doctor_says_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    open_workspace(tmp_path)
    RUNNER.invoke(app, ["db", "upgrade", "--data", str(tmp_path)])
    (tmp_path / "proxy.db").unlink()
    (tmp_path / "vault.db").write_bytes(b"")
    found = checks(tmp_path)
    assert found["keys.json"]["fine"] is True
    assert found["mesh database"]["fine"] is True
    for name in ("proxy database", "vault database"):
        assert (found[name]["fine"], found[name]["advice"]) == (False, "sluice db upgrade")
    assert found["service intake"]["fine"] is False
    (tmp_path / "keys.json").chmod(0o644)
    again = RUNNER.invoke(app, ["doctor", "--data", str(tmp_path)])
    assert "WRONG keys.json: readable by others" in again.output


def test_doctor_makes_nothing_in_a_folder_that_is_none(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        found = checks(folder)
        assert found["data folder"]["fine"] is False
        assert "there is no data folder here" in found["data folder"]["found"]
        assert "sluice up" in found["data folder"]["advice"]
        assert found["service intake"]["fine"] is False
    assert list(tmp_path.iterdir()) == []


def test_doctor_makes_no_database_beside_the_keys(tmp_path: Path) -> None:
    open_workspace(tmp_path)
    found = checks(tmp_path)
    assert "is not there" in found["mesh database"]["found"]
    assert [path.name for path in tmp_path.iterdir()] == ["keys.json"]


def test_doctor_looks_behind_every_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_workspace(tmp_path)
    monkeypatch.setenv("SLUICE_TEST_TOKEN", "")
    monkeypatch.delenv("SLUICE_TEST_TOKEN")
    monkeypatch.setenv("KNOWN", "example")
    settings = {
        "vendors": {
            "acme": {
                "endpoint": "http://127.0.0.1:1",
                "credential": "env:NOBODY_SET_THIS",
                "receipts": True,
                "receipt_secret": "keys:receipts",
            },
            "plain": {"endpoint": "http://127.0.0.1:1"},
        },
        "callers": {"web": {"token": "env:KNOWN"}, "desk": {"token": "file:/nowhere/at/all"}},
        "service_token": "env:NOBODY_SET_THIS",
    }
    (tmp_path / "sluice.yaml").write_text(yaml.safe_dump(settings))
    found = checks(tmp_path, "--config", str(tmp_path / "sluice.yaml"))
    fine = {
        name: check["fine"]
        for name, check in found.items()
        if name.startswith(("credential", "receipt secret", "token", "service token"))
    }
    assert fine == {
        "credential of acme": False,
        "receipt secret of acme": True,
        "token of caller web": True,
        "token of caller desk": False,
        "service token": False,
    }
    assert "example" not in json.dumps(found)
