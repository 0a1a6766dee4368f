"""Receives the source tree; checks the house rules that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import EnumMeta
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import EnumDescriptor, FileDescriptor

from kernel.attempt import FenceAnswer, OnUnknownMode, Outcome, QueryAnswer, Resend
from kernel.decision import Requirement
from kernel.lifecycle import CaseState, State
from kernel.receipt import ReceiptState
from mesh.v1 import aggregator_pb2, dispatcher_pb2, intake_pb2, types_pb2, vendor_proxy_pb2
from services.dispatcher.operator import Resolution
from services.intake.cancellation import CancelAnswer

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ("kernel", "services", "vendors", "cli")
CASES = ROOT.parent / "shared" / "cases" / "real-failures.md"


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), named(path))


SOURCES = files(*PROGRAM)
TESTS = files("tests")
MODULES = [pytest.param(path, id=named(path)) for path in SOURCES]
EVERY = [pytest.param(path, id=named(path)) for path in (*SOURCES, *TESTS)]


def test_the_rules_look_at_the_whole_program() -> None:
    assert len(SOURCES) > 80
    assert {named(path).split("/")[0] for path in SOURCES} == set(PROGRAM)
    assert len(TESTS) > 30


# ---- SQL in one folder ------------------------------------------------------------------

SQL = re.compile(
    r"\b(select\s+(\S+\s*,\s*)*\S+(\s+as\s+\w+)?\s+from\s|select\s+@@|insert\s+(or\s+\w+\s+)?into\s"
    r"|update\s+\w+(\s+as\s+\w+)?\s+set\s|delete\s+from\s|(create|drop|alter)\s+table\s|^\s*pragma\s)",
    re.IGNORECASE,
)


def texts(module: ast.Module) -> Iterator[tuple[int, str]]:
    """String literals that are no docstrings, with their line; an f-string's parts as one."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(module)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "x" for p in node.values]
            yield node.lineno, "".join(str(part) for part in parts)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        ):
            yield node.lineno, node.value


@pytest.mark.parametrize(
    "text",
    [
        "select id, parent_id from tasks",
        "SELECT count(*) as amount\n from tasks ",
        "select @@version",
        "insert or ignore into receipts (a)",
        "update tasks as t set x = 1",
        "delete from outbox where",
        "pragma wal_checkpoint",
        "create table x (",
    ],
)
def test_sql_is_known_when_it_is_seen(text: str) -> None:
    assert SQL.search(text)


@pytest.mark.parametrize(
    "text", ["Choose a file from here", "the update is set", "insert into", "pragmatic"]
)
def test_prose_is_not_taken_for_sql(text: str) -> None:
    assert not SQL.search(text)


@pytest.mark.parametrize("path", MODULES)
def test_no_sql_stands_outside_the_store(path: Path) -> None:
    if named(path).startswith("kernel/store/"):
        return
    found = [(line, text[:60]) for line, text in texts(tree(path)) if SQL.search(text)]
    assert found == []


@pytest.mark.parametrize("path", MODULES)
def test_no_statement_is_made_outside_the_store(path: Path) -> None:
    if named(path).startswith("kernel/store/"):
        return
    makers = {"Statement", "joined_update", "text", "select", "insert", "update", "delete"}
    taken = {
        alias.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("sqlalchemy", "kernel.store.dialect"))
        for alias in node.names
    }
    assert not taken & makers


# ---- one clock, one source of randomness, one maker of ids ------------------------------

FORBIDDEN = {"time", "random", "uuid", "secrets"}
# Whoever makes a seeded source hands it on; nobody draws from a hidden one.
ALLOWED = {
    "kernel/environment.py": {"time", "random"},
    "kernel/idempotency.py": {"uuid"},  # UUIDv5 is a digest, it draws nothing
    "vendors/simulator/chance.py": {"random"},
    "cli/demo.py": {"random"},
    "cli/labs/assembly.py": {"random"},
}
SEEDED = {"Random", "SystemRandom"}


