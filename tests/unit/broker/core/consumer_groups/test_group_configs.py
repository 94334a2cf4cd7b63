"""A group's own settings: which are refused, and what the rest mean under the broker's limits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.core.consumer_groups.commands import ConsumerGroupSettings, ConsumerTimerKind, Limits
from dualwrite.broker.core.consumer_groups.group_configs import check_group_configs, problems, with_group_configs
from dualwrite.broker.settings.setting import SettingError
from tests.support.broker.group_worlds.consumer import ConsumerWorld, join

SESSION, HEARTBEAT, ASSIGNMENT = (
    "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms",
)  # fmt: skip
BROKERS = ConsumerGroupSettings()
OPEN = ConsumerGroupSettings(session_timeout_limits=Limits(1, 90_000), heartbeat_interval_limits=Limits(1, 90_000))
"""The broker's defaults, with limits under which a session can be shorter than a heartbeat interval."""

numbers = st.integers(1, 100_000)
limits = st.tuples(numbers, numbers).map(lambda pair: Limits(min(pair), max(pair)))
brokers = st.builds(
    lambda session, interval, *both: ConsumerGroupSettings(
        max(session, interval + 1), interval, session_timeout_limits=both[0], heartbeat_interval_limits=both[1]
    ),
    numbers, numbers, limits, limits,
)  # fmt: skip
own_configs = st.dictionaries(st.sampled_from([SESSION, HEARTBEAT]), numbers.map(str))


def refusal(configs: dict[str, str], settings: ConsumerGroupSettings = BROKERS) -> str | None:
    """Why a group may not have ``configs``; None if it may."""
    try:
        check_group_configs(configs, settings)
    except SettingError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {SESSION: "45000"},
        {SESSION: " 60000 "},
        {HEARTBEAT: "5000"},
        {HEARTBEAT: "15000"},
        {ASSIGNMENT: "0"},
        {SESSION: "50000", HEARTBEAT: "6000", ASSIGNMENT: "0"},
    ],
)
def test_what_lies_within_the_brokers_limits_is_accepted(configs: dict[str, str]) -> None:
    assert refusal(configs) is None


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({SESSION: "44999"}, f"{SESSION} must be in the range 45000 to 60000 inclusive."),
        ({SESSION: "60001"}, f"{SESSION} must be in the range 45000 to 60000 inclusive."),
        ({HEARTBEAT: "4999"}, f"{HEARTBEAT} must be in the range 5000 to 15000 inclusive."),
        ({HEARTBEAT: "15001"}, f"{HEARTBEAT} must be in the range 5000 to 15000 inclusive."),
        ({HEARTBEAT: "0"}, f"Invalid value 0 for configuration {HEARTBEAT}: Value must be at least 1"),
        ({HEARTBEAT: ""}, f"Invalid value  for configuration {HEARTBEAT}: Not a number of type INT"),
        ({SESSION: "soon"}, f"Invalid value soon for configuration {SESSION}: Not a number of type INT"),
        ({SESSION: "3000000000"}, f"Invalid value 3000000000 for configuration {SESSION}: Not a number of type INT"),
        ({"no.such": "1", SESSION: "soon"}, "Unknown group config name: no.such"),
        ({SESSION: "soon", "no.such": "1"}, "Unknown group config name: no.such"),
        ({"share.session.timeout.ms": "45000"}, "Unknown group config name: share.session.timeout.ms"),
        ({SESSION: "1", HEARTBEAT: "1"}, f"{HEARTBEAT} must be in the range 5000 to 15000 inclusive."),
    ],
)
def test_a_refusal_has_kafkas_words(configs: dict[str, str], message: str) -> None:
    assert refusal(configs) == message


def test_an_interval_between_assignments_is_refused_with_the_reason() -> None:
    message = refusal({ASSIGNMENT: "100"})
    assert message == f"Invalid value 100 for configuration {ASSIGNMENT}: the broker assigns partitions at once"


