"""The log as JSON has one object a line whatever clients send, and no secret is in the log of either format."""

import base64
import json
import logging
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.process.log_lines import JsonLineFormatter, OneLineFormatter, log_to_file
from dualwrite.errors import ConfigurationError
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.broker_process import refused
from tests.support.monitoring.measured import MeasuredBroker, measured_broker
from tests.support.requests import calls
from tests.support.requests.group_calls import join, joined_member
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, PASSWORD, add_users, handshake, log_in, send_token, unsecured_token
from tests.support.waiting import eventually

FORGED = '{"level": "CRITICAL", "logger": "dualwrite.broker", "message": "forged"}'
EVIL = f"x\n{FORGED}\r\n{FORGED}\x00\x1b[2K\u2028\x85"
RECORD, WRONG_PASSWORD = b"a record's value", "not the password"
SETTINGS = (
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=50",
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=10",
    "connection.failed.authentication.delay.ms=0",
    "sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN,OAUTHBEARER",
    "sasl.oauthbearer.unsecured.tokens.allow=true",
)


def attack(broker: MeasuredBroker) -> None:
    """Names with line ends, and secrets in all places where clients send them."""
    with RawClient(broker.address, client_id=EVIL) as client:
        topic = calls.new_topic(client)
        producer = calls.identity(calls.init(client, EVIL, timeout_ms=100))
        calls.open_transaction(client, EVIL, producer, {(topic, 0): [RECORD]})
        joined_member(client, EVIL, topic, session_timeout_ms=3000)
        assert join(client, EVIL, "no member").error_code == ErrorCode.UNKNOWN_MEMBER_ID
        client.send_bytes(b"\x00\x00\x00\x20" + RECORD * 2)  # no request at all
    for mechanism, user in (("SCRAM-SHA-512", "mallory"), ("PLAIN", EVIL.replace("\0", ""))):
        with RawClient(broker.secure_address, client_id=EVIL) as client:
            log_in(client, mechanism, user=user, password=WRONG_PASSWORD)
        with RawClient(broker.secure_address, client_id=EVIL) as client:
            log_in(client, mechanism)
    with RawClient(broker.secure_address) as client:
        log_in(client, "OAUTHBEARER", user=EVIL)
    with RawClient(broker.secure_address) as client:
        handshake(client, "OAUTHBEARER")
        send_token(client, b"n,,\x01auth=Bearer " + unsecured_token(lifetime=-3600).encode() + b"\x01\x01")
    with RawClient(broker.secure_address) as client:
        handshake(client, EVIL)
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port))) as http:
        http.sendall(b"GET / HTTP/1.1\r\nAuthorization: Basic " + base64.b64encode(RECORD) + b"\r\n\r\n")
        http.recv(1)


def secrets() -> list[str]:
    """What no log may contain, in any form that a log might show it."""
    token = unsecured_token(lifetime=-3600)
    raw = [PASSWORD, WRONG_PASSWORD, RECORD.decode(), *token.split(".")[:1]]
    encoded = [base64.b64encode(text.encode()).decode().rstrip("=") for text in raw[:3]]
    return [*raw, *encoded, repr(PASSWORD.encode())[2:-1], json.dumps(PASSWORD)[1:-1]]


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_no_client_writes_a_line_and_no_secret_is_in_one(tmp_path: Path, log_format: str) -> None:
    add_users(tmp_path / "data")
    with measured_broker(tmp_path, *SETTINGS, options=("--log-format", log_format)) as broker:
        attack(broker)
        words = ("it is past its timeout", "did not get", "the mechanism is not enabled", "HTTP", "invalid token")
        for text in words:
            assert eventually(lambda text=text: text in broker.log.read_text(), bool), text
    log = broker.log.read_text()
    assert [secret for secret in secrets() if secret in log] == []
    assert "dualwrite.broker.audit" in log
    lines = log.split("\n")[:-1]
    assert not any(line.startswith(FORGED) for line in lines)
    if log_format == "json":
        objects = [json.loads(line) for line in lines]
        assert all({"time", "level", "logger", "message"} <= set(line) for line in objects)
        assert "CRITICAL" not in {line["level"] for line in objects}
        assert {line["client_id"] for line in objects if line["logger"] == "dualwrite.broker.audit"} == {EVIL}
    else:
        assert all(line[:4].isdigit() for line in lines)
    assert log.isascii() or log_format == "text"


def test_the_secrets_would_be_found() -> None:
    """A control: the test above looks for what the clients did send."""
    assert PASSWORD in secrets()
    assert unsecured_token(ALICE).split(".")[0] in secrets()


def record(message: str, **more: object) -> logging.LogRecord:
    fields = {"name": "dualwrite.x", "levelname": "INFO", "msg": "%s", "args": (message,), "created": 1e9 + 0.25}
    return logging.makeLogRecord({**fields, **more})


@pytest.mark.slow
@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_any_record_is_one_object_in_ascii(message: str, fields: dict[str, str]) -> None:
    line = JsonLineFormatter().format(record(message, fields=fields))
    assert line.isascii()
    assert line.isprintable()
    own = {"time": "2001-09-09T01:46:40.250Z", "level": "INFO", "logger": "dualwrite.x", "message": message}
    assert json.loads(line) == {**fields, **own}


def test_a_traceback_is_in_the_object_of_its_record() -> None:
    with pytest.raises(ValueError, match="bad") as caught:
        raise ValueError("bad\nworse")
    line = json.loads(JsonLineFormatter().format(record("failed", exc_info=(ValueError, caught.value, caught.tb))))
    assert line["message"] == "failed"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: bad\nworse")


def test_a_traceback_that_quotes_a_client_writes_no_line_of_its_own() -> None:
    with pytest.raises(ValueError, match="x") as caught:
        raise ValueError(f"x\n2026-01-01 00:00:00,000 INFO dualwrite.broker.audit: forged\r{EVIL}")
    text = OneLineFormatter().format(record("failed", exc_info=(ValueError, caught.value, caught.tb)))
    first, *others = text.split("\n")
    assert first.endswith("INFO dualwrite.x: failed")
    assert all(line.startswith("  ") and line.isprintable() for line in others)
    assert "Traceback" in others[0]


def test_an_audit_log_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no" / "audit.log"
    line = refused("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--audit-log", str(path))
    assert line == f"dualwrite: audit log {path}: No such file or directory"


def test_acts_are_in_the_log_if_their_own_file_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("tests.audit")
    log_to_file(logger.name, tmp_path / "audit.log")
    try:
        logger.warning("first")
        (tmp_path / "audit.log").unlink()
        (tmp_path / "audit.log").mkdir()  # it cannot be opened again
        logger.warning("second")
    finally:
        (handler,) = logger.handlers
        logger.removeHandler(handler)
        handler.close()
    assert [each.getMessage() for each in caplog.records if each.name == logger.name] == ["second"]
    assert f"audit log {tmp_path / 'audit.log'}: " in caplog.text


def test_the_directory_of_an_audit_log_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        log_to_file("tests.audit", tmp_path / "no" / "audit.log")
