"""The settings of a native producer, read strictly from librdkafka's keys.

A wrong name or value is an error that says what is allowed. ``native_keys.py`` and docs/reference/producer.md describe
each setting.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dualwrite.client.config.native_keys import ALIASES, JAVAS, KEYS, LARGEST_INT, Use
from dualwrite.client.config.reading import (
    DELIVERY_KEY,
    TIMEOUT_KEY,
    TWO_PHASE_KEY,
    delivery_timeout_ms,
    hint_for,
    require_mapping,
    transaction_timeout_ms,
    transactional_id_in,
)
from dualwrite.client.config.settings import ClientSettings
from dualwrite.errors import ConfigurationError
from dualwrite.ids import TWO_PHASE_TIMEOUT_MS
from dualwrite.records.compression import Codec

_MILLISECONDS = 1000
_KIBIBYTE = 1024
_PLAIN_NAME = re.compile(r"[\w.-]+")
_LEVELS = {Codec.NONE: (-1, 12), Codec.GZIP: (-1, 9), Codec.SNAPPY: (-1, 0), Codec.LZ4: (-1, 0), Codec.ZSTD: (-1, 12)}


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings of a native producer. Durations are in seconds, except those that are sent to a broker; sizes are in
    bytes. Each setting names librdkafka's key."""

    client: ClientSettings
    """How to reach the cluster."""
    transactional_id: str
    two_phase_commit: bool = True
    """transaction.two.phase.commit.enable: True for InitProducerId with Enable2Pc (KIP-939)."""
    transaction_timeout_ms: int = TWO_PHASE_TIMEOUT_MS
    """transaction.timeout.ms, as InitProducerId asks for it; with two-phase commit, transactions never expire."""
    codec: Codec = Codec.NONE
    """compression.type"""
    compression_level: int | None = None
    """compression.level, as for :func:`~dualwrite.records.compression.compress`."""
    partitioner: str = "consistent_random"
    is_sticky: bool = True
    """sticky.partitioning.linger.ms: True if records without a key share a partition for a batch."""
    linger: float | None = None
    """linger.ms: how long a batch may wait for more records; None: until it is full, or the records are flushed."""
    batch_size: int = 1_000_000
    """batch.size, before compression: a batch takes no more records past it; a single record may be larger."""
    batch_records: int = 10_000
    """batch.num.messages"""
    max_message_bytes: int = 1_000_000
    """message.max.bytes: the limit of one record, and of one request."""
    buffer_bytes: int = 1_048_576 * _KIBIBYTE
    """queue.buffering.max.kbytes: the limit of unacknowledged records."""
    buffer_records: int = 100_000
    """queue.buffering.max.messages: the same as a number of records."""
    max_in_flight: int = 5
    """max.in.flight.requests.per.connection; at most five, as a broker remembers five batches (KIP-98)."""
    ack_timeout_ms: int = 30_000
    """request.timeout.ms, as Produce asks for it: how long a leader may wait for its followers."""
    delivery_timeout: float = 30.0
    """delivery.timeout.ms: for a batch's acknowledgement once it is due, and for init, commit, abort and
    send_offsets."""
    topic_propagation: float = 30.0
    """topic.metadata.propagation.max.ms: how long a topic may be unknown."""
    retries: int = LARGEST_INT
    """retries: of one batch."""
    retry_backoff: float = 0.1
    """retry.backoff.ms, doubled with each attempt."""
    retry_backoff_max: float = 1.0
    reconnect_backoff: float = 0.1
    """reconnect.backoff.ms, doubled with each attempt."""
    reconnect_backoff_max: float = 1.0
    metadata_max_age: float | None = 300.0
    """topic.metadata.refresh.interval.ms: when to ask for leaders again; None: only when something has changed."""
    max_idle: float | None = None
    """connections.max.idle.ms: when to close an idle connection; None: never."""
    allow_auto_create_topics: bool = True
    """allow.auto.create.topics"""
    on_delivery: Callable[..., Any] | None = None
    """on_delivery: called for each record without a callback of its own."""

    def pause_after(self, attempts: int) -> float:
        """Seconds until the next attempt, after ``attempts`` attempts."""
        return min(self.retry_backoff * 2.0 ** min(attempts - 1, 30), self.retry_backoff_max)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ProducerSettings":
        """The settings in ``config``. None as a value means that the setting is not given.

        :raises ConfigurationError: if a setting is missing, unknown, refused, out of its range, or contradicts another;
            the message names it, and what is allowed.
        """
        parsed = _parsed(config)
        values = {name: key.default for name, key in KEYS.items() if key.use is Use.TAKEN} | parsed
        two_phase = values[TWO_PHASE_KEY]
        transaction_ms = transaction_timeout_ms(parsed.get(TIMEOUT_KEY), two_phase)
        delivery_ms = delivery_timeout_ms(DELIVERY_KEY, parsed.get(DELIVERY_KEY), transaction_ms)
        if (values["linger.ms"] or 0) >= delivery_ms:
            raise ConfigurationError(
                f"linger.ms {values['linger.ms']:g}: must be less than {DELIVERY_KEY}, {delivery_ms}"
            )
        codec = Codec.NONE if values["compression.type"] == "inherit" else Codec[values["compression.type"].upper()]
        return cls(
            client=ClientSettings.from_config(_of_client(values)),
            transactional_id=transactional_id_in(values),
            two_phase_commit=two_phase,
            transaction_timeout_ms=transaction_ms,
            delivery_timeout=delivery_ms / _MILLISECONDS,
            ack_timeout_ms=values["request.timeout.ms"],
            max_in_flight=values["max.in.flight.requests.per.connection"],
            retries=values["retries"],
            **_backoff("retry.backoff", parsed, values),
            **_backoff("reconnect.backoff", parsed, values),
            max_message_bytes=values["message.max.bytes"],
            batch_size=min(values["batch.size"], values["message.max.bytes"]),
            batch_records=values["batch.num.messages"],
            linger=None if values["linger.ms"] is None else values["linger.ms"] / _MILLISECONDS,
            buffer_bytes=values["queue.buffering.max.kbytes"] * _KIBIBYTE,
            buffer_records=values["queue.buffering.max.messages"] or LARGEST_INT,
            codec=codec,
            compression_level=_level(codec, values["compression.level"]),
            partitioner=values["partitioner"],
            is_sticky=values["partitioner"] != "random" and values["sticky.partitioning.linger.ms"] > 0,
            metadata_max_age=_metadata_max_age(values),
            topic_propagation=values["topic.metadata.propagation.max.ms"] / _MILLISECONDS,
            max_idle=values["connections.max.idle.ms"] / _MILLISECONDS or None,
            allow_auto_create_topics=values["allow.auto.create.topics"],
            on_delivery=values["on_delivery"],
        )


