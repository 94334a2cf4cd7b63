"""No client writes a line of its own into the broker's log."""

import logging
import re
import time
from pathlib import Path

import pytest

from dualwrite.broker.process.log_lines import OneLineFormatter
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests import calls
from tests.support.requests.group_calls import join, joined_member
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import handshake
from tests.support.waiting import eventually

FORGED = "2026-01-01 00:00:00,000 CRITICAL dualwrite.broker: forged"
EVIL = f"x\n{FORGED}\r{FORGED}\x1b[2K"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) dualwrite[.\w]*: ")


def lines_of(log: Path) -> list[str]:
    text = log.read_text()
    assert "\r" not in text
    assert "\x1b" not in text
    return text.splitlines()


@pytest.mark.slow
def test_names_that_contain_a_line_end_write_no_line(tmp_path: Path) -> None:
    """A transactional id, a group, a client id and a member id, in every line of the log that a client can cause."""
    config = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "10",
        "transactional.id.expiration.ms": "2147483647",
    }
    with ForkedBroker(tmp_path, config=config) as broker:
        with RawClient(broker.bootstrap_servers, client_id=EVIL) as client:
            topic = calls.new_topic(client)
            producer = calls.identity(calls.init(client, EVIL, timeout_ms=100))
            calls.open_transaction(client, EVIL, producer, {(topic, 0): [b"v"]})
            joined_member(client, EVIL, topic, session_timeout_ms=3000)
            assert join(client, EVIL, "no member").error_code == ErrorCode.UNKNOWN_MEMBER_ID
        log = tmp_path / "broker.log"
        for words in ("it is past its timeout", "did not get", "is Stable in generation"):
            assert eventually(lambda words=words: words in log.read_text(), bool), words
    lines = lines_of(log)
    assert all(map(LINE.match, lines)), [line for line in lines if not LINE.match(line)]
    assert not [line for line in lines if line.startswith(FORGED)]
    assert r"the transaction of 'x\n2026" in log.read_text()


def test_a_mechanism_that_contains_a_line_end_writes_no_line(tmp_path: Path) -> None:
    config = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "connection.failed.authentication.delay.ms": "0"}
    with ForkedBroker(tmp_path, config=config) as broker:
        with RawClient(broker.listeners["SASL_PLAINTEXT"]) as client:
            assert handshake(client, "X\n2026 CRITICAL forged").error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        log = tmp_path / "broker.log"
        assert eventually(lambda: "the mechanism is not enabled" in log.read_text(), bool)
    lines = lines_of(log)
    assert all(map(LINE.match, lines)), lines


def test_a_record_is_one_line_and_its_traceback_has_more() -> None:
    def formatted(message: str, **more: object) -> str:
        fields = {"name": "dualwrite.x", "levelname": "INFO", "msg": "%s", "args": (message,), "created": time.time()}
        return OneLineFormatter().format(logging.makeLogRecord({**fields, **more}))

    assert formatted("a\nb\x00").endswith(r" INFO dualwrite.x: a\nb\x00")
    with pytest.raises(ValueError, match="bad") as caught:
        raise ValueError("bad")
    failed = (ValueError, caught.value, caught.tb)
    first, second, *_ = formatted("a\nb", exc_info=failed).splitlines()
    assert first.endswith(r"a\nb")
    assert second.startswith("  Traceback")
