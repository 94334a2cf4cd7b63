"""The two modes, ``keep-prepared`` and ``resume``. In both a transaction stays prepared until the database has decided:
the broker keeps it without a timeout, or its timeout is long enough.

``keep-prepared`` is KIP-939. ``resume`` is for today's releases of Apache Kafka: a prepared transaction can time out,
so rows may be committed without their records (a *heuristic abort*), which recovery finds. The user chooses it; it is
never a fallback (docs/decisions/0013).

Here also: which settings in ``kafka`` are the user's in each mode, and which are the library's.
"""

from collections.abc import Mapping, Set
from typing import Any, Literal

from dualwrite.client.config.reading import ID_KEY, TIMEOUT_KEY, TWO_PHASE_KEY, milliseconds_in, servers_in
from dualwrite.errors import ConfigurationError

TwoPhase = Literal["keep-prepared", "resume"]
KEEP_PREPARED, RESUME = "keep-prepared", "resume"

LONGEST_TIMEOUT_MS = 900_000
"""The longest transaction.timeout.ms that Apache Kafka accepts by default (its transaction.max.timeout.ms)."""

OWNED_SETTINGS = frozenset({ID_KEY, TIMEOUT_KEY, TWO_PHASE_KEY, "enable.idempotence"})
"""Producer settings that the library sets: a user's value would be ignored or would break the protocol."""


def require_mode(two_phase: str, *, replay: bool) -> None:
    """Refuse an invalid mode.

    :raises ConfigurationError: naming the argument.
    """
    if two_phase not in (KEEP_PREPARED, RESUME):
        raise ConfigurationError(f"two_phase {two_phase!r}: use {KEEP_PREPARED!r} or {RESUME!r}")
    if replay and two_phase != RESUME:
        raise ConfigurationError(
            f"replay: only with two_phase={RESUME!r}; a broker that keeps prepared transactions does not time them out"
        )


def reserved_settings(two_phase: str) -> Set[str]:
    """Those of OWNED_SETTINGS that a user may not set in this mode."""
    return OWNED_SETTINGS - {TIMEOUT_KEY} if two_phase == RESUME else OWNED_SETTINGS


def resume_timeout_ms(kafka: Mapping[str, Any]) -> int:
    """The transaction.timeout.ms of producers that resume.

    :raises ConfigurationError: if it is no number.
    """
    timeout_ms = milliseconds_in(kafka, TIMEOUT_KEY)
    return LONGEST_TIMEOUT_MS if timeout_ms is None else timeout_ms


def completed_config(kafka: Mapping[str, Any], two_phase: str) -> dict[str, Any]:
    """``kafka`` completed for the producers and the control plane.

    :raises ConfigurationError: if it is not a mapping, or a setting is missing, or is reserved for the library.
    """
    if not isinstance(kafka, Mapping):
        raise ConfigurationError(
            f'kafka is a {type(kafka).__name__}: give a dict, as {{"bootstrap.servers": "HOST:PORT"}}'
        )
    servers_in(kafka)
    for key in sorted(reserved_settings(two_phase) & kafka.keys()):
        raise ConfigurationError(f'kafka: "{key}" is set by DualWrite itself: remove it')
    if two_phase != RESUME:
        return dict(kafka)
    return {**kafka, TIMEOUT_KEY: resume_timeout_ms(kafka), TWO_PHASE_KEY: False}
