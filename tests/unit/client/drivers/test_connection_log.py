"""What drivers log: each trouble once, what is over, and settings to no effect."""

import logging

import pytest

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.drivers.connection_log import ConnectionLog
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import KafkaUnavailableError

HERE = Endpoint("b", 1)
SETTINGS = ClientSettings((HERE,))
REFUSED = KafkaUnavailableError("broker b:1: Connection refused")
RESET = KafkaUnavailableError("broker b:1: Connection reset by peer")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "dualwrite")
    return caplog


def lines(said: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in said.records if record.name == "dualwrite"]


def test_a_healthy_connection_is_not_logged_above_debug(said: pytest.LogCaptureFixture) -> None:
    log = ConnectionLog(SETTINGS)
    log.opening(HERE)
    log.opened(HERE)
    log.closed(HERE, 0)
    assert lines(said) == [
        ("DEBUG", "broker b:1: connecting"),
        ("DEBUG", "broker b:1: connected"),
        ("DEBUG", "broker b:1: connection closed: it was idle"),
    ]


def test_a_repeated_connection_error_is_warned_about_once_a_minute_and_its_end_logged(
    said: pytest.LogCaptureFixture,
) -> None:
    log = ConnectionLog(SETTINGS)
    for now in (10.0, 11.0, 69.9, 70.0):
        log.lost(HERE, REFUSED, now, is_idle=False)
    log.lost(Endpoint("c", 2), REFUSED, 70.0, is_idle=False)
    log.lost(HERE, RESET, 71.0, is_idle=False)
    log.opened(HERE)
    log.opened(HERE)
    assert [level for level, _ in lines(said)] == [
        *("WARNING", "DEBUG", "DEBUG", "WARNING", "WARNING", "WARNING", "INFO", "DEBUG")
    ]
    assert lines(said)[0] == ("WARNING", str(REFUSED))
    assert lines(said)[-2] == ("INFO", "broker b:1: connected")


def test_a_broker_closing_an_idle_connection_is_logged_as_info(said: pytest.LogCaptureFixture) -> None:
    log = ConnectionLog(SETTINGS)
    log.lost(HERE, RESET, 1.0, is_idle=True)
    log.opened(HERE)
    assert lines(said) == [("INFO", str(RESET)), ("DEBUG", "broker b:1: connected")]


def test_a_connection_that_is_given_up_says_for_how_many_answers(said: pytest.LogCaptureFixture) -> None:
    ConnectionLog(SETTINGS).closed(HERE, 2)
    assert lines(said) == [("WARNING", "broker b:1: connection closed: 2 requests were not answered in time")]


def test_settings_to_no_effect_are_named(said: pytest.LogCaptureFixture) -> None:
    config = {"bootstrap.servers": "b:1", "sasl.username": "u", "sasl.password": "hunter2"}
    ConnectionLog(ClientSettings.from_config(config))
    assert lines(said) == [("WARNING", "without effect: sasl.username, sasl.password: see security.protocol")]
