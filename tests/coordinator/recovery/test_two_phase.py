"""How a transaction stays prepared: what the user may say, and what the producers are told."""

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import create_engine

from dualwrite import DualWrite
from dualwrite.client.config.reading import TIMEOUT_KEY, TWO_PHASE_KEY, step_timeout
from dualwrite.coordinator.kafka.timeout_watch import TimeoutWatch
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.recovery.predecessor import predecessor_transactions
from dualwrite.coordinator.recovery.prepared_predecessor import PreparedPredecessor
from dualwrite.coordinator.recovery.unprepared_predecessor import UnpreparedPredecessor
from dualwrite.coordinator.rules.two_phase import (
    KEEP_PREPARED,
    LONGEST_TIMEOUT_MS,
    OWNED_SETTINGS,
    RESUME,
    completed_config,
    require_mode,
    resume_timeout_ms,
)
from dualwrite.errors import ConfigurationError, PrepareFailedError
from tests.support.coordinator.event_table import CONFIG


@pytest.mark.parametrize(("delivery", "seconds"), [(0.3, 0.3), (30.0, 30.0), (600.0, 30.0)])
def test_a_step_takes_no_longer_than_a_record_and_never_minutes(delivery: float, seconds: float) -> None:
    assert step_timeout(delivery) == seconds


def asked(**options: Any) -> DualWrite:
    return DualWrite(create_engine("sqlite:///never-opened.db"), CONFIG, application="a", **options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"two_phase": "hope"}, "two_phase 'hope': use 'keep-prepared' or 'resume'"),
        ({"replay": True}, "replay: only with two_phase='resume'"),
        ({"replay": True, "two_phase": "keep-prepared"}, "replay: only with two_phase='resume'"),
    ],
)
def test_an_invalid_two_phase_mode_is_refused_with_one_line(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        asked(**options)
    assert "\n" not in str(caught.value)


def test_both_modes_are_accepted_and_replay_with_one_of_them() -> None:
    def is_accepted(mode: str, replay: bool) -> bool:
        with suppress(ConfigurationError):
            require_mode(mode, replay=replay)
            return True
        return False

    accepted = {
        (mode, replay) for mode in (KEEP_PREPARED, RESUME) for replay in (False, True) if is_accepted(mode, replay)
    }
    assert accepted == {(KEEP_PREPARED, False), (RESUME, False), (RESUME, True)}


def test_keep_prepared_mode_changes_no_producer_setting() -> None:
    assert completed_config(CONFIG, KEEP_PREPARED) == CONFIG
    assert predecessor_transactions(CONFIG, THIS_PROCESS) is PreparedPredecessor


def test_resume_mode_defaults_to_the_longest_timeout_that_a_cluster_accepts() -> None:
    settings = completed_config(CONFIG, RESUME)
    assert settings == {**CONFIG, TIMEOUT_KEY: LONGEST_TIMEOUT_MS, TWO_PHASE_KEY: False}
    made: Any = predecessor_transactions(settings, THIS_PROCESS)
    assert made.func is UnpreparedPredecessor


def test_resume_mode_honours_the_users_timeout() -> None:
    assert completed_config({**CONFIG, TIMEOUT_KEY: 2000}, RESUME)[TIMEOUT_KEY] == 2000
    assert completed_config({**CONFIG, TIMEOUT_KEY: None}, RESUME)[TIMEOUT_KEY] == 900_000
    assert resume_timeout_ms({TIMEOUT_KEY: 2000}) == 2000
    assert resume_timeout_ms({}) == LONGEST_TIMEOUT_MS


@pytest.mark.parametrize("key", sorted(OWNED_SETTINGS - {TIMEOUT_KEY}))
@pytest.mark.parametrize("mode", [KEEP_PREPARED, RESUME])
def test_settings_that_dualwrite_owns_are_refused_in_either_mode(mode: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f'"{key}" is set by DualWrite itself'):
        completed_config({**CONFIG, key: "x"}, mode)


def test_settings_that_are_no_mapping_are_refused() -> None:
    settings: Any = "bootstrap.servers=localhost:9092"
    with pytest.raises(ConfigurationError, match="kafka is a str: give a dict"):
        completed_config(settings, RESUME)


def test_a_transaction_that_never_expires_has_no_timeout_to_set() -> None:
    with pytest.raises(ConfigurationError, match=f'"{TIMEOUT_KEY}" is set by DualWrite itself'):
        completed_config({**CONFIG, TIMEOUT_KEY: 2000}, KEEP_PREPARED)


@pytest.mark.parametrize(("lasted", "is_prepared"), [(0.0, True), (0.89, True), (0.91, False), (5.0, False)])
def test_a_transaction_that_may_time_out_before_its_commit_is_not_prepared(lasted: float, is_prepared: bool) -> None:
    now = [100.0]
    watch = TimeoutWatch(1000, lambda: now[0])
    now[0] = 200.0
    watch.begin()
    now[0] += lasted
    if is_prepared:
        watch.require_time("app-0")
    else:
        with pytest.raises(PrepareFailedError, match="shorter, or the timeout longer") as caught:
            watch.require_time("app-0")
        assert caught.value.retriable
