"""The configuration of a native producer: librdkafka's names, read strictly.

A wrong name or value is an error that says what is allowed. ``native_keys.py`` and docs/reference/producer.md describe
each setting.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dualwrite.client.config.native_keys import ALIASES, JAVAS, KEYS, LARGEST_INT, Use
from dualwrite.client.config.settings import ClientSettings
from dualwrite.errors import ConfigurationError
from dualwrite.ids import TWO_PHASE_TIMEOUT_MS, validated_transactional_id
from dualwrite.records.compression import Codec

_TWO_PHASE = "transaction.two.phase.commit.enable"
_MILLISECONDS = 1000
_KIBIBYTE = 1024
_PLAIN_NAME = re.compile(r"[\w.-]+")
_LEVELS = {Codec.NONE: (-1, 12), Codec.GZIP: (-1, 9), Codec.SNAPPY: (-1, 0), Codec.LZ4: (-1, 0), Codec.ZSTD: (-1, 12)}


@dataclass(frozen=True, slots=True)
class NativeConfig:
    """The settings of a native producer. Durations are in seconds, except those that are sent to a broker.

    :param client: how to reach the cluster.
    :param two_phase: True for InitProducerId with Enable2Pc (KIP-939).
    :param transaction_timeout_ms: the timeout in InitProducerId; with two-phase commit, transactions never expire.
    :param delivery_timeout: for a record's acknowledgement, and for everything else that a verb waits for.
    :param ack_timeout_ms: the timeout in Produce.
    :param max_record: bytes of the largest record (message.max.bytes).
    :param batch_bytes: bytes at which a batch is full, before compression.
    :param batch_records: records at which a batch is full.
    :param linger: how long a batch that is not full waits before it is sent; None: until it is full or flushed.
    :param buffer_bytes: the limit of unacknowledged records in bytes.
    :param buffer_records: the limit of unacknowledged records.
    :param level: as for :func:`~dualwrite.records.compression.compress`.
    :param is_sticky: True if records without a key share a partition for a batch.
    :param metadata_max_age: when to ask for leaders again; None is never.
    :param topic_propagation: how long a topic may be unknown.
    :param max_idle: when to close an idle connection; None is never.
    :param on_delivery: called for each record without a callback of its own.
    """

    client: ClientSettings
    transactional_id: str
    two_phase: bool
    transaction_timeout_ms: int
    delivery_timeout: float
    ack_timeout_ms: int
    max_in_flight: int
    retries: int
    retry_backoff: float
    retry_backoff_max: float
    reconnect_backoff: float
    reconnect_backoff_max: float
    max_record: int
    batch_bytes: int
    batch_records: int
    linger: float | None
    buffer_bytes: int
    buffer_records: int
    codec: Codec
    level: int | None
    partitioner: str
    is_sticky: bool
    metadata_max_age: float | None
    topic_propagation: float
    max_idle: float | None
    allow_auto_create_topics: bool
    on_delivery: Callable[..., Any] | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "NativeConfig":
        """The settings in ``config``. None as a value means that the setting is not given.

        :raises ConfigurationError: if a setting is missing, unknown, refused, out of its range, or contradicts another;
            the message names it, and what is allowed.
        """
        given = _given(config)
        values = {name: key.default for name, key in KEYS.items() if key.use is Use.TAKEN} | given
        two_phase = values[_TWO_PHASE]
        codec = Codec.NONE if values["compression.type"] == "inherit" else Codec[values["compression.type"].upper()]
        batch_bytes = min(values["batch.size"], values["message.max.bytes"])
        return cls(
            client=ClientSettings.from_config(_of_client(values)),
            transactional_id=_transactional_id(values),
            two_phase=two_phase,
            transaction_timeout_ms=_transaction_timeout_ms(given, values),
            delivery_timeout=_delivery_timeout_ms(given, values) / _MILLISECONDS,
            ack_timeout_ms=values["request.timeout.ms"],
            max_in_flight=values["max.in.flight.requests.per.connection"],
            retries=values["retries"],
            **_backoff("retry.backoff", given, values),
            **_backoff("reconnect.backoff", given, values),
            max_record=values["message.max.bytes"],
            batch_bytes=batch_bytes,
            batch_records=values["batch.num.messages"],
            linger=None if values["linger.ms"] is None else values["linger.ms"] / _MILLISECONDS,
            buffer_bytes=values["queue.buffering.max.kbytes"] * _KIBIBYTE,
            buffer_records=values["queue.buffering.max.messages"] or LARGEST_INT,
            codec=codec,
            level=_level(codec, values["compression.level"]),
            partitioner=values["partitioner"],
            is_sticky=values["partitioner"] != "random" and values["sticky.partitioning.linger.ms"] > 0,
            metadata_max_age=_metadata_max_age(values),
            topic_propagation=values["topic.metadata.propagation.max.ms"] / _MILLISECONDS,
            max_idle=values["connections.max.idle.ms"] / _MILLISECONDS or None,
            allow_auto_create_topics=values["allow.auto.create.topics"],
            on_delivery=values["on_delivery"],
        )


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that have an effect, parsed, under the names of ``KEYS``."""
    if not isinstance(config, Mapping):
        raise ConfigurationError(f"the configuration is of type {type(config).__name__}: allowed: a dict of settings")
    given: dict[str, Any] = {}
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
        try:
            read = key.rule.read(value)
        except (TypeError, ValueError, OverflowError):
            shown = f"of type {type(value).__name__}" if key.rule.is_secret else repr(value)
            raise ConfigurationError(f"{name} {shown}: allowed: {key.rule.kind}{key.rule.says}") from None
        if given.get(known, read) != read:
            raise ConfigurationError(f"{spelt[known]} and {name} are one setting with two values: give one of them")
        spelt[known] = name
        if key.use is Use.TAKEN:
            given[known] = read
    return given


