"""The page of troubleshooting quotes messages that the code has, and has advice about every public error."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import dualwrite
from tests.support.syntax_trees import parsed

HOME = Path(__file__).parents[3]
PAGE = (HOME / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(?P<message>.+?)` \| (?P<error>[^|]*) \| (?P<advice>[^|]*) \|$", re.MULTILINE)
ROWS = [found.groupdict() for found in ROW.finditer(PAGE)]
SHORTEST_PIECE = 3


@pytest.fixture(scope="module")
def texts() -> Mapping[str, str]:
    """All literal text of each module."""
    paths = sorted((HOME / "dualwrite").rglob("*.py"))
    return {str(path): "\n".join(literals(parsed(path.read_text(encoding="utf-8")))) for path in paths}


def literals(tree: ast.AST) -> Iterator[str]:
    """The texts of a module, with each value of an f-string as an ellipsis."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def pieces(message: str) -> list[str]:
    """What ``message`` has between its ellipses."""
    return [piece for part in message.split("…") if len(piece := part.strip()) >= SHORTEST_PIECE]


def modules_with(message: str, texts: Mapping[str, str]) -> list[str]:
    """The modules whose text has every piece of ``message``."""
    return [name for name, text in texts.items() if all(piece in text for piece in pieces(message))]


def test_every_line_of_the_tables_is_read() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(ROWS) == len(lines) >= 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["message"][:40])
def test_a_quoted_message_is_the_codes(row: Mapping[str, str], texts: Mapping[str, str]) -> None:
    assert sum(map(len, pieces(row["message"]))) >= 12
    assert modules_with(row["message"], texts) != []


@pytest.mark.parametrize(
    "message",
    ["no slot of the application … was free", "commit() is allowed inside a unit of work", "…: the broker is on fire"],
)
def test_a_message_that_the_code_does_not_have_is_noticed(message: str, texts: Mapping[str, str]) -> None:
    assert modules_with(message, texts) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["message"][:40])
def test_the_error_of_a_message_is_one_that_there_is(row: Mapping[str, str]) -> None:
    named = re.findall(r"`(\w+)`", row["error"])
    assert set(named) <= {*dualwrite.__all__, "ImportError", "ModuleNotFoundError", "TypeError"}
    assert named or "log" in row["error"]
    assert row["advice"].strip()


def test_every_public_error_has_advice() -> None:
    public = {name: getattr(dualwrite, name) for name in dualwrite.__all__}
    errors = {name for name, value in public.items() if isinstance(value, type) and issubclass(value, BaseException)}
    assert errors > {"InDoubtError", "TransactionEndedError"}
    assert {name for name in errors if f"`{name}`" not in PAGE} == {"DualWriteError"}
