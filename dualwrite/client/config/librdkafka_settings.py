"""The librdkafka configuration of a dual write's transactional producer: required, refused, and default settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dualwrite.client.config.native_keys import KEYS
from dualwrite.client.config.native_rules import integer
from dualwrite.client.config.reading import (
    DELIVERY_KEY,
    TIMEOUT_KEY,
    TWO_PHASE_KEY,
    delivery_timeout_ms,
    is_two_phase,
    milliseconds_in,
    name_in,
    one_name_in,
    require_mapping,
    transaction_timeout_ms,
    transactional_id_in,
    value_in,
)
from dualwrite.errors import ConfigurationError
from dualwrite.ids import LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS

_PROPAGATION, _PROPAGATION_MS = "topic.metadata.propagation.max.ms", 30_000
"""How long a topic may be unknown: librdkafka's own default, and as long as the default of delivery.timeout.ms."""

_SOCKET, _SOCKET_MS = "socket.timeout.ms", 60_000
"""How long an answer may take: librdkafka's own default, which must be set. For a transactional producer librdkafka
derives it from transaction.timeout.ms, and counts it in microseconds in 32 bits: above 35 minutes that overflows, and
beside 2147483647 it is always over. librdkafka looks at its requests once a second; it then takes each that it has not
sent yet, or that is not answered yet, for timed out, closes the connection, and repeats the request half a second later
(confluentinc/confluent-kafka-python#1915). Beside 2147483647 it refuses any socket.timeout.ms, as it adds 100 to that
before it compares. So the library asks for two-phase commit by 2147483547 (ids.py)."""

_TOPICS = "default.topic.config"
_LOG_INFO = 6
_LOG_LEVEL = integer(0, 7)

DEFAULTS: dict[str, Any] = {
    # Records are sent while the unit of work runs its SQL. Measured on Apache Kafka 4.4.0 with 3 ms of SQL after
    # produce: prepare and commit take 0.8 ms with 0 and 1.35 ms with librdkafka's 5. Large transactions are equally
    # fast with both, as records that wait for a request in flight are sent together anyhow.
    "linger.ms": 0,
    # The producer reconnects to a restarted broker within a second, not after librdkafka's ten.
    "reconnect.backoff.max.ms": 1000,
}


@dataclass(frozen=True, slots=True)
class LibrdkafkaSettings:
    """The settings of a producer on librdkafka.

    :param librdkafka: the configuration that librdkafka gets.
    :param transactional_id: its transactional.id.
    :param delivery_timeout: seconds until every record has its delivery report.
    :param two_phase: True for a transaction that never expires; False for one with a timeout.
    :param transaction_timeout_ms: that timeout.
    :param on_delivery: the configured delivery callback, for records without a callback of their own.
    """

    librdkafka: dict[str, Any]
    transactional_id: str
    delivery_timeout: float
    two_phase: bool
    transaction_timeout_ms: int
    on_delivery: Any = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "LibrdkafkaSettings":
        """``config`` with the settings that a dual write needs. None as a value means that the setting is not given.

        :raises ConfigurationError: if a setting is missing or contradicts a dual write; the message says which.
        """
        require_mapping(config)
        made = {key: value for key, value in config.items() if value is not None}
        two_phase = is_two_phase(made)
        made.pop(TWO_PHASE_KEY, None)
        transaction_ms = transaction_timeout_ms(milliseconds_in(made, TIMEOUT_KEY), two_phase)
        if two_phase:
            transaction_ms = LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS
        made[TIMEOUT_KEY] = transaction_ms
        transactional_id = transactional_id_in(made)
        if str(made.get("delivery.report.only.error", False)).lower() == "true":
            raise ConfigurationError("delivery.report.only.error: every record's delivery report is needed; remove it")
        if _TOPICS in made:  # librdkafka would take them instead of those that are checked and set here
            raise ConfigurationError(f"{_TOPICS}: {KEYS[_TOPICS].meaning}")
        on_delivery = value_in(made, "on_delivery")
        while (name := name_in(made, "on_delivery")) is not None:
            del made[name]
        for key, value in DEFAULTS.items():
            if name_in(made, key) is None:
                made[key] = value
        # librdkafka reports a lost connection only in its log (see ConnectionWatch); loggers have levels too.
        made["log.connection.close"] = True
        made["log_level"] = max(_LOG_INFO, _LOG_LEVEL.checked("log_level", made.get("log_level", _LOG_INFO)))
        socket_ms = milliseconds_in(made, _SOCKET)
        made[_SOCKET] = min(_SOCKET_MS if socket_ms is None else socket_ms, transaction_ms)
        # Set explicitly: librdkafka would derive an endless one from transaction.timeout.ms.
        delivery = one_name_in(made, DELIVERY_KEY)
        timeout_ms = delivery_timeout_ms(delivery, milliseconds_in(made, DELIVERY_KEY), transaction_ms)
        if timeout_ms <= 0:
            raise ConfigurationError(
                f"{delivery} {timeout_ms}: use more than 0 ms. Without a limit an unacknowledged record holds the "
                "database's locks for ever"
            )
        made[delivery] = timeout_ms  # as it was read here: librdkafka reads "010" as 8
        # Otherwise a record for a deleted topic would time out before it is refused, and be retried for ever.
        made.setdefault(_PROPAGATION, min(_PROPAGATION_MS, timeout_ms // 2))
        return cls(made, transactional_id, timeout_ms / 1000, two_phase, transaction_ms, on_delivery)