def _unknown(name: Any) -> str:
    if isinstance(name, str) and name in JAVAS:
        return f"{name}: a setting of the Java producer; here it is {JAVAS[name]}"
    close = get_close_matches(str(name), [*KEYS, *ALIASES], 1)
    shown = name if isinstance(name, str) and _PLAIN_NAME.fullmatch(name) else repr(name)
    return f"{shown}: unknown setting" + (f"; did you mean {close[0]}?" if close else "")


def _of_client(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values for :class:`ClientSettings`, without settings that are not given."""
    if values["security.protocol"].startswith("SASL") and values["sasl.mechanism"] is None:
        raise ConfigurationError(
            f"sasl.mechanism is not set: security.protocol {values['security.protocol']} needs one of"
            f" {KEYS['sasl.mechanism'].rule.says}"
        )
    return {name: value for name, value in values.items() if value is not None}


def _transactional_id(values: Mapping[str, Any]) -> str:
    if not values["transactional.id"]:
        raise ConfigurationError("transactional.id is not set")
    return validated_transactional_id(values["transactional.id"])


def _transaction_timeout_ms(given: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    if not values[_TWO_PHASE]:
        return int(values["transaction.timeout.ms"])
    if "transaction.timeout.ms" in given:
        raise ConfigurationError(
            f"transaction.timeout.ms {given['transaction.timeout.ms']}: not together with {_TWO_PHASE}=true, the"
            " default: a transaction in two-phase commit never expires; remove one of the two"
        )
    return TWO_PHASE_TIMEOUT_MS


def _delivery_timeout_ms(given: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    timeout = int(values["delivery.timeout.ms"])
    longest = LARGEST_INT if values[_TWO_PHASE] else int(values["transaction.timeout.ms"])
    if timeout > longest:
        if "delivery.timeout.ms" in given:
            raise ConfigurationError(f"delivery.timeout.ms {timeout}: at most transaction.timeout.ms, {longest}")
        timeout = longest
    if (values["linger.ms"] or 0) >= timeout:
        raise ConfigurationError(f"linger.ms {values['linger.ms']:g}: must be less than delivery.timeout.ms, {timeout}")
    return timeout


def _backoff(name: str, given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, float]:
    """The two settings of one kind of pause. If only one is given, the default of the other gives way to it."""
    first, longest = f"{name}.ms", f"{name}.max.ms"
    if first in given and longest in given and given[first] > given[longest]:
        raise ConfigurationError(f"{first} {given[first]}: at most {longest}, {given[longest]}")
    highest = max(values[first], values[longest]) if first in given else values[longest]
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
