"""The coordinator's log lines have their fields, and stay readable."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, insert

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.slots.log_fields import FIELDS, Fields
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.errors import DualWriteError, KafkaUnavailableError
from tests.support.coordinator.event_table import events, expire_leases
from tests.support.coordinator.fake_kafka import FakeKafka, Fault

Make = Callable[..., DualWrite]


class JsonFormatter(logging.Formatter):
    """As such formatters do: the message, and every attribute that logging itself does not give a record."""

    _ITS_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in self._ITS_OWN}
        return json.dumps({"message": record.getMessage(), **fields})


class Lines(logging.Handler):
    """Keeps what a formatter makes of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    logger, handler = logging.getLogger("dualwrite"), Lines()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(before)


def about(lines: list[dict[str, Any]], words: str) -> dict[str, Any]:
    """The fields of the one line that says ``words``, without those of which it has nothing to say."""
    (line,) = [line for line in lines if words in line["message"]]
    assert set(line) == {"message", *FIELDS}
    return {name: value for name, value in line.items() if value is not None and name != "message"}


def write(dual_write: DualWrite, value: str = "one") -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce("events", value=value)


def test_a_failed_step_is_logged_with_its_slot_step_and_state(
    dual_write: DualWrite, kafka: FakeKafka, lines: list[dict[str, Any]]
) -> None:
    kafka.fault = lambda request: Fault.BEFORE if request == "prepare" else Fault.NONE
    with pytest.raises(KafkaUnavailableError):
        write(dual_write)
    assert about(lines, "PREPARE_KAFKA failed") == {
        "transactional_id": "orders-0",
        "application": "orders",
        "step": "PREPARE_KAFKA",
        "state": "preparing kafka",
        "error": "KafkaUnavailableError",
    }
    (line,) = [line["message"] for line in lines if "PREPARE_KAFKA" in line["message"]]
    assert line.startswith("orders-0: PREPARE_KAFKA failed: KafkaUnavailableError("), "people read it as ever"


def test_a_recovered_transaction_is_logged_with_its_outcome(
    make_dual_write: Make, sqlite_engine: Engine, lines: list[dict[str, Any]]
) -> None:
    def die(step: str) -> None:
        if step == "COMMIT_KAFKA":
            raise SystemExit

    dead = make_dual_write(on_step=die)
    with pytest.raises(SystemExit):
        write(dead)
    manager_of(dead).process.pool.heartbeat.stop(0)
    expire_leases(sqlite_engine)
    make_dual_write().recover()
    found = about(lines, "outcome of recovery")
    assert found == {"transactional_id": "orders-0", "application": "orders", "outcome": "committed"}
    assert about(lines, "taken over from")["transactional_id"] == "orders-0"


def test_log_lines_about_an_application_have_no_transactional_id(
    dual_write: DualWrite, monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DualWriteError("no")

    write(dual_write)
    monkeypatch.setattr(SqlLeases, "give_back", refuse)
    dual_write.close()
    assert about(lines, "the leases were not given back") == {"application": "orders", "error": "DualWriteError"}


def record(message: str, *arguments: object, **known: object) -> logging.LogRecord:
    made = logging.LogRecord("dualwrite", logging.INFO, "", 0, message, arguments, None)
    made.__dict__.update(known)
    assert Fields().filter(made)
    return made


@pytest.mark.parametrize(
    ("message", "arguments", "slot", "application"),
    [
        ("%s: lost: %s", ("a-b-7", "why"), "a-b-7", "a-b"),
        ("%s: lost", ("no-slot",), "no-slot", None),
        ("%s: lost", ("alone",), "alone", None),
        ("a unit of work is run again in %.3f s", (1.0,), None, None),
        ("nothing is said of anybody", (), None, None),
        ("%s: no name", (7,), None, None),
    ],
)
def test_the_first_word_of_a_log_line_is_its_subject(
    message: str, arguments: tuple[object, ...], slot: str | None, application: str | None
) -> None:
    made = record(message, *arguments)
    assert (made.__dict__["transactional_id"], made.__dict__["application"]) == (slot, application)
    assert made.getMessage() == message % arguments


def test_a_field_that_the_log_call_sets_is_not_overwritten() -> None:
    made = record("%s: lost", "a-7", application="a-7", error="None of yours")
    assert [made.__dict__[name] for name in FIELDS] == [None, "a-7", None, None, None, "None of yours"]


def test_the_error_of_a_traceback_is_named() -> None:
    error = ValueError("x")
    made = logging.LogRecord("dualwrite", logging.ERROR, "", 0, "%s: bad", ("a-0",), (ValueError, error, None))
    Fields().filter(made)
    assert made.__dict__["error"] == "ValueError"


@pytest.mark.slow
def test_a_format_that_asks_for_a_field_never_fails() -> None:
    code = (
        "import logging, dualwrite.coordinator.dual_write\n"
        "logging.basicConfig(format='%(transactional_id)s|%(application)s|%(step)s|%(message)s')\n"
        "logging.getLogger('dualwrite').warning('plain')\n"
        "logging.getLogger('dualwrite').warning('%s: lost', 'orders-0')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "None|None|None|plain\norders-0|orders|None|orders-0: lost\n"
