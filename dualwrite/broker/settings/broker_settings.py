"""Every known setting of the broker, with the values that this broker accepts.

A setting that is the default of a topic setting accepts the same values as the topic setting. Source: Kafka's
KafkaConfig (types, defaults, ranges, and its validateValues).
"""

from collections.abc import Mapping

from dualwrite.broker.clients.listeners import (
    ADVERTISED_LISTENERS,
    DEFAULT_LISTENERS,
    DEFAULT_PROTOCOL_MAP,
    LISTENERS,
    PROTOCOL_MAP,
    parse_endpoint,
)
from dualwrite.broker.settings.cluster_settings import CLUSTER_SETTINGS
from dualwrite.broker.settings.group_settings import AT_ONCE
from dualwrite.broker.settings.listener_settings import LISTENER_SETTINGS
from dualwrite.broker.settings.sasl_settings import FAILURE_DELAY_MS
from dualwrite.broker.settings.setting import Allowed, ConfigType, Setting, at_least, between, one_of, only, some_of
from dualwrite.broker.settings.topic_settings import TOPIC_SETTINGS

BOOLEAN, INT, SHORT = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.SHORT
LONG, LIST, STRING = ConfigType.LONG, ConfigType.LIST, ConfigType.STRING

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's name of its authorizer. This broker's authorizer makes the same decisions."""

MAX_PARTITIONS = 10_000
"""The most partitions of a topic."""


def principals(text: str) -> list[str]:
    """The principals in ``text``, a value of super.users."""
    return [part.strip() for part in text.split(";") if part.strip()]


def _are_principals(text: str) -> bool:
    return all(":" in principal for principal in principals(text))


def _setting(
    kind: ConfigType, default: str | None, rules: Allowed | tuple[Allowed, ...], documentation: str
) -> Setting:
    return Setting(kind, default, rules if isinstance(rules, tuple) else (rules,), documentation)


_ENDPOINTS = Allowed(
    "NAME://HOST:PORT, separated by commas", lambda entries: bool(entries) and all(map(parse_endpoint, entries))
)
_PROTOCOLS = Allowed(
    "NAME:PROTOCOL, separated by commas; the protocols are PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL",
    lambda entries: all(":" in entry for entry in entries),
)
_MIGRATIONS = Allowed(
    "String must be one of (case insensitive): DISABLED, UPGRADE, DOWNGRADE, BIDIRECTIONAL",
    lambda value: value.lower() in ("disabled", "upgrade", "downgrade", "bidirectional"),
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
    **LISTENER_SETTINGS,
    **CLUSTER_SETTINGS,
    ADVERTISED_LISTENERS: _setting(
        LIST, None, _ENDPOINTS,
        "For each listener, the address that clients get and connect to, if it is not the address on which the broker "
        "listens."),
    LISTENERS: _setting(
        LIST, DEFAULT_LISTENERS, _ENDPOINTS,
        "The addresses on which the broker listens. The name of a listener is a security protocol, or has one by "
        "listener.security.protocol.map."),
    PROTOCOL_MAP: _setting(
        LIST, DEFAULT_PROTOCOL_MAP, _PROTOCOLS,
        "The security protocol of each listener's name."),
    "allow.everyone.if.no.acl.found": _setting(
        BOOLEAN, "false", _SWITCH,
        "Whether every client may use a resource to which no ACL applies."),
    "authorizer.class.name": _setting(
        STRING, "", one_of("", AUTHORIZER),
        f"{AUTHORIZER}: clients may do what ACLs allow. Empty: every client may do everything."),
    "auto.create.topics.enable": _setting(
        BOOLEAN, "true", _SWITCH,
        "Whether the broker creates a missing topic when a client asks for it or produces to it."),
    FAILURE_DELAY_MS: _setting(
        INT, "100", at_least(0),
        "How long the broker waits before it answers a failed authentication and closes the connection."),
    "connections.max.idle.ms": _setting(
        LONG, "600000", at_least(-1),
        "The time after which an idle connection is closed; -1: never."),
    "max.connections": _setting(
        INT, "8192", at_least(1),
        "The maximum number of connections; a quarter of the limit of open files if that is less. A new connection "
        "beyond it closes the one that has been idle for longest."),
    "max.connections.per.ip": _setting(
        INT, "2147483647", at_least(1),
        "The maximum number of connections from one IP address; further connections from it are refused."),
    "log.cleaner.backoff.ms": _setting(
        LONG, "15000", at_least(1),
        "How often the broker looks for logs to compact."),
    "log.cleaner.dedupe.buffer.size": _setting(
        LONG, "134217728", at_least(1024),
        "The memory for a compaction's keys; a log with more keys takes several passes."),
    "log.cleaner.enable": _setting(
        BOOLEAN, "true", _SWITCH,
        "Whether logs are compacted."),
    "log.retention.check.interval.ms": _setting(
        LONG, "300000", at_least(1),
        "How often the broker looks for segments that retention removes."),
    "delete.topic.enable": _setting(
        BOOLEAN, "true", _SWITCH,
        "Whether clients may delete topics. Otherwise DeleteTopics gets TOPIC_DELETION_DISABLED."),
    "default.replication.factor": _setting(
        INT, "1", _ONE_NODE,
        "The number of replicas of a topic that is created without one."),
    "group.consumer.assignment.interval.ms": _setting(
        INT, "0", AT_ONCE,
        "How long the broker waits between two assignments of a consumer group: it does not wait."),
    "group.consumer.assignors": _setting(
        LIST, "uniform,range", (some_of("uniform", "range"), Allowed("at least one", bool)),
        "The assignors of consumer groups (group.protocol=consumer). A group has the one that most of its members "
        "prefer, or else the first."),
    "group.consumer.heartbeat.interval.ms": _setting(
        INT, "5000", at_least(1),
        "How often the members of consumer groups send heartbeats."),
    "group.consumer.max.heartbeat.interval.ms": _setting(
        INT, "15000", at_least(1),
        "The longest heartbeat interval that a group may have of its own."),
    "group.consumer.max.session.timeout.ms": _setting(
        INT, "60000", at_least(1),
        "The longest session timeout that a consumer group may have of its own."),
    "group.consumer.max.size": _setting(
        INT, "2147483647", at_least(1),
        "The maximum number of members of a consumer group."),
    "group.consumer.migration.policy": _setting(
        STRING, "bidirectional", _MIGRATIONS,
        "Whether a group with members may change its protocol: from the classic one to the consumer protocol "
        "(upgrade), and back when its last member of the consumer protocol leaves (downgrade). An empty group changes "
        "its protocol in any case."),
    "group.consumer.min.heartbeat.interval.ms": _setting(
        INT, "5000", at_least(1),
        "The shortest heartbeat interval that a group may have of its own."),
    "group.consumer.min.session.timeout.ms": _setting(
        INT, "45000", at_least(1),
        "The shortest session timeout that a consumer group may have of its own."),
    "group.consumer.session.timeout.ms": _setting(
        INT, "45000", at_least(1),
        "How long a consumer group waits for a heartbeat of a member before it removes the member."),
    "group.initial.rebalance.delay.ms": _setting(
        INT, "3000", at_least(0),
        "How long the first member of an empty group waits for more members; 0 (useful in tests): not at all."),
    "group.max.session.timeout.ms": _setting(
        INT, "1800000", at_least(1),
        "The longest session timeout that a member may request."),
    "group.max.size": _setting(
        INT, "2147483647", at_least(1),
        "The maximum number of members of a group."),
    "group.min.session.timeout.ms": _setting(
        INT, "6000", at_least(1),
        "The shortest session timeout that a member may request."),
    "producer.id.expiration.check.interval.ms": _setting(
        INT, "600000", at_least(1),
        "How often the broker looks for producers that have expired."),
    "producer.id.expiration.ms": _setting(
        INT, "86400000", at_least(1),
        "How long a partition remembers the last batches of an idle producer."),
    "num.partitions": _setting(
        INT, "1", between(1, MAX_PARTITIONS),
        "The number of partitions of a topic that is created without one."),
    "offset.metadata.max.bytes": _setting(
        INT, "4096", at_least(0),
        "The maximum size of the metadata text of a committed offset, in bytes."),
    "offsets.retention.check.interval.ms": _setting(
        LONG, "600000", at_least(1),
        "How often the broker looks for offsets that have expired."),
    "offsets.retention.minutes": _setting(
        INT, "10080", at_least(1),
        "How long the offsets of a group without members are kept."),
    "offsets.topic.num.partitions": _setting(
        INT, "1", _ONE_PARTITION,
        "The number of partitions of __consumer_offsets."),
    "offsets.topic.replication.factor": _setting(
        SHORT, "1", _ONE_NODE,
        "The number of replicas of __consumer_offsets."),
    "offsets.topic.segment.bytes": _setting(
        INT, "4194304", at_least(1024),
        "The size at which a segment of __consumer_offsets is full."),
    "queued.max.request.bytes": _setting(
        LONG, "268435456", at_least(-1),
        "The bound in bytes for the large requests of all connections together, and the same bound again for answers "
        "that clients have not read yet; 0 or -1: no bound."),
    "socket.request.max.bytes": _setting(
        INT, "104857600", at_least(1024),
        "The largest request, in bytes; a connection that sends a larger one is closed. A request without records may "
        "have 1 MiB at most."),
    "super.users": _setting(
        STRING, "", Allowed("expected principals of the form TYPE:NAME, separated by ';'", _are_principals),
        "The principals that may do everything; no ACL applies to them. Example: User:admin;User:backup."),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": _setting(
        INT, "10000", at_least(1),
        "How often the broker looks for transactions that have timed out."),
    "transaction.max.timeout.ms": _setting(
        INT, "900000", at_least(1),
        "The longest transaction timeout that a producer may request."),
    "transaction.partition.verification.enable": _setting(
        BOOLEAN, "true", _SWITCH,
        "Whether a partition refuses records of a transaction to which it was not added. A transaction that was "
        "prepared and kept accepts no records in any case."),
    "transaction.remove.expired.transaction.cleanup.interval.ms": _setting(
        INT, "3600000", at_least(1),
        "How often the broker looks for transactional ids that have expired."),
    "transaction.state.log.min.isr": _setting(
        INT, "1", _ONE_NODE,
        "The number of replicas of __transaction_state for which a write waits."),
    "transaction.state.log.num.partitions": _setting(
        INT, "1", _ONE_PARTITION,
        "The number of partitions of __transaction_state."),
    "transaction.state.log.replication.factor": _setting(
        SHORT, "1", _ONE_NODE,
        "The number of replicas of __transaction_state."),
    "transaction.state.log.segment.bytes": _setting(
        INT, "4194304", at_least(1024),
        "The size at which a segment of __transaction_state is full."),
    "transaction.two.phase.commit.enable": _setting(
        BOOLEAN, "true", _SWITCH,
        "Whether producers may request two-phase commit: transactions that never time out."),
    "transactional.id.expiration.ms": _setting(
        INT, "604800000", at_least(1),
        "How long the broker remembers an idle transactional id."),
}  # fmt: skip
"""Defaults are Kafka's, but for listeners (docs/decisions/0023), sasl.enabled.mechanisms (0024),
queued.max.request.bytes (0025), those of sockets and threads (0035),
transaction.two.phase.commit.enable (0004), offsets.topic.segment.bytes and transaction.state.log.segment.bytes (0007),
and numbers that are 1 on one node."""
