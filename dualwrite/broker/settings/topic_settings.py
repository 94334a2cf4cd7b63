"""Every setting of a topic that Kafka 4.4 knows, with the values that this broker accepts.

A setting that applies here has its effect. A setting that does not apply on a single node, or not yet, is accepted only
with the values that are true here, so that no client relies on something that does not hold.
Sources: Kafka's TopicConfig, LogConfig (types, defaults, ranges) and ServerTopicConfigSynonyms (the broker's settings).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dualwrite.broker.settings.setting import (
    ANYTHING,
    Allowed,
    ConfigType,
    Setting,
    at_least,
    between,
    one_of,
    only,
    some_of,
)

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
LONG, DOUBLE, LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST

COMPACT, DELETE = "compact", "delete"
SMALLEST_SEGMENT_BYTES = 1024 * 1024
"""The lowest segment.bytes of a topic (KIP-1030)."""

_MOST = str(2**63 - 1)
_WEEK_MS = "604800000"
_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
_NO_TIERS = (
    "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
)
_THROTTLED = re.compile(r"\*|(\d+:\d+(,\d+:\d+)*)?")


@dataclass(frozen=True, slots=True)
class BrokerDefault:
    """A broker setting that is the default of a topic setting. ``factor`` converts its unit to the topic's; ``rules``
    apply to it in addition to the topic's rules."""

    name: str
    factor: int = 1
    rules: tuple[Allowed, ...] = ()

    def as_topics(self, text: str) -> str:
        """``text`` of the broker's setting, which must be valid, as a text of the topic's setting."""
        return text if self.factor == 1 else str(self._scaled(int(text)))

    def in_own_unit(self, rule: Allowed) -> Allowed:
        """``rule`` of the topic's setting, converted for the broker's setting."""
        return rule if self.factor == 1 else Allowed(rule.says, lambda value: rule.holds(self._scaled(value)))

    def _scaled(self, number: int) -> int:
        """The number in the topic's unit; a negative time means no limit."""
        return number * self.factor if number >= 0 else -1


