"""Every setting of a librdkafka producer, by name, and how the native producer treats it.

Names, ranges and defaults are those of librdkafka's CONFIGURATION.md unless stated otherwise; a test compares them with
the installed librdkafka. A setting is used, or has no effect because the native producer has nothing that it could
change, or is refused with the reason. No setting that a user may rely on is ignored silently.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from dualwrite.client.config.native_rules import (
    ANY,
    CALLABLE,
    FILE,
    FLAG,
    NAMES,
    SECRET,
    TEXT,
    Rule,
    always,
    choice,
    decimal,
    integer,
    only,
)
from dualwrite.client.encoding.partitioners import PARTITIONERS

LARGEST_INT = 2147483647


class Use(Enum):
    """How the native producer treats a setting."""

    TAKEN = "taken"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    :param default: the value if it is not given; None if there is none.
    :param meaning: what it does, or why it has no effect or is refused.
    """

    use: Use
    rule: Rule
    default: Any
    meaning: str


def _taken(rule: Rule, default: Any, meaning: str) -> Key:
    return Key(Use.TAKEN, rule, default, meaning)


ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "max.request.size": "message.max.bytes",
    "queue.buffering.max.ms": "linger.ms",
    "message.send.max.retries": "retries",
    "compression.codec": "compression.type",
    "sasl.mechanisms": "sasl.mechanism",
    "request.required.acks": "acks",
    "message.timeout.ms": "delivery.timeout.ms",
    "dr_cb": "on_delivery",
}
"""Other names of settings; all but Java's ``max.request.size`` are librdkafka's."""

_MS = LARGEST_INT
_NO_STATISTICS = "there are no statistics"
_PEM_FILE = "give the file in PEM form: ssl.key.location and ssl.certificate.location"
_OIDC = "fetch the token yourself, in oauth_cb"
_NOT_PYTHONS = "cannot be given from Python"

