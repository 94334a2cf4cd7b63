"""Every setting of the broker that is known here, and which values this broker takes.

Those that give the topics' settings their defaults take what topics take. Sources: Kafka's KafkaConfig (types,
defaults, ranges, and its validateValues).
"""

import re
from collections.abc import Mapping

from dualwrite.broker.core.cluster import MAX_PARTITIONS
from dualwrite.broker.core.settings import Allowed, ConfigType, Setting, at_least, between, only
from dualwrite.broker.core.topic_settings import TOPIC_SETTINGS

BOOLEAN, INT, SHORT = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.SHORT
LONG, LIST = ConfigType.LONG, ConfigType.LIST

WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  named to be refused
"""Addresses that can be listened on, and not be connected to."""

_LISTENER = re.compile(r"PLAINTEXT://\[?([0-9A-Za-z._:%-]+?)\]?:([0-9]{1,5})")


def advertised_address(listeners: list[str]) -> tuple[str, int]:
    """Host and port of advertised.listeners, which was checked."""
    found = _LISTENER.fullmatch(listeners[0])
    assert found is not None
    return found[1], int(found[2])


def _is_listener(listeners: list[str]) -> bool:
    found = _LISTENER.fullmatch(listeners[0])
    return found is not None and 0 < int(found[2]) <= 65535


def _setting(
    kind: ConfigType, default: str | None, rules: Allowed | tuple[Allowed, ...], documentation: str
) -> Setting:
    return Setting(kind, default, rules if isinstance(rules, tuple) else (rules,), documentation)


_ADDRESS = (
    Allowed("one address is told to clients, PLAINTEXT://HOST:PORT", lambda found: len(found) == 1),
    Allowed("expected PLAINTEXT://HOST:PORT", _is_listener),
    Allowed("no client can connect to 0.0.0.0 or ::", lambda found: advertised_address(found)[0] not in WILDCARDS),
)
_ONE_NODE = only(1, "there is one node")
_ONE_PARTITION = only(1, "on one node more partitions would only mean more fsyncs")
_SWITCH: tuple[Allowed, ...] = ()

SETTINGS: Mapping[str, Setting] = {
    **{
        source.name: setting.of_broker(source)
        for setting in TOPIC_SETTINGS.values()
        for source in setting.broker
    },
    "advertised.listeners": _setting(
        LIST, None, _ADDRESS,
        "Where clients are told to connect, if not to the address that is listened on."),
    "auto.create.topics.enable": _setting(
        BOOLEAN, "true", _SWITCH,
        "Whether a topic that a client asks for or produces to is created."),
    "log.cleaner.backoff.ms": _setting(
        LONG, "15000", at_least(1),
        "How long compaction waits until it looks again for something to do."),
    "log.cleaner.dedupe.buffer.size": _setting(
        LONG, "134217728", at_least(1024),
        "The memory in which a compaction remembers keys; a log with more is done in several passes."),
    "log.cleaner.enable": _setting(
        BOOLEAN, "true", _SWITCH,
        "Whether logs are compacted."),
    "log.retention.check.interval.ms": _setting(
        LONG, "300000", at_least(1),
        "How long until the broker looks again for segments that retention removes."),
    "default.replication.factor": _setting(
        INT, "1", _ONE_NODE,
        "The replicas of a topic that is created without saying how many."),
    "group.initial.rebalance.delay.ms": _setting(
        INT, "3000", at_least(0),
        "How long the first member of an empty group waits for others; 0 in tests: it waits for nobody."),
    "group.max.session.timeout.ms": _setting(
        INT, "1800000", at_least(1),
        "The longest session timeout that a member may ask for."),
    "group.max.size": _setting(
        INT, "2147483647", at_least(1),
        "The most members of a group."),
    "group.min.session.timeout.ms": _setting(
        INT, "6000", at_least(1),
        "The shortest session timeout that a member may ask for."),
    "producer.id.expiration.check.interval.ms": _setting(
        INT, "600000", at_least(1),
        "How long until the broker looks again for producers that it forgets."),
    "producer.id.expiration.ms": _setting(
        INT, "86400000", at_least(1),
        "How long a partition remembers the last batches of a producer that is silent."),
    "num.partitions": _setting(
        INT, "1", between(1, MAX_PARTITIONS),
        "The partitions of a topic that is created without saying how many."),
    "offset.metadata.max.bytes": _setting(
        INT, "4096", at_least(0),
        "The most text that may come with a committed offset."),
    "offsets.retention.check.interval.ms": _setting(
        LONG, "600000", at_least(1),
        "How long until the broker looks again for offsets that it forgets."),
    "offsets.retention.minutes": _setting(
        INT, "10080", at_least(1),
        "How long the offsets of a group without members are kept."),
    "offsets.topic.num.partitions": _setting(
        INT, "1", _ONE_PARTITION,
        "The partitions of __consumer_offsets."),
    "offsets.topic.replication.factor": _setting(
        SHORT, "1", _ONE_NODE,
        "The replicas of __consumer_offsets."),
    "offsets.topic.segment.bytes": _setting(
        INT, "4194304", at_least(1024),
        "The size at which a segment of __consumer_offsets is full."),
    "socket.request.max.bytes": _setting(
        INT, "104857600", at_least(1024),
        "The largest request; a connection that sends a larger one is closed."),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": _setting(
        INT, "10000", at_least(1),
        "How long until the broker looks again for transactions that have timed out."),
    "transaction.max.timeout.ms": _setting(
        INT, "900000", at_least(1),
        "The longest transaction timeout that a producer may ask for."),
    "transaction.partition.verification.enable": _setting(
        BOOLEAN, "true", _SWITCH,
        "Whether a partition that a transaction has not named refuses its records."),
    "transaction.remove.expired.transaction.cleanup.interval.ms": _setting(
        INT, "3600000", at_least(1),
        "How long until the broker looks again for transactional ids that it forgets."),
    "transaction.state.log.min.isr": _setting(
        INT, "1", _ONE_NODE,
        "The replicas of __transaction_state that a write waits for."),
    "transaction.state.log.num.partitions": _setting(
        INT, "1", _ONE_PARTITION,
        "The partitions of __transaction_state."),
    "transaction.state.log.replication.factor": _setting(
        SHORT, "1", _ONE_NODE,
        "The replicas of __transaction_state."),
    "transaction.state.log.segment.bytes": _setting(
        INT, "4194304", at_least(1024),
        "The size at which a segment of __transaction_state is full."),
    "transaction.two.phase.commit.enable": _setting(
        BOOLEAN, "true", _SWITCH,
        "Whether producers may ask for two-phase commit: transactions that never time out."),
    "transactional.id.expiration.ms": _setting(
        INT, "604800000", at_least(1),
        "How long a transactional id that does nothing is remembered."),
}  # fmt: skip
"""Defaults are Kafka's, but for transaction.two.phase.commit.enable (docs/decisions/0004),
offsets.topic.segment.bytes and transaction.state.log.segment.bytes (0007), and what is 1 on one node."""