def _parsed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that have an effect, parsed, under the names of ``KEYS``."""
    require_mapping(config)
    parsed: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for name, value in config.items():
        known = ALIASES.get(name, name)
        key = KEYS.get(known)
        if key is None:
            raise ConfigurationError(_unknown(name))
        if value is None:
            continue
        if key.use is Use.REFUSED:
            raise ConfigurationError(f"{name}: refused by the native producer: {key.meaning}")
        read = key.rule.checked(name, value)
        if known in parsed and parsed[known] != read:
            raise ConfigurationError(f"{spelt[known]} and {name} are one setting with two values: give one of them")
        spelt[known] = name
        if key.use is Use.TAKEN:
            parsed[known] = read
    return parsed


def _unknown(name: Any) -> str:
    if isinstance(name, str) and name in JAVAS:
        return f"{name}: a setting of the Java producer; here it is {JAVAS[name]}"
    shown = name if isinstance(name, str) and _PLAIN_NAME.fullmatch(name) else repr(name)
    return f"{shown}: unknown setting{hint_for(str(name))}"


def _of_client(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values for :class:`ClientSettings`, without settings that are not given."""
    if values["security.protocol"].startswith("SASL") and values["sasl.mechanism"] is None:
        raise ConfigurationError(
            f"sasl.mechanism is not set: security.protocol {values['security.protocol']} needs one of"
            f" {KEYS['sasl.mechanism'].rule.says}"
        )
    return {name: value for name, value in values.items() if value is not None}


def _backoff(name: str, parsed: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, float]:
    """The two settings of one kind of pause. If only one is given, the default of the other gives way to it."""
    first, longest = f"{name}.ms", f"{name}.max.ms"
    if first in parsed and longest in parsed and parsed[first] > parsed[longest]:
        raise ConfigurationError(f"{first} {parsed[first]}: at most {longest}, {parsed[longest]}")
    highest = max(values[first], values[longest]) if first in parsed else values[longest]
    field = name.replace(".", "_")
    return {field: min(values[first], highest) / _MILLISECONDS, f"{field}_max": highest / _MILLISECONDS}


def _level(codec: Codec, level: int) -> int | None:
    lowest, highest = _LEVELS[codec]
    if not lowest <= level <= highest:
        raise ConfigurationError(f"compression.level {level}: allowed with {codec.name.lower()}: {lowest} to {highest}")
    return None if level < 0 else level


def _metadata_max_age(values: Mapping[str, Any]) -> float | None:
    interval = values["topic.metadata.refresh.interval.ms"]
    return None if interval < 0 else min(interval, values["metadata.max.age.ms"]) / _MILLISECONDS
