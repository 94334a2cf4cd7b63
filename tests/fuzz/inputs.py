"""Fuzzes the loader's input: CSV, TSV and JSON lines of any bytes give rows that fit, or an error with the line."""

import json
import random
import tempfile
from functools import cache
from pathlib import Path

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    Uuid,
)

from dualwrite.coordinator.sql.dialects.supported import SUPPORTED
from dualwrite.errors import InputError
from dualwrite.loader.format import CSV, JSON_LINES, TSV, InputFormat
from dualwrite.loader.input import InputFile, InputRow, MalformedRow
from dualwrite.loader.rows import RowTyper, encode_value
from tests.fuzz.messages import mutated

_TEXTS = {
    CSV: b'n,t,d,m,b,j\n1,"a ""b""\nc",12.50,2026-01-02T03:04:05Z,true,"{""a"": [1]}"\n-2,,0.1,,f,null\n',
    TSV: b"n\tt\td\n1\tx\t0.5\n2\t\t\n",
    JSON_LINES: b'{"n": 1, "t": "\\u00e9", "d": 1e3, "j": {"a": [1.50, null]}}\n\n{"n": -2, "t": null, "b": true}\n',
}
_WORDS = (
    b'"', b'""', b",", b"\t", b"\r\n", b"\r", b"\n", b"\0", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"NaN", b"1e999",
    b"Infinity", b"-0.0", b"1_0", b"\xd9\xa3", b"0x10", b"9" * 400, b"[" * 2000, b"{}", b"\\ud800", b"9999-12-31",
    b"2026-02-30", b"24:00:00", b"+99:99", b'{"n": {"n": 1}}', b'{"n": 1, "n": 2}',
    b"[" * 975 + b"]" * 975,
)  # fmt: skip
_ENCODINGS = ("utf-8", "utf-8", "utf-8", "latin-1", "utf-16", "cp1252")


def fuzz_inputs(seed: int) -> str:
    """Read one input. An AssertionError begins with the seed that repeats it."""
    rng = random.Random(seed)
    kind = rng.choice(tuple(_TEXTS))
    try:
        return read_input(_hostile(_TEXTS[kind], rng), kind, rng.choice(_ENCODINGS))
    except Exception as error:
        raise AssertionError(f"fuzz_inputs({seed}): {error!r}") from error


def read_input(data: bytes, kind: str, encoding: str = "utf-8") -> str:
    """Read ``data`` as the loader does, and return the outcome.

    :raises Exception: if anything but an InputError is raised, or a row's message is not what its row says.
    """
    path = _file()
    path.write_bytes(data)
    rows = refused = 0
    try:
        with InputFile(path, InputFormat(kind, encoding)) as opened:
            typer, last_line = _typer(is_csv=kind != JSON_LINES), 0
            for item in opened.items():
                assert item.line > last_line, "lines go back"
                last_line = item.line
                assert 0 <= opened.fraction() <= 1
                if isinstance(item, MalformedRow):
                    _check_message(item.message, item.line)
                    refused += 1
                    continue
                rows += _is_typed(typer, item)
            assert opened.fraction() == 1, "the end was not noticed"
    except InputError as error:
        _check_message(str(error))
        return f"inputs: {kind}: refused"
    return f"inputs: {kind}: {'rows' if rows else 'no rows'}{' and malformed ones' * bool(refused)}"


def _is_typed(typer: RowTyper, item: InputRow) -> bool:
    try:
        row = typer.row(item)
        message = encode_value(row)
    except (InputError, ValueError) as error:  # the loader adds the line to the second one
        _check_message(str(error))
        return False
    assert list(json.loads(message)) == list(row), "the message has other columns"
    return True


def _check_message(message: str, line: int | None = None) -> None:
    assert message, "no message"
    assert line is None or f"line {line}" in message, f"{message!r} does not name line {line}"


@cache
def _file() -> Path:
    """One file for all inputs of this process; the system removes it with its directory."""
    return Path(tempfile.mkdtemp(prefix="fuzz-inputs-")) / "input"


@cache
def _typer(*, is_csv: bool) -> RowTyper:
    columns = [
        Column("n", Integer), Column("t", Text), Column("d", Numeric(10, 2)), Column("m", DateTime(timezone=True)),
        Column("b", Boolean), Column("j", JSON), Column("u", Uuid), Column("s", String(5)), Column("x", LargeBinary),
    ]  # fmt: skip
    return RowTyper(Table("t", MetaData(), *columns), "input", SUPPORTED["sqlite"], csv=is_csv)


def _hostile(text: bytes, rng: random.Random) -> bytes:
    data = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        data[at:at] = rng.choice(_WORDS)
    return mutated(bytes(data), rng) if rng.random() < 0.5 else bytes(data)
