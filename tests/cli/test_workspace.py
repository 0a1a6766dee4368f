"""The data folder: its keys belong to its databases, and one proxy at a time uses its ledger."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import processes
from cli.demo import FREE_PORTS
from cli.main import app
from cli.workspace import Workspace, load_settings, open_workspace
from kernel.environment import Environment
from kernel.runtime.settings import Settings, SettingsError
from kernel.runtime.vault import VaultKeyError

RUNNER = CliRunner()


def _prepared(folder: Path) -> tuple[Workspace, Settings]:
    workspace = open_workspace(folder)
    settings = load_settings(workspace, None, **FREE_PORTS)
    processes.upgrade(settings, Environment())
    return workspace, settings


def test_keys_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    first = open_workspace(tmp_path)
    assert open_workspace(tmp_path).keys == first.keys
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600


def test_lost_keys_are_not_replaced_while_there_are_databases(tmp_path: Path) -> None:
    _prepared(tmp_path)
    (tmp_path / "keys.json").unlink()
    with pytest.raises(SettingsError, match="made with its keys"):
        open_workspace(tmp_path)
    assert not (tmp_path / "keys.json").exists()


@pytest.mark.parametrize("text", ["", "garbage", "[]", "{}", '{"vault_keys": 5}'])
def test_damaged_keys_stop_the_start_in_plain_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    answer = RUNNER.invoke(app, ["up", "--data", str(tmp_path)])
    assert answer.exit_code == 1
    assert "keys.json is damaged" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("name", ["hash_key", "vault_keys"])
async def test_other_keys_than_those_of_the_databases_stop_the_start(
    tmp_path: Path, name: str
) -> None:
    workspace, settings = _prepared(tmp_path / "one")
    async with processes.run(settings, workspace.secret, Environment()):
        pass
    other = open_workspace(tmp_path / "two")
    changed = settings.model_copy(update={name: other.keys[name]})
    with pytest.raises(VaultKeyError, match="not the key with which what is stored here was made"):
        async with processes.run(changed, workspace.secret, Environment()):
            pass
    async with processes.run(settings, workspace.secret, Environment()) as running:
        assert running.intake


async def test_i4_a_second_proxy_on_one_ledger_does_not_start(tmp_path: Path) -> None:
    workspace, settings = _prepared(tmp_path)
    async with processes.run(settings, workspace.secret, Environment()):
        with pytest.raises(SettingsError, match="Another vendor proxy runs"):
            async with processes.run(settings, workspace.secret, Environment()):
                pass
    async with processes.run(settings, workspace.secret, Environment()) as running:
        assert running.vendor_proxy


def test_a_taken_port_is_said_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FREE_PORTS:
        monkeypatch.setenv(f"SLUICE_{name.upper()}", "127.0.0.1:0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("SLUICE_INTAKE_ADDR", f"127.0.0.1:{taken.getsockname()[1]}")
        answer = RUNNER.invoke(app, ["up", "--data", str(tmp_path)])
    assert answer.exit_code == 1
    assert "cannot be listened on" in answer.stderr


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("junk", "A database URL cannot be read"),
        ("postgresql+nothing://x/y", "A database URL cannot be read"),
        ("mysql+pymysql://nobody@127.0.0.1:1/x", "A database cannot be used"),
    ],
)
def test_a_database_that_cannot_be_used_is_said_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, says: str
) -> None:
    monkeypatch.setenv("SLUICE_DATABASE_URL", url)
    answer = RUNNER.invoke(app, ["db", "upgrade", "--data", str(tmp_path)])
    assert answer.exit_code == 1
    assert says in answer.stderr


def test_a_file_that_is_no_database_is_said_in_plain_words(tmp_path: Path) -> None:
    open_workspace(tmp_path)
    (tmp_path / "mesh.db").write_bytes(b"not a database at all" * 100)
    answer = RUNNER.invoke(app, ["up", "--data", str(tmp_path)])
    assert answer.exit_code == 1
    assert "the file is no database" in answer.stderr
    assert json.loads((tmp_path / "keys.json").read_text())