@pytest.mark.parametrize(
    ("configs", "is_accepted"),
    [
        ({SESSION: "5001"}, True),
        ({SESSION: "5000"}, False),
        ({HEARTBEAT: "44999"}, True),
        ({HEARTBEAT: "45000"}, False),
        ({SESSION: "300", HEARTBEAT: "299"}, True),
        ({SESSION: "300", HEARTBEAT: "300"}, False),
    ],
)
def test_the_session_is_longer_than_the_interval_also_where_one_is_the_brokers(
    configs: dict[str, str], is_accepted: bool
) -> None:
    expected = None if is_accepted else f"{SESSION} must be greater than {HEARTBEAT}"
    assert refusal(configs, OPEN) == expected


def test_what_the_broker_itself_has_is_no_groups_fault() -> None:
    odd = replace(BROKERS, session_timeout_ms=1_000, heartbeat_interval_ms=100)
    assert refusal({ASSIGNMENT: "0"}, replace(odd, session_timeout_ms=100)) is None
    assert refusal({}, odd) is None
    assert refusal({SESSION: "45000"}, odd) is None
    assert refusal({HEARTBEAT: "5000"}, odd) == f"{SESSION} must be greater than {HEARTBEAT}"


def test_a_groups_own_values_override_the_brokers() -> None:
    assert with_group_configs(BROKERS, {SESSION: "50000"}) == replace(BROKERS, session_timeout_ms=50_000)
    assert with_group_configs(BROKERS, {HEARTBEAT: " 6000 "}) == replace(BROKERS, heartbeat_interval_ms=6_000)
    assert with_group_configs(BROKERS, {ASSIGNMENT: "0", "of.a.later.release": "x"}) == BROKERS


@pytest.mark.parametrize(
    ("configs", "session", "interval", "messages"),
    [
        ({SESSION: "50000"}, 50_000, 5_000, []),
        (
            {SESSION: "70000", HEARTBEAT: "1000"},
            60_000,
            5_000,
            [
                f"its {HEARTBEAT}=1000 is outside of the broker's limits, 5000 to 15000; 5000 applies",
                f"its {SESSION}=70000 is outside of the broker's limits, 45000 to 60000; 60000 applies",
            ],
        ),
    ],
)
def test_the_nearest_value_applies_when_the_limits_have_changed(
    configs: dict[str, str], session: int, interval: int, messages: list[str]
) -> None:
    effective = with_group_configs(BROKERS, configs)
    assert (effective.session_timeout_ms, effective.heartbeat_interval_ms) == (session, interval)
    assert list(problems(configs, BROKERS)) == messages


def test_a_session_that_is_too_short_for_the_present_interval_is_reported() -> None:
    (message,) = problems({SESSION: "4000"}, OPEN)
    assert message == (
        "its session timeout of 4000 ms is not longer than its heartbeat interval of 5000 ms,"
        " so it removes members that are alive"
    )


@given(brokers, own_configs)
def test_a_value_is_as_it_was_set_or_was_refused_or_is_reported(
    settings: ConsumerGroupSettings, configs: dict[str, str]
) -> None:
    effective = with_group_configs(settings, configs)
    for name, value, brokers_own, its_limits in (
        (SESSION, effective.session_timeout_ms, settings.session_timeout_ms, settings.session_timeout_limits),
        (
            HEARTBEAT,
            effective.heartbeat_interval_ms,
            settings.heartbeat_interval_ms,
            settings.heartbeat_interval_limits,
        ),
    ):
        if name in configs:
            assert its_limits.least <= value <= its_limits.most
        else:
            assert value == brokers_own
    if refusal(configs, settings) is None:
        assert list(problems(configs, settings)) == []
        assert effective == replace(
            settings,
            session_timeout_ms=int(configs.get(SESSION, settings.session_timeout_ms)),
            heartbeat_interval_ms=int(configs.get(HEARTBEAT, settings.heartbeat_interval_ms)),
        )
    else:
        assert list(problems(configs, settings)) != []


def test_the_rules_use_the_values_of_the_group() -> None:
    world = ConsumerWorld()
    world.ask(join("m1", "t"))
    assert world.delay(ConsumerTimerKind.SESSION, "m1") == 45_000
    world.settings = with_group_configs(world.settings, {SESSION: "50000", HEARTBEAT: "6000"})
    assert world.delay(ConsumerTimerKind.SESSION, "m1") == 45_000, "a session that runs keeps its end"
    assert world.beat("m1", 2).heartbeat_interval_ms == 6_000
    assert world.delay(ConsumerTimerKind.SESSION, "m1") == 50_000
