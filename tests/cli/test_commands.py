"""What people type: exit statuses, JSON, and failures that say what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app

RUNNER = CliRunner()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses at which nothing listens."""
    for name in ("INTAKE", "DISPATCHER", "VENDOR_PROXY", "AGGREGATOR"):
        monkeypatch.setenv(f"SLUICE_{name}_ADDR", f"127.0.0.1:{_free_port()}")


@pytest.mark.parametrize(
    "words",
    [
        ["up"], ["serve"], ["vendor-sim"], ["models"], ["submit", "content"], ["show"],
        ["unknown"], ["unknown", "resolve"], ["pools"], ["judge"], ["db", "upgrade"], ["doctor"],
        ["demo"], ["lab"],
    ],
)  # fmt: skip
def test_every_command_has_help(words: list[str]) -> None:
    answer = RUNNER.invoke(app, [*words, "--help"])
    assert answer.exit_code == 0
    assert "Usage" in answer.output


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["show"],
        ["show", "not-an-id"],
        ["serve", "nothing"],
        ["unknown", "resolve", "x", "--as", "maybe"],
        ["demo", "--contents", "0"],
    ],
)
def test_wrong_usage_exits_with_2(words: list[str]) -> None:
    assert RUNNER.invoke(app, words).exit_code == 2


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(
    "words",
    [["show", "0" * 32], ["unknown"], ["pools"], ["unknown", "resolve", "t", "--as", "retry"]],
)
def test_a_service_that_is_away_is_explained_and_exits_with_1(words: list[str]) -> None:
    answer = RUNNER.invoke(app, words)
    assert answer.exit_code == 1
    assert "No service answers at this address; nothing was changed." in answer.stderr
    assert "sluice up" in answer.stderr


def test_an_unknown_setting_stops_a_command_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_NONSENSE", "1")
    answer = RUNNER.invoke(app, ["pools"])
    assert answer.exit_code == 1
    assert "SLUICE_NONSENSE: no such setting" in answer.stderr


@pytest.mark.usefixtures("nobody")
def test_a_client_command_leaves_no_keys_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    RUNNER.invoke(app, ["pools"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"tenantId": 5', "a.jsonl:1: is not a content"),
        ("a.jsonl", b'{"noSuchField": 1}', "a.jsonl:1: is not a content"),
        ("a.bin", b"x", "not a kind that is known"),
        ("a.txt", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("a.bmp", b"BM", "not a kind that is known"),
    ],
)
def test_a_file_that_is_no_content_is_named_and_nothing_is_submitted(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    answer = RUNNER.invoke(app, ["submit", "content", str(path)])
    assert answer.exit_code == 1
    assert says in answer.stderr
    assert "Nothing was submitted." in answer.stderr


def test_db_upgrade_brings_three_databases_to_the_newest_schema_and_can_be_repeated(
    tmp_path: Path,
) -> None:
    first = RUNNER.invoke(app, ["db", "upgrade", "--data", str(tmp_path)])
    assert first.exit_code == 0
    assert [line.split(":")[0] for line in first.output.split("\n") if line] == [
        "mesh",
        "proxy",
        "vault",
    ]
    again = RUNNER.invoke(app, ["db", "upgrade", "--data", str(tmp_path)])
    assert again.exit_code == 0
    assert "empty" not in again.output


def test_serve_refuses_a_database_that_was_not_upgraded(tmp_path: Path) -> None:
    answer = RUNNER.invoke(app, ["serve", "intake", "--data", str(tmp_path)])
    assert answer.exit_code == 1
    assert "sluice db upgrade" in answer.stderr


def test_a_service_that_would_listen_to_strangers_without_callers_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_INTAKE_ADDR", "0.0.0.0:0")
    answer = RUNNER.invoke(app, ["up", "--data", str(tmp_path)])
    assert answer.exit_code == 1
    assert "intake_addr" in answer.stderr
    assert "declare callers" in answer.stderr


@pytest.mark.parametrize("name", ["nope", "file.txt", "empty"])
def test_judging_what_is_no_folder_of_files_is_explained(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    data = tmp_path / "data"
    answer = RUNNER.invoke(app, ["judge", str(tmp_path / name), "--data", str(data)])
    assert (answer.exit_code, type(answer.exception)) == (1, SystemExit)
    assert str(tmp_path / name) in answer.stderr
    assert "Nothing was submitted." in answer.stderr
    assert not data.exists()
