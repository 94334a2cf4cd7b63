"""What to say of a broker setting that is not one here: what this broker lacks, or which name may be meant."""

from collections.abc import Mapping
from difflib import get_close_matches

from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.broker.settings.listener_settings import LISTENER_PREFIX, LISTENER_SETTINGS
from dualwrite.broker.settings.topic_settings import TOPIC_SETTINGS

DATA_DIRS = ("log.dirs", "log.dir")
"""The directory of all data, which is an option of the command and not a setting (Kafka: log.dirs takes precedence)."""

_LIST = "dualwrite broker --list-config"
_NO_TIERS, _NO_SHARES, _NO_STREAMS = "has no tiered storage", "has no share groups", "has no streams groups"
_NO_QUOTAS, _NO_QUORUM = "enforces no quotas", "is a single node, without a quorum of controllers"
_NO_REPLICAS, _NO_TELEMETRY = "does not replicate", "has metrics for Prometheus only (--metrics)"
_OWN_USERS = "has users of its own (dualwrite broker users)"
_NO_JAVA, _OTHER_TLS = "runs no classes of Java", "has OpenSSL's TLS, and not Java's"
_PEM = "reads PEM (ssl.keystore.location, ssl.truststore.location), whose key ssl.key.password decrypts"
_ONE_RELEASE = "has no other brokers, of an earlier release"
LACKS: Mapping[str, str] = {
    "alter.config.policy.": _NO_JAVA,
    "alter.log.dirs.replication.quota.": _NO_QUOTAS,
    "auto.include.jmx.reporter": _NO_TELEMETRY,
    "broker.heartbeat.": _NO_QUORUM,
    "broker.id.generation.": "needs no ZooKeeper",
    "broker.rack": "is a single node, in no rack",
    "broker.session.": _NO_QUORUM,
    "client.quota.": _NO_QUOTAS,
    "config.providers": _NO_JAVA,
    "control.plane.": _NO_QUORUM,
    "controller.": _NO_QUORUM,
    "controller.quota.": _NO_QUOTAS,
    "create.topic.policy.": _NO_JAVA,
    "delegation.token.": "has no delegation tokens",
    "delete.records.purgatory.": "has no purgatory for requests that wait",
    "early.start.listeners": _NO_QUORUM,
    "errors.deadletterqueue.": _NO_SHARES,
    "fetch.purgatory.": "has no purgatory for requests that wait",
    "group.share.": _NO_SHARES,
    "group.streams.": _NO_STREAMS,
    "initial.broker.": _NO_QUORUM,
    "inter.broker.protocol.version": _ONE_RELEASE,
    "kafka.metrics.": _NO_TELEMETRY,
    "log.cleaner.io.": "has one cleaner, with a pace of its own",
    "log.flush.offset.": "notes recovery points by itself",
    "log.flush.start.": "notes recovery points by itself",
    "log.message.format.version": _ONE_RELEASE,
    "log.remote.": _NO_TIERS,
    "max.connection.creation.": _NO_QUOTAS,
    "max.connections.per.ip.overrides": "has one limit for all addresses (max.connections.per.ip)",
    "max.incremental.fetch.session.": "declines fetch sessions",
    "metadata.": _NO_QUORUM,
    "metric.": _NO_TELEMETRY,
    "metrics.": _NO_TELEMETRY,
    "password.encoder.": "needs no ZooKeeper",
    "principal.builder.": _NO_JAVA,
    "producer.purgatory.": "has no purgatory for requests that wait",
    "quota.": _NO_QUOTAS,
    "remote.": _NO_TIERS,
    "replica.": _NO_REPLICAS,
    "replication.quota.": _NO_QUOTAS,
    "rlmm.": _NO_TIERS,
    "rsm.": _NO_TIERS,
    "sasl.jaas.config": _OWN_USERS,
    "sasl.kerberos.": "has no GSSAPI (Kerberos)",
    "sasl.login.": _OWN_USERS,
    "sasl.server.callback.": _OWN_USERS,
    "security.providers": _NO_JAVA,
    "share.": _NO_SHARES,
    "ssl.engine.factory.": _NO_JAVA,
    "ssl.keymanager.": _OTHER_TLS,
    "ssl.keystore.password": _PEM,
    "ssl.provider": _OTHER_TLS,
    "ssl.secure.random.": _OTHER_TLS,
    "ssl.trustmanager.": _OTHER_TLS,
    "ssl.truststore.password": _PEM,
    "telemetry.": _NO_TELEMETRY,
    "zookeeper.": "needs no ZooKeeper",
}
"""What this broker lacks, by the beginning of the names of Kafka's settings for it. The longest one counts."""


def unknown_setting(key: str) -> str:
    """The error message for ``key``, which is no setting of this broker."""
    if key in DATA_DIRS:
        return f"unknown broker setting {key!r}: use the option --data-dir"
    if key.startswith(LISTENER_PREFIX):
        return _unknown_of_listener(key)
    beginning = max((beginning for beginning in LACKS if key.startswith(beginning)), key=len, default=None)
    if beginning is not None:
        return f"unknown broker setting {key!r}: this broker {LACKS[beginning]}; remove it"
    topics = TOPIC_SETTINGS.get(key)
    if topics is not None and topics.broker:
        return f"unknown broker setting {key!r}: it is a topic's; set the broker's {topics.broker[0].name}"
    close = get_close_matches(key, SETTINGS, n=3)
    meant = f"; did you mean {', '.join(close)}?" if close else ";"
    return f"unknown broker setting {key!r}{meant} {_LIST} lists all"


def _unknown_of_listener(key: str) -> str:
    """The error message for a setting that a listener does not have."""
    rest = key.removeprefix(LISTENER_PREFIX).partition(".")[2]
    if rest in SETTINGS:
        return f"broker setting {key!r}: no listener has a value of its own for {rest}; set it without the prefix"
    close = get_close_matches(rest, LISTENER_SETTINGS, n=3)
    meant = f"; did you mean {', '.join(close)}?" if close else ""
    return f"unknown broker setting {key!r}: expected {LISTENER_PREFIX}NAME.SETTING{meant}"