def imported(module: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    return found


def calls(module: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """(dotted name, call) of every call whose function is named."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", MODULES)
def test_time_randomness_and_ids_enter_through_the_environment_alone(path: Path) -> None:
    module = tree(path)
    assert imported(module) & FORBIDDEN <= ALLOWED.get(named(path), set())
    hidden = ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")
    assert [name for name, _ in calls(module) if name.endswith(hidden)] == []
    if "random" in imported(module):
        drawn = {name for name, _ in calls(module) if name.startswith("random.")}
        assert drawn <= {f"random.{name}" for name in SEEDED}


def test_every_exception_to_the_rule_of_the_environment_is_still_needed() -> None:
    for name, modules in ALLOWED.items():
        assert modules <= imported(tree(ROOT / name)), name
    assert {
        alias.name
        for node in ast.walk(tree(ROOT / "kernel/idempotency.py"))
        if isinstance(node, ast.ImportFrom) and node.module == "uuid"
        for alias in node.names
    } == {"UUID", "uuid5"}


@pytest.mark.parametrize("path", MODULES)
def test_nothing_sleeps_but_the_clock(path: Path) -> None:
    if named(path) == "kernel/environment.py":
        return
    slept = [
        node.lineno
        for name, node in calls(tree(path))
        if name in ("asyncio.sleep", "time.sleep", "sleep")
        # Giving way to others takes no time.
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]
    assert slept == []


@pytest.mark.parametrize("path", [pytest.param(path, id=named(path)) for path in TESTS])
def test_tests_wait_on_signals_and_never_sleep(path: Path) -> None:
    slept = [
        node.lineno
        for name, node in calls(tree(path))
        if name in ("asyncio.sleep", "time.sleep")
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]
    assert slept == []


# ---- files ------------------------------------------------------------------------------

MOST_LINES = 400
BAD_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "data", "process", "misc"}


def is_migration(path: Path) -> bool:
    return "kernel/store/migrations/" in named(path) and path.name.startswith("r0")


@pytest.mark.parametrize("path", EVERY)
def test_no_file_holds_everything(path: Path) -> None:
    # A migration is written by alembic, read once, and never edited.
    assert is_migration(path) or len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", EVERY)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree(path))


@pytest.mark.parametrize("path", EVERY)
def test_no_module_or_folder_has_a_name_that_says_nothing(path: Path) -> None:
    names = {path.stem, *(part for part in path.relative_to(ROOT).parts[:-1])}
    assert not names & BAD_NAMES


@pytest.mark.parametrize("path", MODULES)
def test_only_the_command_prints(path: Path) -> None:
    if named(path).startswith("cli/"):
        return
    assert [node.lineno for name, node in calls(tree(path)) if name == "print"] == []


@pytest.mark.parametrize("path", EVERY)
def test_no_file_names_a_machine_of_ours(path: Path) -> None:
    text = path.read_text()
    if path == Path(__file__).resolve():
        return
    assert not re.search(r"/(home|work|root|Users)/\w+", text)


def test_constraints_are_exact_versions_of_named_packages() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    bad = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)]
    assert bad == []
    packages = [re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines]
    assert len(packages) == len(set(packages))


# ---- protos -----------------------------------------------------------------------------

PROTOS: list[FileDescriptor] = [
    module.DESCRIPTOR
    for module in (types_pb2, intake_pb2, dispatcher_pb2, vendor_proxy_pb2, aggregator_pb2)
]


def enums() -> list[EnumDescriptor]:
    found: list[EnumDescriptor] = []
    for file in PROTOS:
        found += file.enum_types_by_name.values()
        messages = list(file.message_types_by_name.values())
        while messages:
            message = messages.pop()
            found += message.enum_types
            messages += message.nested_types
    return found


def test_every_proto_is_looked_at() -> None:
    stored = {path.name for path in (ROOT / "protos" / "mesh" / "v1").glob("*.proto")}
    assert {Path(file.name).name for file in PROTOS} == stored
    assert len(enums()) > 10


@pytest.mark.parametrize("enum", enums(), ids=lambda enum: enum.full_name)
def test_the_zero_of_every_enum_is_unspecified_and_unknown_is_not(enum: EnumDescriptor) -> None:
    by_number = {value.number: value.name for value in enum.values}
    assert by_number[0].endswith("_UNSPECIFIED")
    for value in enum.values:
        assert value.number == 0 or not value.name.endswith("_UNSPECIFIED")
        if value.name.endswith("UNKNOWN"):
            assert value.number != 0


MIRRORED = [
    (State, "mesh.v1.TaskState", "TASK_STATE_"),
    (CaseState, "mesh.v1.CaseState", "CASE_STATE_"),
    (Requirement, "mesh.v1.Requirement", "REQUIREMENT_"),
    (Outcome, "mesh.v1.Outcome", "OUTCOME_"),
    (OnUnknownMode, "mesh.v1.OnUnknown.Mode", "MODE_"),
    (ReceiptState, "mesh.v1.ReceiptState", "RECEIPT_STATE_"),
    (QueryAnswer, "mesh.v1.QueryStatusResponse.Answer", "ANSWER_"),
    (Resend, "mesh.v1.QueryStatusResponse.Resend", "RESEND_"),
    (FenceAnswer, "mesh.v1.FenceCallResponse.Answer", "ANSWER_"),
    (Resolution, "mesh.v1.ResolveUnknownRequest.Resolution", "RESOLUTION_"),
    (CancelAnswer, "mesh.v1.CancelledTask.Answer", "ANSWER_"),
]


@pytest.mark.parametrize(("rule", "full_name", "prefix"), MIRRORED)
def test_the_wire_has_the_words_of_the_rules(rule: EnumMeta, full_name: str, prefix: str) -> None:
    pool = descriptor_pool.Default()
    enum = pool.FindEnumTypeByName(full_name)
    wire = {value.name.removeprefix(prefix) for value in enum.values if value.number != 0}
    assert wire == set(rule.__members__)
    assert all(member == str(getattr(rule, member)) for member in rule.__members__)


# ---- cases ------------------------------------------------------------------------------

CASE = re.compile(r"case_(\d+)_(\d+)")
INVARIANT = re.compile(r"^test_i(\d+)_")


def test_names_of_tests_are_sentences_and_name_only_invariants_that_exist() -> None:
    for name in _names():
        assert len(name.split("_")) >= 4, name
        found = INVARIANT.match(name)
        assert found is None or 1 <= int(found[1]) <= 13, name


@pytest.mark.skipif(not CASES.exists(), reason="the list of cases is not part of this tree")
def test_every_case_that_a_test_names_is_one_of_the_list() -> None:
    listed = set(re.findall(r"^### (\d+-\d+)", CASES.read_text(), re.MULTILINE))
    assert len(listed) > 50
    said = {(f"{int(a)}-{b}", name) for name in _names() for a, b in CASE.findall(name)}
    assert said
    assert [(case, name) for case, name in sorted(said) if case not in listed] == []


def _names() -> list[str]:
    return [
        node.name
        for path in TESTS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]