_TAKEN: dict[str, Key] = {
    "bootstrap.servers": _taken(NAMES, None, "The brokers to which the producer connects first. Required."),
    "client.id": _taken(TEXT, "dualwrite", "The name of this client in the brokers' logs and quotas."),
    "transactional.id": _taken(TEXT, None, "The identity of this producer across restarts. Required."),
    "transaction.two.phase.commit.enable": _taken(
        FLAG,
        True,
        "True: two-phase commit (KIP-939; its default is false). False: transactions of KIP-98, which can time out.",
    ),
    "transaction.timeout.ms": _taken(
        integer(1000, _MS),
        60_000,
        "The time after which a broker aborts an open transaction. Cannot be combined with two-phase commit.",
    ),
    "message.max.bytes": _taken(
        integer(1000, 1_000_000_000), 1_000_000, "The largest record, and the largest batch before it is compressed."
    ),
    "batch.size": _taken(integer(1, _MS), 1_000_000, "A batch is sent when it has this many uncompressed bytes."),
    "batch.num.messages": _taken(integer(1, 1_000_000), 10_000, "A batch is sent when it has this many records."),
    "linger.ms": _taken(
        decimal(0, 900_000),
        None,
        "How long a batch waits for more records before it is sent. Not set: a batch is sent when it is full, or when"
        " the transaction is prepared or committed. librdkafka: 5.",
    ),
    "queue.buffering.max.messages": _taken(
        integer(0, _MS), 100_000, "The maximum number of unacknowledged records; 0: no limit."
    ),
    "queue.buffering.max.kbytes": _taken(
        integer(1, _MS), 1_048_576, "The maximum size of all unacknowledged records, in KiB."
    ),
    "max.in.flight.requests.per.connection": _taken(
        integer(1, 5),
        5,
        "The maximum number of unanswered Produce requests per broker. A broker remembers five batches of a producer.",
    ),
    "acks": _taken(
        only("all", "-1", why="a transaction is in every in-sync replica"),
        "all",
        "Which replicas must acknowledge a record.",
    ),
    "enable.idempotence": _taken(
        always(True, "transactions need it"), True, "Write each record once, and the records of a partition in order."
    ),
    "retries": _taken(
        integer(1, _MS), _MS, "How often a batch is sent again. delivery.timeout.ms limits the retries as well."
    ),
    "delivery.timeout.ms": _taken(
        integer(1, _MS),
        30_000,
        "How long a record may stay unacknowledged, while a unit of work holds its locks in the database. librdkafka:"
        " transaction.timeout.ms.",
    ),
    "request.timeout.ms": _taken(
        integer(1, 900_000), 30_000, "How long a broker may wait for its replicas before it answers."
    ),
    "socket.timeout.ms": _taken(
        integer(10, 300_000),
        30_000,
        "How long an answer may take before the producer closes the connection. librdkafka: 60000.",
    ),
    "socket.connection.setup.timeout.ms": _taken(
        integer(1000, _MS),
        10_000,
        "How long each step of connecting (TCP, TLS, SASL) may take. librdkafka: 30000.",
    ),
    "retry.backoff.ms": _taken(
        integer(1, 300_000), 100, "The first pause before a request is sent again; it doubles with each try."
    ),
    "retry.backoff.max.ms": _taken(integer(1, 300_000), 1000, "Upper bound of retry.backoff.ms."),
    "reconnect.backoff.ms": _taken(
        integer(0, 3_600_000), 100, "The first pause before the producer connects again; it doubles with each try."
    ),
    "reconnect.backoff.max.ms": _taken(
        integer(0, 3_600_000), 1000, "Upper bound of reconnect.backoff.ms. librdkafka: 10000."
    ),
    "topic.metadata.refresh.interval.ms": _taken(
        integer(-1, 3_600_000),
        300_000,
        "How often the producer asks for the partitions' leaders although nothing has failed; -1: never.",
    ),
    "metadata.max.age.ms": _taken(
        integer(1, 86_400_000),
        900_000,
        "The same as topic.metadata.refresh.interval.ms; the lower of the two values counts.",
    ),
    "topic.metadata.propagation.max.ms": _taken(
        integer(0, 3_600_000),
        30_000,
        "How long a topic may be unknown before its records fail; delivery.timeout.ms is the upper bound.",
    ),
    "allow.auto.create.topics": _taken(FLAG, True, "Whether a broker may create a missing topic."),
    "connections.max.idle.ms": _taken(
        integer(0, _MS), 0, "How long a connection may be idle before it is closed; 0 is for ever."
    ),
    "partitioner": _taken(
        Rule(", ".join(PARTITIONERS), choice(*PARTITIONERS).read),
        "consistent_random",
        "How the partition of a record is chosen. `murmur2_random` chooses as the Java producer does.",
    ),
    "sticky.partitioning.linger.ms": _taken(
        integer(0, 900_000),
        10,
        "0: each record without a key gets a random partition. Otherwise such records of a batch share one partition.",
    ),
    "compression.type": _taken(
        choice("none", "gzip", "snappy", "lz4", "zstd", "inherit"), "none", "The compression codec of batches."
    ),
    "compression.level": _taken(
        integer(-1, 12),
        -1,
        "Compression level of gzip (0 to 9) or zstd (0 to 12). lz4 and snappy only have level 0. -1: the codec's"
        " default.",
    ),
    "security.protocol": _taken(
        choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), "PLAINTEXT", "With or without TLS and SASL."
    ),
    "ssl.ca.location": _taken(
        FILE,
        None,
        "The trusted authorities: a file or directory in PEM form, or `probe`. Not set: the system's authorities.",
    ),
    "ssl.ca.pem": _taken(TEXT, None, "The trusted authorities as text in PEM form."),
    "ssl.certificate.location": _taken(FILE, None, "The file with this client's certificate."),
    "ssl.key.location": _taken(FILE, None, "The file with the certificate's private key."),
    "ssl.key.password": _taken(SECRET, None, "The password of the private key."),
    "enable.ssl.certificate.verification": _taken(FLAG, True, "False: every server's certificate is accepted."),
    "ssl.endpoint.identification.algorithm": _taken(
        choice("https", "none"), "https", "https: the server's certificate must name the host. none: not checked."
    ),
    "sasl.mechanism": _taken(
        choice("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        None,
        "The SASL mechanism. Required with SASL. librdkafka: GSSAPI.",
    ),
    "sasl.username": _taken(TEXT, None, "The user, for PLAIN and SCRAM."),
    "sasl.password": _taken(SECRET, None, "The password, for PLAIN and SCRAM."),
    "sasl.oauthbearer.config": _taken(TEXT, "", "The argument of oauth_cb."),
    "oauth_cb": _taken(
        CALLABLE,
        None,
        "For OAUTHBEARER: a function that returns (token, expiry in seconds since the epoch[, principal, extensions])."
        " It may be called in any thread.",
    ),
    "socket.keepalive.enable": _taken(FLAG, False, "SO_KEEPALIVE."),
    "socket.nagle.disable": _taken(FLAG, True, "TCP_NODELAY."),
    "socket.send.buffer.bytes": _taken(integer(0, 100_000_000), 0, "SO_SNDBUF; 0: the system's default."),
    "socket.receive.buffer.bytes": _taken(integer(0, 100_000_000), 0, "SO_RCVBUF; 0: the system's default."),
    "on_delivery": _taken(CALLABLE, None, "Called for each record, with its error, or with its partition and offset."),
}