@dataclass(frozen=True, slots=True)
class TopicSetting(Setting):
    """One setting of a topic. Its default comes from the first setting of ``broker`` that is set."""

    default: str
    broker: tuple[BrokerDefault, ...] = ()

    def of_broker(self, source: BrokerDefault) -> Setting:
        """The broker's setting ``source``, which allows the values that the topic's setting allows. Among several with
        the same meaning, the last has the default; the others have no value until they are set."""
        default, kind, meaning = self.default, self.type, self.documentation
        if source.factor != 1:
            default, kind = str(int(self.default) // source.factor), ConfigType.INT
            meaning = f"{self.broker[0].name} in {source.name.rpartition('.')[2]}, used if that is not set."
        rules = (*(source.in_own_unit(rule) for rule in self.rules), *source.rules)
        return Setting(kind, default if source == self.broker[-1] else None, rules, meaning)


def _setting(
    kind: ConfigType, default: str, rules: Allowed | tuple[Allowed, ...], documentation: str, *broker: str
) -> TopicSetting:
    known = tuple(BrokerDefault(name, _FACTORS.get(name, 1), _RULES.get(name, ())) for name in broker)
    return TopicSetting(kind, default, rules if isinstance(rules, tuple) else (rules,), documentation, known)


_NOT_AT_ONCE = (Allowed("Value must be -1, for no limit, or at least 1", lambda value: value != 0),)
_RULES = dict.fromkeys(("log.retention.ms", "log.retention.minutes", "log.retention.hours"), _NOT_AT_ONCE)
"""Rules for broker settings in addition to the topics' rules (Kafka: KafkaConfig.validateValues)."""
_FACTORS = {
    "log.roll.hours": _HOUR_MS,
    "log.roll.jitter.hours": _HOUR_MS,
    "log.retention.minutes": _MINUTE_MS,
    "log.retention.hours": _HOUR_MS,
}
_throttled = Allowed("a list of partition:broker, or *", lambda items: bool(_THROTTLED.fullmatch(",".join(items))))
_one_node = only(1, "a single node is the one replica in sync")

TOPIC_SETTINGS: Mapping[str, TopicSetting] = {
    "cleanup.policy": _setting(
        LIST, DELETE, some_of(COMPACT, DELETE), "Remove old segments, compact by key, both, or neither.",
        "log.cleanup.policy"),
    "compression.gzip.level": _setting(
        INT, "-1", Allowed("[1,...,9] or -1", lambda n: n == -1 or 1 <= n <= 9),
        "The compression level of compression.type=gzip.", "compression.gzip.level"),
    "compression.lz4.level": _setting(
        INT, "9", (between(1, 17), only(9, "lz4 has one level here")), "The compression level of compression.type=lz4.",
        "compression.lz4.level"),
    "compression.type": _setting(
        STRING, "producer", one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "The codec of stored batches; producer: a batch keeps the codec of its producer.", "compression.type"),
    "compression.zstd.level": _setting(
        INT, "3", between(-131072, 22), "The compression level of compression.type=zstd.", "compression.zstd.level"),
    "delete.retention.ms": _setting(
        LONG, "86400000", at_least(0), "How long compaction keeps a deletion marker (a null value), in milliseconds.",
        "log.cleaner.delete.retention.ms"),
    "errors.deadletterqueue.group.enable": _setting(
        BOOLEAN, "false", only(False, "this broker has no share groups"), "Dead-letter queue of share groups."),
    "file.delete.delay.ms": _setting(
        LONG, "60000", at_least(0), "The longest time that a removed segment's file stays on disk, in milliseconds.",
        "log.segment.delete.delay.ms"),
    "flush.messages": _setting(
        LONG, _MOST, at_least(1),
        "With --durability os: after how many records the log is synced to disk, before the last is acknowledged.",
        "log.flush.interval.messages"),
    "flush.ms": _setting(
        LONG, _MOST, at_least(0),
        "With --durability os: the longest time until a record is synced to disk, in milliseconds.",
        "log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "follower.replication.throttled.replicas": _setting(
        LIST, "", _throttled, "No effect: a single node does not replicate."),
    "index.interval.bytes": _setting(
        INT, "4096", at_least(0), "Bytes of records between two entries of an index.", "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": _setting(
        LIST, "", _throttled, "No effect: a single node does not replicate."),
    "local.retention.bytes": _setting(
        LONG, "-2", at_least(-2), "No effect without tiered storage.", "log.local.retention.bytes"),
    "local.retention.ms": _setting(
        LONG, "-2", at_least(-2), "No effect without tiered storage.", "log.local.retention.ms"),
    "max.compaction.lag.ms": _setting(
        LONG, _MOST, at_least(1), "The longest time that a record may stay uncompacted, in milliseconds.",
        "log.cleaner.max.compaction.lag.ms"),
    "max.decompressed.message.bytes": _setting(
        INT, "2147483639", (between(1, 2147483639), only(2147483639, "this broker does not decompress stored batches")),
        "The largest record after decompression."),
    "max.message.bytes": _setting(
        INT, "1048588", at_least(0), "The largest record batch, in bytes.", "message.max.bytes"),
    "message.timestamp.after.max.ms": _setting(
        LONG, "3600000", at_least(0), "How far ahead of the broker's clock a record's timestamp may be.",
        "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": _setting(
        LONG, _MOST, at_least(0), "How far behind the broker's clock a record's timestamp may be.",
        "log.message.timestamp.before.max.ms"),
    "message.timestamp.type": _setting(
        STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
        "CreateTime: the producer sets a record's timestamp. LogAppendTime: the broker does.",
        "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": _setting(
        DOUBLE, "0.5", between(0, 1), "Compaction begins when this fraction of a log is uncompacted.",
        "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": _setting(
        LONG, "0", at_least(0), "The shortest time that a record stays uncompacted, in milliseconds.",
        "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": _setting(
        INT, "1", (at_least(1), _one_node), "Replicas that acks=all waits for.", "min.insync.replicas"),
    "preallocate": _setting(
        BOOLEAN, "false", only(False, "this broker does not preallocate files"), "Preallocate segments.",
        "log.preallocate"),
    "remote.copy.lag.bytes": _setting(LONG, "-1", at_least(-1), "No effect without tiered storage."),
    "remote.copy.lag.ms": _setting(LONG, "0", at_least(-1), "No effect without tiered storage."),
    "remote.log.copy.disable": _setting(BOOLEAN, "false", ANYTHING, "No effect without tiered storage."),
    "remote.log.delete.on.disable": _setting(BOOLEAN, "false", ANYTHING, "No effect without tiered storage."),
    "remote.storage.enable": _setting(BOOLEAN, "false", only(False, _NO_TIERS), "Tiered storage."),
    "retention.bytes": _setting(
        LONG, "-1", ANYTHING, "The size above which a partition loses its oldest segments; negative: no limit.",
        "log.retention.bytes"),
    "retention.ms": _setting(
        LONG, _WEEK_MS, at_least(-1), "The age at which segments are removed, in milliseconds; -1: no limit.",
        "log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.bytes": _setting(
        INT, "1073741824", at_least(SMALLEST_SEGMENT_BYTES), "The size at which a segment is full.",
        "log.segment.bytes"),
    "segment.index.bytes": _setting(
        INT, "10485760", at_least(4), "The size at which a segment's index is full.", "log.index.size.max.bytes"),
    "segment.jitter.ms": _setting(
        LONG, "0", at_least(0), "How much earlier a segment may be rolled; this broker never rolls one earlier.",
        "log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.ms": _setting(
        LONG, _WEEK_MS, at_least(1), "The age at which a segment is rolled even if it is not full, in milliseconds.",
        "log.roll.ms", "log.roll.hours"),
    "unclean.leader.election.enable": _setting(
        BOOLEAN, "false", ANYTHING, "No effect: a single node's leader is always in sync.",
        "unclean.leader.election.enable"),
}  # fmt: skip
"""The settings by their names in Kafka's LogConfig. Kafka's rules come before those of this broker."""

DYNAMIC_DEFAULTS: Mapping[str, str] = {
    setting.broker[0].name: name for name, setting in TOPIC_SETTINGS.items() if setting.broker
}
"""The broker's settings that can be changed while it runs, each with the topic setting whose default it is. Among those
with the same meaning it is the one with the finest unit, as in Kafka (DynamicLogConfig)."""
