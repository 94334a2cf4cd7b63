"""The settings of topics: what is taken, what is refused and how, and what they come to over the broker's."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.settings.setting import ConfigType, SettingError, read_value
from dualwrite.broker.settings.topic_configs import TopicConfig, broker_defaults, check_topic_config, topic_config
from dualwrite.broker.settings.topic_settings import SMALLEST_SEGMENT_BYTES, TOPIC_SETTINGS

LARGEST_LONG = 2**63 - 1

TAKEN = [
    ("cleanup.policy", "compact"),
    ("cleanup.policy", "compact, delete"),
    ("cleanup.policy", ""),
    ("compression.type", "producer"),
    ("compression.type", "zstd"),
    ("compression.gzip.level", "-1"),
    ("compression.zstd.level", "-131072"),
    ("flush.ms", str(LARGEST_LONG)),
    ("flush.ms", "0"),
    ("flush.messages", "1"),
    ("follower.replication.throttled.replicas", "0:0,1:0"),
    ("leader.replication.throttled.replicas", "*"),
    ("leader.replication.throttled.replicas", ""),
    ("max.message.bytes", "0"),
    ("max.message.bytes", " 1000 "),
    ("message.timestamp.type", "LogAppendTime"),
    ("min.cleanable.dirty.ratio", "1e-3"),
    ("min.insync.replicas", "1"),
    ("preallocate", "FALSE"),
    ("remote.storage.enable", "false"),
    ("retention.bytes", "-7"),
    ("retention.ms", "-1"),
    ("segment.bytes", str(SMALLEST_SEGMENT_BYTES)),
    ("segment.bytes", str(2**31 - 1)),
    ("unclean.leader.election.enable", "true"),
]
REFUSED = [
    ("cleanup.policy", "squeeze", "distinct and of: compact, delete"),
    ("cleanup.policy", "delete,delete", "distinct"),
    ("compression.gzip.level", "0", "[1,...,9] or -1"),
    ("compression.lz4.level", "8", "one level here"),
    ("compression.type", "brotli", "must be one of"),
    ("errors.deadletterqueue.group.enable", "true", "no share groups"),
    ("flush.messages", "0", "at least 1"),
    ("flush.ms", "-1", "at least 0"),
    ("leader.replication.throttled.replicas", "0-0", "partition:broker"),
    ("leader.replication.throttled.replicas", "*,0:0", "partition:broker"),
    ("max.message.bytes", "-1", "at least 0"),
    ("max.message.bytes", "", "type INT"),
    ("max.message.bytes", "1e3", "type INT"),
    ("max.message.bytes", "1_000", "type INT"),
    ("max.message.bytes", "٣", "type INT"),
    ("max.message.bytes", "9" * 5000, "type INT"),
    ("max.message.bytes", str(2**31), "type INT"),
    ("message.timestamp.type", "createtime", "CreateTime, LogAppendTime"),
    ("min.cleanable.dirty.ratio", "1.1", "between 0 and 1"),
    ("min.cleanable.dirty.ratio", "nan", "type DOUBLE"),
    ("min.cleanable.dirty.ratio", "half", "type DOUBLE"),
    ("min.insync.replicas", "0", "at least 1"),
    ("min.insync.replicas", "2", "one replica in sync"),
    ("preallocate", "yes", "either true or false"),
    ("preallocate", "true", "does not preallocate"),
    ("remote.storage.enable", "true", "Tiered Storage"),
    ("retention.ms", "-2", "at least -1"),
    ("retention.ms", str(2**63), "type LONG"),
    ("segment.bytes", str(SMALLEST_SEGMENT_BYTES - 1), f"at least {SMALLEST_SEGMENT_BYTES}"),
]


@pytest.mark.parametrize(("name", "text"), TAKEN)
def test_a_value_that_is_taken_is_kept_as_it_was_given(name: str, text: str) -> None:
    assert check_topic_config({name: text}, {}) == {name: text}


@pytest.mark.parametrize(("name", "text", "why"), REFUSED)
def test_a_value_that_is_refused_is_named_with_the_reason(name: str, text: str, why: str) -> None:
    with pytest.raises(SettingError) as refused:
        check_topic_config({name: text}, {})
    assert str(refused.value).startswith(f"Invalid value {text[:80]} for configuration {name}: ")
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"no.such.setting": "1"}, "Unknown topic config name: no.such.setting"),
        ({"log.retention.ms": "1"}, "Unknown topic config name: log.retention.ms"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
    ],
)
def test_unknown_topic_settings_are_refused_in_kafkas_words(configs: Mapping[str, str | None], message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}$"):
        check_topic_config(configs, {})


def test_lags_that_contradict_each_other_are_refused_wherever_they_come_from() -> None:
    lags = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}
    least, most = ({name: text} for name, text in lags.items())
    for own, defaults in ((lags, {}), (least, most), (most, least)):
        with pytest.raises(SettingError, match=r"min.compaction.lag.ms \(10\) > max.compaction.lag.ms \(9\)"):
            check_topic_config(own, defaults)
    assert check_topic_config({"min.compaction.lag.ms": "9"}, most)


@pytest.mark.parametrize("name", TOPIC_SETTINGS)
def test_every_default_is_a_value_that_its_setting_takes_and_every_setting_is_documented(name: str) -> None:
    setting = TOPIC_SETTINGS[name]
    setting.read(name, setting.default)
    assert setting.documentation.endswith(".")


def test_the_defaults_are_kafkas() -> None:
    assert topic_config() == TopicConfig(
        cleanup_policy=frozenset({"delete"}),
        compression_gzip_level=-1,
        compression_type="producer",
        compression_zstd_level=3,
        delete_retention_ms=86_400_000,
        file_delete_delay_ms=60_000,
        flush_messages=LARGEST_LONG,
        flush_ms=LARGEST_LONG,
        index_interval_bytes=4096,
        max_compaction_lag_ms=LARGEST_LONG,
        max_message_bytes=1_048_588,
        message_timestamp_after_max_ms=3_600_000,
        message_timestamp_before_max_ms=LARGEST_LONG,
        message_timestamp_type="CreateTime",
        min_cleanable_dirty_ratio=0.5,
        min_compaction_lag_ms=0,
        min_insync_replicas=1,
        retention_bytes=-1,
        retention_ms=604_800_000,
        segment_bytes=1_073_741_824,
        segment_index_bytes=10_485_760,
        segment_ms=604_800_000,
    )


def test_a_topics_own_setting_covers_the_brokers_and_that_kafkas_default() -> None:
    broker = {"retention.ms": "5", "segment.ms": "6"}
    config = topic_config(broker, {"segment.ms": "7"})
    assert (config.retention_ms, config.segment_ms, config.retention_bytes) == (5, 7, -1)


@pytest.mark.parametrize(
    ("policy", "compacts", "deletes", "roll_ms"),
    [("delete", False, True, 9), ("compact", True, False, 3), ("compact,delete", True, True, 3), ("", False, False, 9)],
)
def test_a_cleanup_policy_sets_compaction_deletion_and_roll_time(
    policy: str, compacts: bool, deletes: bool, roll_ms: int
) -> None:
    config = topic_config({"cleanup.policy": policy, "segment.ms": "9", "max.compaction.lag.ms": "3"})
    assert (config.compacts, config.deletes, config.roll_ms) == (compacts, deletes, roll_ms)


@pytest.mark.parametrize(
    ("given", "defaults"),
    [
        ({}, {}),
        ({"message.max.bytes": "5", "num.partitions": "3"}, {"max.message.bytes": "5"}),
        ({"log.retention.hours": "2"}, {"retention.ms": "7200000"}),
        ({"log.retention.hours": "-1"}, {"retention.ms": "-1"}),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, {"retention.ms": "180000"}),
        ({"log.retention.ms": "7", "log.retention.minutes": "3"}, {"retention.ms": "7"}),
        ({"log.cleanup.policy": ""}, {"cleanup.policy": ""}),
        (
            {"log.roll.hours": "1", "log.cleanup.policy": "compact"},
            {"segment.ms": "3600000", "cleanup.policy": "compact"},
        ),
    ],
)
def test_the_brokers_settings_give_the_topics_their_defaults(
    given: Mapping[str, str], defaults: Mapping[str, str]
) -> None:
    assert broker_defaults(given) == defaults


@given(st.sampled_from(ConfigType), st.text(max_size=30))
def test_any_text_is_read_or_refused_with_a_value_error(kind: ConfigType, text: str) -> None:
    try:
        value = read_value(kind, text)
    except ValueError as error:
        assert str(error).startswith(("Expected value to be", "Not a number of type"))  # noqa: PT017 - or a value
    else:
        types = {ConfigType.BOOLEAN: bool, ConfigType.DOUBLE: float, ConfigType.STRING: str, ConfigType.LIST: list}
        types[ConfigType.PASSWORD] = str
        assert type(value) is types.get(kind, int)
