"""A librdkafka configuration for a dual write's transactional producer: required, refused, and default settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dualwrite.errors import ConfigurationError
from dualwrite.ids import TWO_PHASE_TIMEOUT_MS, validated_transactional_id

TWO_PHASE_KEY = "transaction.two.phase.commit.enable"

DEFAULT_DELIVERY_TIMEOUT_MS = 30_000
"""How long a record may stay unacknowledged. A unit of work holds its database locks for Kafka at most so long."""

DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
"""The default of librdkafka and of Kafka."""

_PROPAGATION, _PROPAGATION_MS = "topic.metadata.propagation.max.ms", 30_000
"""How long a topic may be unknown: librdkafka's own default, and as long as DEFAULT_DELIVERY_TIMEOUT_MS."""

_LOG_INFO = 6

DEFAULTS: dict[str, Any] = {
    # Records are sent while the unit of work runs its SQL. Measured on Apache Kafka 4.4.0 with 3 ms of SQL after
    # produce: prepare and commit take 0.8 ms with 0 and 1.35 ms with librdkafka's 5. Large transactions are equally
    # fast with both, as records that wait for a request in flight are sent together anyhow.
    "linger.ms": 0,
    # The producer reconnects to a restarted broker within a second, not after librdkafka's ten.
    "reconnect.backoff.max.ms": 1000,
}
_ALIASES = {
    "linger.ms": "queue.buffering.max.ms",
    "message.timeout.ms": "delivery.timeout.ms",
}
_DELIVERY_CALLBACKS = ("on_delivery", "dr_cb")


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """The settings of a producer.

    :param librdkafka: the configuration that librdkafka gets.
    :param transactional_id: its transactional.id.
    :param delivery_timeout: seconds until every record has its delivery report.
    :param two_phase: True for a transaction that never expires; False for one with a timeout.
    :param on_delivery: the configured delivery callback, for records without a callback of their own.
    """

    librdkafka: dict[str, Any]
    transactional_id: str
    delivery_timeout: float
    two_phase: bool
    on_delivery: Any = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ProducerConfig":
        """``config`` with the settings that a dual write needs.

        :raises ConfigurationError: if a setting is missing or contradicts a dual write; the message says which.
        """
        made = dict(config)
        two_phase = is_two_phase(made)
        made.pop(TWO_PHASE_KEY, None)
        _set_transaction_timeout(made, two_phase)
        if not made.get("transactional.id"):
            raise ConfigurationError("transactional.id is not set")
        if str(made.get("delivery.report.only.error", False)).lower() == "true":
            raise ConfigurationError("delivery.report.only.error: every record's delivery report is needed; remove it")
        on_delivery = next((made[key] for key in _DELIVERY_CALLBACKS if made.get(key) is not None), None)
        for key in _DELIVERY_CALLBACKS:
            made.pop(key, None)
        for key, value in DEFAULTS.items():
            if key not in made and _ALIASES.get(key) not in made:
                made[key] = value
        # librdkafka reports a lost connection only in its log (see ConnectionWatch); loggers have levels too.
        made["log.connection.close"] = True
        made["log_level"] = max(_LOG_INFO, int(made.get("log_level", _LOG_INFO)))
        # librdkafka compares socket.timeout.ms with transaction.timeout.ms + 100, which overflows in two-phase commit,
        # and refuses any value. Every call that could wait on a silent broker has a deadline of its own instead.
        made.pop("socket.timeout.ms", None)
        transactional_id = validated_transactional_id(str(made["transactional.id"]))
        timeout_ms = _delivery_timeout_ms(made)
        # Otherwise a record for a deleted topic would time out before it is refused, and be retried for ever.
        made.setdefault(_PROPAGATION, min(_PROPAGATION_MS, timeout_ms // 2))
        return cls(made, transactional_id, timeout_ms / 1000, two_phase, on_delivery)


def is_two_phase(config: Mapping[str, Any]) -> bool:
    """Whether ``config`` enables two-phase commit (KIP-939); True if it does not say.

    :raises ConfigurationError: if it is neither true nor false.
    """
    value = config.get(TWO_PHASE_KEY)
    enabled = "true" if value is None else str(value).lower()
    if enabled not in ("true", "false"):
        raise ConfigurationError(f"{TWO_PHASE_KEY} {value!r}: allowed: true, false")
    return enabled == "true"


def _set_transaction_timeout(made: dict[str, Any], two_phase: bool) -> None:
    if two_phase and "transaction.timeout.ms" in made:
        raise ConfigurationError(
            f"transaction.timeout.ms: not together with {TWO_PHASE_KEY}, the default: a transaction in two-phase commit"
            " never expires; remove the setting"
        )
    if two_phase:
        made["transaction.timeout.ms"] = TWO_PHASE_TIMEOUT_MS
    else:
        made["transaction.timeout.ms"] = _milliseconds(
            "transaction.timeout.ms", made.get("transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS)
        )


def _milliseconds(key: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{key} {value!r}: give milliseconds") from None


def _delivery_timeout_ms(made: dict[str, Any]) -> int:
    """message.timeout.ms, set explicitly: librdkafka would derive an endless one from transaction.timeout.ms."""
    key = next((name for name in ("message.timeout.ms", "delivery.timeout.ms") if name in made), "message.timeout.ms")
    longest = made["transaction.timeout.ms"]
    value = made.setdefault(key, min(DEFAULT_DELIVERY_TIMEOUT_MS, longest))
    milliseconds = _milliseconds(key, value)
    if milliseconds > longest:
        raise ConfigurationError(f"{key} {milliseconds}: at most transaction.timeout.ms, {longest}")
    if milliseconds <= 0:
        raise ConfigurationError(f"{key} {milliseconds}: a record that may stay unacknowledged for ever holds locks")
    return milliseconds
