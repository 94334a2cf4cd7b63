"""Fuzzes the state table: a row is edited by hand, and an operator's commands run on it. None of them ends with a
traceback, and no transaction is committed that the database has not decided."""

import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.ids import PreparedTxnState
from tests.support.forked import ForkedKafkaBroker
from tests.support.operations.histories import STATUSES, Case, insert_row, lived
from tests.support.operations.places import CommandResult, OperationsSite

COLUMNS = tuple(column.name for column in kafka_transaction_state.columns)
COMMANDS = ("list", "doctor", "recover", "list")
_EXIT_CODES = (0, 1, 2)
_ODD: tuple[Any, ...] = (
    None, "", " ", "x", 0, -1, 1, 2**63 - 1, -(2**63), 1.5, float("inf"), b"", b"\x00\xff", "0", "\u0663", "\n", "a\nb",
    "\x1b[31m", "9" * 5000, "2026-13-45 99:99:99", "2026-01-02", "0000-00-00 00:00:00", "now", "true", "{}", "%s",
    "'; --", "elsewhere:1 - - x", "unrecovered", "::::", ":", "0:0", "1:2:3:4:5", "4000:7:t:0:x", "~" * 22, "@",
)  # fmt: skip


@contextmanager
def row_site() -> Iterator[OperationsSite]:
    """A broker and a database for many episodes."""
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-rows-") as directory,
        ForkedKafkaBroker(Path(directory) / "broker") as broker,
    ):
        site = OperationsSite(f"sqlite:///{directory}/app.db", broker)
        try:
            yield site
        finally:
            site.close()


def fuzz_rows(seed: int, site: OperationsSite) -> str:
    """Edit one row, and run the commands. An AssertionError begins with the seed that repeats it."""
    try:
        return _episode(random.Random(seed), seed, site)
    except Exception as error:
        raise AssertionError(f"fuzz_rows({seed}): {error!r}") from error


def _episode(rng: random.Random, seed: int, site: OperationsSite) -> str:
    """An open transaction that the row does not name, in the slot whose row is edited, and one in a sound slot."""
    site.application = f"rows{seed}"
    is_decided = rng.random() < 0.3
    name, neighbour = site.slot(0), site.slot(1)
    (state,) = lived(site, name, "o", "native", 0)
    insert_row(site, name, Case("open", "own", state if is_decided else PreparedTxnState(), STATUSES["expired"]))
    insert_row(site, neighbour, Case("unknown", "nothing", PreparedTxnState(), STATUSES["free"]))
    column = rng.choice(COLUMNS)
    value = rng.choice((*_ODD, *_almost(state)))
    is_edited = _edit(site, name, column, value)
    outcome = "edited" if is_edited else "refused by the database"
    for command in COMMANDS:
        _check(_run(site, command), f"{command} after {column} = {value!r}")
        described = site.described(name)
        assert described is not None
        if not is_decided:
            assert "COMMIT" not in described.state.upper(), f"committed after {column} = {value!r}"
    _remove(site)
    return f"rows: {column}: {outcome}"


def _almost(state: PreparedTxnState) -> tuple[str, ...]:
    """Texts that resemble the open transaction's state, and are not what str() writes."""
    text, (producer_id, epoch) = str(state), state.producer
    arabic = "".join(chr(0x660 + int(digit)) for digit in str(producer_id))
    return f" {text}", f"{text} ", f"{text}\n", f"+{text}", f"0{text}", f"{arabic}:{epoch}", f"{text}:", f"{text}::0:0"


def _edit(site: OperationsSite, name: str, column: str, value: Any) -> bool:
    """Write ``value`` past SQLAlchemy, as an operator's own tool does. False if a constraint forbids it."""
    connection = sqlite3.connect(site.url.removeprefix("sqlite:///"))
    try:
        with connection:
            connection.execute(
                f"UPDATE {kafka_transaction_state.name} SET {column} = ? WHERE transactional_id = ?",
                (value, name),
            )
    except (sqlite3.IntegrityError, OverflowError):
        return False
    finally:
        connection.close()
    return True


def _remove(site: OperationsSite) -> None:
    """Remove every row: a damaged one stops the next episode's commands, too."""
    with site.engine.begin() as connection:
        connection.exec_driver_sql(f"DELETE FROM {kafka_transaction_state.name}")


def _run(site: OperationsSite, command: str) -> CommandResult:
    if command == "list":
        return site.run("transactions", "list")
    words = ["--application", site.application] if command == "recover" else []
    return site.run(command, *words)


def _check(result: CommandResult, where: str) -> None:
    assert result.code in _EXIT_CODES, f"exit code {result.code}: {where}"
    lines = result.err.splitlines()
    assert all(line.startswith("dualwrite: ") for line in lines), f"stderr {result.err!r}: {where}"
    assert "Traceback" not in result.out + result.err, where
    assert "\x1b" not in result.out, f"a letter that controls the terminal: {where}"
