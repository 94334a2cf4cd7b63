"""Reads single values of a librdkafka configuration, by any name of the setting.

All settings of the clients are built on it, and other rooms read through it the few keys that they need. None means
that a setting is not given; so does empty text, for a setting that is text or a path.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from dualwrite.client.config.native_keys import ALIASES, KEYS, LARGEST_INT
from dualwrite.client.config.native_rules import FLAGS, integer, shown
from dualwrite.errors import ConfigurationError
from dualwrite.ids import TWO_PHASE_TIMEOUT_MS, validated_transactional_id

BOOTSTRAP_KEY = "bootstrap.servers"
DELIVERY_KEY = "delivery.timeout.ms"
TIMEOUT_KEY = "transaction.timeout.ms"
ID_KEY = "transactional.id"
TWO_PHASE_KEY = "transaction.two.phase.commit.enable"

_MILLISECONDS = integer(-LARGEST_INT, LARGEST_INT)
"""librdkafka's type; what is allowed of it is each reader's to say."""

STEP_TIMEOUT = 30.0
"""The longest timeout in seconds of a step that ends a transaction, and of a control plane request; see
step_timeout."""


def require_mapping(config: object) -> None:
    """Refuse a configuration of another kind.

    :raises ConfigurationError: naming its type.
    """
    if not isinstance(config, Mapping):
        raise ConfigurationError(f"the configuration is of type {type(config).__name__}: allowed: a dict of settings")


@cache
def names_of(key: str) -> tuple[str, ...]:
    """All names of the setting ``key``, its own first."""
    return (key, *(alias for alias, name in ALIASES.items() if name == key))


def meant_by(name: str, known: Sequence[str] = (*KEYS, *ALIASES)) -> str | None:
    """The setting that ``name``, which is none, probably means."""
    return next(iter(get_close_matches(name.lower(), known, 1)), None)


def hint_for(name: str) -> str:
    """The end of the message about ``name``, which is no setting; empty if it resembles none."""
    close = meant_by(name)
    return f"; did you mean {close}?" if close else ""


def name_in(config: Mapping[str, Any], key: str) -> str | None:
    """The name under which ``config`` gives the setting ``key``; None if it does not give it."""
    return next((name for name in names_of(key) if config.get(name) is not None), None)


def one_name_in(config: Mapping[str, Any], key: str) -> str:
    """The name under which ``config`` gives the setting ``key``; ``key`` itself if it does not.

    :raises ConfigurationError: if it is given under two names with two values, of which librdkafka would take the last.
    """
    names = [name for name in names_of(key) if config.get(name) is not None]
    if len({str(config[name]) for name in names}) > 1:
        raise ConfigurationError(f"{' and '.join(names)} are one setting with two values: give one of them")
    return names[0] if names else key


def value_in(config: Mapping[str, Any], key: str) -> Any:
    """The value of the setting ``key``, under any of its names; its default if it is not given."""
    name = name_in(config, key)
    return KEYS[key].default if name is None else config[name]


def text_in(config: Mapping[str, Any], key: str) -> str | None:
    """A setting that is text or a path; None if it is not given and has no default.

    :raises ConfigurationError: if it is neither.
    """
    value = value_in(config, key)
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"{key} of type {type(value).__name__}: give text")
    return value or None


def flag_in(config: Mapping[str, Any], key: str) -> bool:
    """A setting that is true or false, as librdkafka spells them.

    :raises ConfigurationError: if it is neither.
    """
    value = value_in(config, key)
    if str(value).lower() not in FLAGS:
        raise ConfigurationError(f"{key} {shown(value)}: allowed: true, false")
    return FLAGS[str(value).lower()]


def milliseconds_in(config: Mapping[str, Any], key: str) -> int | None:
    """A setting in milliseconds; None if it is not given.

    :raises ConfigurationError: if it is no whole number, or one that no client can have.
    """
    name = name_in(config, key)
    if name is None:
        return None
    try:
        return int(_MILLISECONDS.read(config[name]))
    except (TypeError, ValueError, OverflowError):
        told = shown(config[name])
        raise ConfigurationError(f"{name} {told}: give milliseconds, a whole number up to {LARGEST_INT}") from None


def servers_in(config: Mapping[str, Any]) -> str:
    """The brokers to begin with.

    :raises ConfigurationError: if they are missing, or not one text, or if the text names none; or if two names have
        two texts, as librdkafka could write to another cluster than recovery looks at.
    """
    servers = config.get(one_name_in(config, BOOTSTRAP_KEY))
    if not servers:
        unknown = (str(name) for name in config if name not in KEYS and name not in ALIASES)
        misspelt = next((name for name in unknown if meant_by(name, names_of(BOOTSTRAP_KEY))), None)
        if misspelt is not None:
            raise ConfigurationError(f'"{misspelt}" is not a setting: write "{BOOTSTRAP_KEY}"')
        raise ConfigurationError(f"{BOOTSTRAP_KEY} is not set: name at least one broker as HOST:PORT")
    if not isinstance(servers, str):
        raise ConfigurationError(
            f'"{BOOTSTRAP_KEY}" is a {type(servers).__name__}: give one text, as "HOST:PORT,HOST:PORT"'
        )
    if not any(part.strip() for part in servers.split(",")):
        raise ConfigurationError(f"{BOOTSTRAP_KEY} {servers!r}: name at least one broker as HOST:PORT")
    return servers


def is_two_phase(config: Mapping[str, Any]) -> bool:
    """Whether ``config`` enables two-phase commit (KIP-939), as it does if it does not say.

    :raises ConfigurationError: if it is neither true nor false.
    """
    return flag_in(config, TWO_PHASE_KEY)


def transactional_id_in(config: Mapping[str, Any]) -> str:
    """The transactional id.

    :raises ConfigurationError: if it is missing, or cannot name a producer.
    """
    transactional_id = value_in(config, ID_KEY)
    if transactional_id in (None, ""):
        raise ConfigurationError(f"{ID_KEY} is not set")
    return validated_transactional_id(str(transactional_id))


def transaction_timeout_ms(timeout_ms: int | None, two_phase: bool) -> int:
    """The timeout that InitProducerId asks for.

    :raises ConfigurationError: if one is given for transactions that never expire.
    """
    if not two_phase:
        return int(KEYS[TIMEOUT_KEY].default) if timeout_ms is None else timeout_ms
    if timeout_ms is not None:
        raise ConfigurationError(
            f"{TIMEOUT_KEY} {timeout_ms}: not together with {TWO_PHASE_KEY}=true, the default: a transaction in"
            " two-phase commit never expires; remove one of the two"
        )
    return TWO_PHASE_TIMEOUT_MS


def delivery_timeout_ms(name: str, timeout_ms: int | None, longest: int) -> int:
    """How long a record may stay unacknowledged: at most as long as a transaction may last.

    :param name: the name under which it is given.
    :raises ConfigurationError: if the given one is longer.
    """
    if timeout_ms is not None and timeout_ms > longest:
        raise ConfigurationError(f"{name} {timeout_ms}: use at most {longest}, the value of {TIMEOUT_KEY}")
    return min(int(KEYS[DELIVERY_KEY].default), longest) if timeout_ms is None else timeout_ms


def step_timeout(delivery_timeout: float) -> float:
    """Timeout in seconds of a step that ends a transaction: ``delivery_timeout``, but STEP_TIMEOUT at most."""
    return min(STEP_TIMEOUT, delivery_timeout)