def _of(use: Use, meaning: str, *names: str) -> dict[str, Key]:
    return {name: Key(use, ANY, None, meaning) for name in names}


def _one_value(rule: Rule, default: Any, *names: str) -> dict[str, Key]:
    return {name: Key(Use.NO_EFFECT, rule, default, "") for name in names}


def _no_effect(meaning: str, *names: str) -> dict[str, Key]:
    return _of(Use.NO_EFFECT, meaning, *names)


def _refused(meaning: str, *names: str) -> dict[str, Key]:
    return _of(Use.REFUSED, meaning, *names)


_LOGS = "The producer logs with Python's `logging`."
_CONSUMERS = "Only for consumers."

_OTHERS: dict[str, Key] = {
    **_no_effect("Errors are raised by the calls that they concern.", "error_cb"),
    **_no_effect(_LOGS, "logger", "log_level", "log.queue", "log.thread.name", "log.connection.close", "debug"),
    **_no_effect("No longer used by librdkafka either.", "socket.blocking.max.ms", "topic.metadata.refresh.fast.cnt"),
    **_no_effect("No longer used by librdkafka either.", "reconnect.backoff.jitter.ms", "produce.offset.report"),
    **_no_effect("No longer used by librdkafka either.", "metadata.request.timeout.ms"),
    **_no_effect("The producer connects only to brokers that it needs.", "enable.sparse.connections"),
    **_no_effect("oauth_cb is called when a token is needed.", "enable_sasl_queue"),
    **_no_effect("The producer always sends ApiVersions.", "api.version.fallback.ms", "broker.version.fallback"),
    **_no_effect("socket.connection.setup.timeout.ms includes it.", "api.version.request.timeout.ms"),
    **_no_effect("The producer asks only for the topics in use.", "topic.metadata.refresh.sparse"),
    **_no_effect("retry.backoff.ms applies.", "topic.metadata.refresh.fast.interval.ms"),
    **_no_effect(
        "The producer always tries the bootstrap servers if no other broker answers.",
        *("metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms"),
    ),
    **_no_effect("Names are resolved at each attempt to connect.", "broker.address.ttl"),
    **_no_effect("Records are copied once, into their batch.", "message.copy.max.bytes"),
    **_no_effect("The limit is always 100 MiB; a producer's answers are small.", "receive.message.max.bytes"),
    **_no_effect("If a record is lost, its transaction is not committed: there is no gap.", "enable.gapless.guarantee"),
    **_no_effect(
        "max.in.flight.requests.per.connection limits the waiting requests.", "queue.buffering.backpressure.threshold"
    ),
    **_no_effect("The producer pushes no metrics.", "enable.metrics.push"),
    **_no_effect(
        "Python's own random numbers, signals and certificate stores are used.",
        *("enable.random.seed", "internal.termination.signal", "ssl.ca.certificate.stores"),
    ),
    **_no_effect("The name is always `dualwrite`.", "client.software.name"),
    **_no_effect("The version is always that of dualwrite.", "client.software.version"),
    **_one_value(always(True, "every broker since 0.10 supports ApiVersions"), True, "api.version.request"),
    **_one_value(only("1", why="the first overdue answer closes the connection"), "1", "socket.max.fails"),
    **_one_value(only("any", why="the system's resolver decides"), "any", "broker.address.family"),
    **_one_value(only("use_all_dns_ips", why="there is no GSSAPI"), "use_all_dns_ips", "client.dns.lookup"),
    **_one_value(only("fifo", why="a transaction's records are in order"), "fifo", "queuing.strategy"),
    **_one_value(only("0", why=_NO_STATISTICS), "0", "statistics.interval.ms"),
    **_one_value(
        only("0", why="there are no mock brokers"),
        "0",
        "test.mock.num.brokers",
        "test.mock.broker.rtt",
    ),
    **_one_value(only("0", why=_NOT_PYTHONS), "0", "enabled_events"),
    **_one_value(always(False, "set oauth_cb instead"), False, "enable.sasl.oauthbearer.unsecure.jwt"),
    **_one_value(only("default", why=_OIDC), "default", "sasl.oauthbearer.method"),
    **_one_value(always(False, "each record's delivery is reported"), False, "delivery.report.only.error"),
    **_refused(_NO_STATISTICS, "stats_cb"),
    **_refused("throttling is not reported", "throttle_cb"),
    **_refused("pass the partition to produce() instead", "partitioner_cb"),
    **_refused("the producer uses only the topics to which you produce", "topic.blacklist"),
    **_refused("put its entries into the configuration itself", "default.topic.config"),
    **_refused(_PEM_FILE, "ssl.key.pem", "ssl.certificate.pem", "ssl.keystore.location", "ssl.keystore.password"),
    **_refused(
        "not supported",
        *("ssl.crl.location", "ssl.engine.location", "ssl.engine.id", "ssl.providers", "ssl.certificate.verify_cb"),
        *("ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list", "plugin.library.paths"),
    ),
    **_refused(
        "GSSAPI is not supported",
        *("sasl.kerberos.service.name", "sasl.kerberos.principal", "sasl.kerberos.kinit.cmd", "sasl.kerberos.keytab"),
        "sasl.kerberos.min.time.before.relogin",
    ),
    **_refused(
        _OIDC,
        *("https.ca.location", "https.ca.pem", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret"),
        *("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.credentials.client.secret"),
        *("sasl.oauthbearer.scope", "sasl.oauthbearer.extensions", "sasl.oauthbearer.token.endpoint.url"),
        *("sasl.oauthbearer.sub.claim.name", "sasl.oauthbearer.grant.type", "sasl.oauthbearer.assertion.algorithm"),
        *("sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.assertion.private.key.passphrase"),
        *("sasl.oauthbearer.assertion.private.key.pem", "sasl.oauthbearer.assertion.file"),
        *("sasl.oauthbearer.assertion.claim.aud", "sasl.oauthbearer.assertion.claim.exp.seconds"),
        *("sasl.oauthbearer.assertion.claim.iss", "sasl.oauthbearer.assertion.claim.jti.include"),
        *("sasl.oauthbearer.assertion.claim.nbf.seconds", "sasl.oauthbearer.assertion.claim.sub"),
        *("sasl.oauthbearer.assertion.jwt.template.file", "sasl.oauthbearer.metadata.authentication.type"),
    ),
    **_refused(
        _NOT_PYTHONS,
        *("background_event_cb", "closesocket_cb", "connect_cb", "default_topic_conf", "dr_msg_cb", "interceptors"),
        *("log_cb", "msg_order_cmp", "oauthbearer_token_refresh_cb", "opaque", "open_cb", "resolve_cb", "socket_cb"),
        *("ssl_ca", "ssl_certificate", "ssl_engine_callback_data", "ssl_key", "builtin.features"),
        "ut_handle_ProduceResponse",
    ),
    **_no_effect(
        _CONSUMERS,
        *("auto.commit.enable", "auto.commit.interval.ms", "auto.offset.reset", "check.crcs", "client.rack"),
        *("consume.callback.max.messages", "consume_cb", "coordinator.query.interval.ms", "enable.auto.commit"),
        *("enable.auto.offset.store", "enable.partition.eof", "fetch.error.backoff.ms", "fetch.max.bytes"),
        *("fetch.message.max.bytes", "fetch.min.bytes", "fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.id"),
        *("group.instance.id", "group.protocol", "group.protocol.type", "group.remote.assignor"),
        *("heartbeat.interval.ms", "isolation.level", "max.partition.fetch.bytes", "max.poll.interval.ms"),
        *("max.poll.records", "offset.store.method", "offset.store.path", "offset.store.sync.interval.ms"),
        *("offset_commit_cb", "on_commit", "partition.assignment.strategy", "queued.max.messages.kbytes"),
        *("queued.min.messages", "rebalance_cb", "session.timeout.ms", "share.acknowledgement.mode"),
    ),
}

KEYS: dict[str, Key] = {**_TAKEN, **_OTHERS}
"""Every setting; :data:`ALIASES` maps other names to these."""

JAVAS = {
    "buffer.memory": "queue.buffering.max.kbytes",
    "max.block.ms": "delivery.timeout.ms",
    "metadata.max.idle.ms": "metadata.max.age.ms",
    "partitioner.class": "partitioner",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "sasl.jaas.config": "sasl.username and sasl.password",
    "sasl.login.callback.handler.class": "oauth_cb",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.location",
    "ssl.keystore.key": "ssl.key.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.password": "ssl.ca.location",
    "ssl.truststore.type": "ssl.ca.location",
    "compression.gzip.level": "compression.level",
    "compression.zstd.level": "compression.level",
}
"""Settings of Java's clients that have another name in librdkafka. Files are in PEM form there, and a file of trusted
authorities has no password."""
