"""The broker's settings: each takes what Kafka takes and this broker can do, and what it gives topics they may have."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.config import BrokerOptions, parse_config
from dualwrite.broker.core.consumer_groups.commands import Limits
from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.broker.settings.group_settings import GROUP_SETTINGS, setting_of_all_groups
from dualwrite.broker.settings.setting import SettingError
from dualwrite.broker.settings.topic_configs import broker_defaults, check_topic_config, topic_config
from dualwrite.broker.settings.topic_settings import TOPIC_SETTINGS
from dualwrite.errors import ConfigurationError

OF_TOPICS = {source.name: name for name, setting in TOPIC_SETTINGS.items() for source in setting.broker}


def options(*pairs: str) -> BrokerOptions:
    return BrokerOptions(Path("data"), config=parse_config(pairs))


REFUSED = [
    ("log.segment.bytes=9999999999", "Not a number of type INT"),
    ("log.segment.bytes=1024", "Value must be at least 1048576"),
    ("log.retention.hours=0", "Value must be -1, for no limit, or at least 1"),
    ("log.retention.minutes=0", "Value must be -1, for no limit, or at least 1"),
    ("log.retention.ms=0", "Value must be -1, for no limit, or at least 1"),
    ("log.retention.hours=9999999999", "Not a number of type INT"),
    ("log.roll.ms=0", "Value must be at least 1"),
    ("log.roll.hours=0", "Value must be at least 1"),
    ("log.roll.jitter.ms=-1", "Value must be at least 0"),
    ("log.roll.jitter.hours=-1", "Value must be at least 0"),
    ("log.index.size.max.bytes=0", "Value must be at least 4"),
    ("log.cleaner.backoff.ms=0", "Value must be at least 1"),
    ("log.flush.interval.messages=0", "Value must be at least 1"),
    ("default.replication.factor=3", "there is one node"),
    ("num.partitions=1_0", "Not a number of type INT"),
    ("num.partitions=１０", "Not a number of type INT"),  # noqa: RUF001  digits, but not those of ASCII
    ("num.partitions=", "Not a number of type INT"),
    ("log.retention.ms=", "Not a number of type LONG"),
    ("log.retention.hours=", "Not a number of type INT"),
    ("log.roll.ms=", "Not a number of type LONG"),
    ("log.flush.interval.ms=", "Not a number of type LONG"),
    ("log.preallocate=", "Expected value to be either true or false"),
    ("compression.type=", "String must be one of: "),
    ("log.cleanup.policy=compact,,delete", "Values must be distinct and of: compact, delete"),
    ("advertised.listeners=", "NAME://HOST:PORT, separated by commas"),
    ("advertised.listeners=PLAINTEXT://h:65536", "NAME://HOST:PORT, separated by commas"),
    ("listeners=", "NAME://HOST:PORT, separated by commas"),
    ("listeners=SSL://h:1,h:2", "NAME://HOST:PORT, separated by commas"),
    ("listener.security.protocol.map=SSL", "NAME:PROTOCOL, separated by commas"),
]


@pytest.mark.parametrize(("pair", "why"), REFUSED)
def test_invalid_values_are_refused_with_the_reason(pair: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^broker setting {re.escape(f'{pair}: {why}')}"):
        options(pair)


@pytest.mark.parametrize(
    ("pair", "topics", "value"),
    [
        ("log.retention.hours=-1", "retention_ms", -1),
        ("log.retention.hours=-5", "retention_ms", -1),
        ("log.retention.hours=2147483647", "retention_ms", 2147483647 * 3_600_000),
        ("log.retention.minutes=1", "retention_ms", 60_000),
        ("log.retention.ms=1", "retention_ms", 1),
        ("log.segment.bytes=2147483647", "segment_bytes", 2**31 - 1),
        ("log.cleanup.policy=", "cleanup_policy", frozenset()),
        ("log.cleanup.policy=delete, compact", "cleanup_policy", frozenset({"compact", "delete"})),
        ("log.cleaner.min.cleanable.ratio=0", "min_cleanable_dirty_ratio", 0.0),
    ],
)
def test_the_brokers_settings_are_the_topics_defaults(pair: str, topics: str, value: object) -> None:
    config = topic_config(broker_defaults(options(pair).config))
    assert getattr(config, topics) == value


@given(st.sampled_from(sorted(OF_TOPICS)), st.integers(-3, 2**33).map(str) | st.text(max_size=8))
def test_every_value_that_the_broker_accepts_is_allowed_for_topics(name: str, text: str) -> None:
    try:
        SETTINGS[name].read(name, text)
    except SettingError:
        return
    (given_to_topics,) = broker_defaults({name: text}).items()
    assert check_topic_config(dict([given_to_topics]), {})


@pytest.mark.parametrize(
    ("advertised", "address"),
    [
        ("PLAINTEXT://kafka.example:19092", ("kafka.example", 19092)),
        ("PLAINTEXT://under_score-1:1", ("under_score-1", 1)),
        ("PLAINTEXT://[::1]:9092", ("::1", 9092)),
        ("PLAINTEXT://[fe80::1%eth0]:9092", ("fe80::1%eth0", 9092)),
        (" PLAINTEXT://10.0.0.1:65535 ", ("10.0.0.1", 65535)),
    ],
)
def test_the_advertised_address_is_host_and_port(advertised: str, address: tuple[str, int]) -> None:
    (listener,) = options(f"advertised.listeners={advertised}").listeners
    assert (listener.advertised_host, listener.advertised_port) == address


def test_an_address_that_is_not_given_is_the_one_to_listen_on() -> None:
    (listener,) = options("listeners=PLAINTEXT://h:1").listeners
    assert (listener.advertised_host, listener.advertised_port) == ("h", 1)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (
            ("log.cleaner.min.compaction.lag.ms=10", "log.cleaner.max.compaction.lag.ms=9"),
            "min.compaction.lag.ms (10) > max.compaction.lag.ms (9)",
        ),
        (
            ("group.min.session.timeout.ms=9", "group.max.session.timeout.ms=8"),
            "group.min.session.timeout.ms=9: no member could join, because group.max.session.timeout.ms is 8",
        ),
        (("group.min.session.timeout.ms=1800001",), "group.max.session.timeout.ms is 1800000"),
        (
            ("group.consumer.min.session.timeout.ms=9", "group.consumer.max.session.timeout.ms=8"),
            "group.consumer.min.session.timeout.ms=9: no group could have a value of its own,"
            " because group.consumer.max.session.timeout.ms is 8",
        ),
        (
            ("group.consumer.max.heartbeat.interval.ms=4999",),
            "group.consumer.min.heartbeat.interval.ms=5000: no group could have a value of its own,"
            " because group.consumer.max.heartbeat.interval.ms is 4999",
        ),
        (("group.consumer.heartbeat.interval.ms=45000",), "must be less than group.consumer.session.timeout.ms"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(pairs: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        options(*pairs)


def test_the_limits_of_groups_are_not_those_of_the_broker() -> None:
    given = ("session.timeout.ms=900", "min.session.timeout.ms=1000", "heartbeat.interval.ms=1")
    settings = options(*(f"group.consumer.{pair}" for pair in given)).consumer_groups
    assert (settings.session_timeout_ms, settings.heartbeat_interval_ms) == (900, 1)
    assert settings.session_timeout_limits == Limits(1_000, 60_000)
    assert settings.heartbeat_interval_limits == Limits(5_000, 15_000)


@pytest.mark.parametrize("name", GROUP_SETTINGS)
def test_a_setting_of_a_group_has_the_type_and_the_default_of_the_brokers(name: str) -> None:
    own, of_all = GROUP_SETTINGS[name], SETTINGS[setting_of_all_groups(name)]
    assert (own.type, own.default, own.allowed) == (of_all.type, of_all.default, of_all.allowed)
    assert own.documentation.endswith(".")


def test_a_setting_that_is_given_twice_is_refused_even_with_the_same_value() -> None:
    with pytest.raises(ConfigurationError, match=r"num\.partitions is given twice: '1' and '2'"):
        parse_config(["num.partitions=1", " num.partitions = 2"])
    with pytest.raises(ConfigurationError, match="given twice"):
        parse_config(["num.partitions=1", "num.partitions=1"])


@pytest.mark.parametrize("name", SETTINGS)
def test_every_default_is_a_value_that_its_setting_takes_and_every_setting_is_documented(name: str) -> None:
    setting = SETTINGS[name]
    if setting.default is not None:
        setting.read(name, setting.default)
    assert setting.documentation.endswith(".")
    assert setting.allowed.startswith(setting.type.name)


def test_the_replication_of_one_node_may_be_set() -> None:
    assert options("default.replication.factor=1").number("default.replication.factor") == 1
