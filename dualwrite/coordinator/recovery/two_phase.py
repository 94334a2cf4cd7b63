"""The two modes, ``keep-prepared`` and ``resume``. In both a transaction stays prepared until the database has decided:
the broker keeps it without a timeout, or its timeout is long enough.

``keep-prepared`` is KIP-939. ``resume`` is for today's releases of Apache Kafka: a prepared transaction can time out,
so rows may be committed without their records (a *heuristic abort*), which recovery finds. The user chooses it; it is
never a fallback (docs/decisions/0013).
"""

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dualwrite.client.config.reading import (
    BOOTSTRAP_KEY,
    ID_KEY,
    TIMEOUT_KEY,
    TWO_PHASE_KEY,
    is_two_phase,
    milliseconds_in,
)
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.recovery.prepared_predecessor import PreparedPredecessor
from dualwrite.coordinator.recovery.unprepared_predecessor import UnpreparedPredecessor
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision
from dualwrite.errors import ConfigurationError, PrepareFailedError
from dualwrite.ids import PreparedTxnState

if TYPE_CHECKING:
    from dualwrite.client.admin.control_plane import ControlPlane

TwoPhase = Literal["keep-prepared", "resume"]
KEEP_PREPARED, RESUME = "keep-prepared", "resume"

LONGEST_TIMEOUT_MS = 900_000
"""The longest transaction.timeout.ms that Apache Kafka accepts by default (its transaction.max.timeout.ms)."""

STEP_TIMEOUT = 30.0
"""Timeout in seconds of each step that ends a transaction, and of each control plane request; see step_timeout."""

_RESERVE = 0.1
"""The part of the timeout that is reserved for the database's COMMIT and then Kafka's."""

OWNED_SETTINGS = frozenset({ID_KEY, TIMEOUT_KEY, TWO_PHASE_KEY, "enable.idempotence"})
"""Producer settings that the library sets: a user's value would be ignored or would break the protocol."""


class PredecessorTransaction(Protocol):
    """The open transaction of a predecessor, if there is one."""

    def complete(self, state: PreparedTxnState, *, is_last: bool = True) -> Outcome:
        """Commit it if ``state`` identifies it, abort it otherwise; see PreparedPredecessor.complete."""

    def name(self) -> PreparedTxnState:
        """The state that names it, for the record; the empty state if there is none, or it is ending."""

    def end(self, decided: RecoveryDecision) -> Outcome:
        """Commit or abort it, without comparing."""


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


def step_timeout(delivery_timeout: float) -> float:
    """Timeout in seconds of a step that ends a transaction: ``delivery_timeout``, but STEP_TIMEOUT at most."""
    return min(STEP_TIMEOUT, delivery_timeout)


def timeout_ms(kafka: Mapping[str, Any]) -> int:
    """The transaction.timeout.ms of producers that resume.

    :raises ConfigurationError: if it is no number.
    """
    given = milliseconds_in(kafka, TIMEOUT_KEY)
    return LONGEST_TIMEOUT_MS if given is None else given


def producer_settings(kafka: Mapping[str, Any], two_phase: str) -> dict[str, Any]:
    """``kafka`` completed for the producers and the control plane.

    :raises ConfigurationError: if it is not a mapping, or a setting is missing, or is reserved for the library.
    """
    if not isinstance(kafka, Mapping):
        raise ConfigurationError(
            f'kafka is a {type(kafka).__name__}: give a dict, as {{"bootstrap.servers": "HOST:PORT"}}'
        )
    servers = kafka.get(BOOTSTRAP_KEY)
    if not servers:
        if "bootstrap_servers" in kafka:
            raise ConfigurationError('kafka: "bootstrap_servers" is not a setting: write "bootstrap.servers"')
        raise ConfigurationError('kafka: "bootstrap.servers" is missing: name at least one broker as HOST:PORT')
    if not isinstance(servers, str):
        raise ConfigurationError(
            f'kafka: "bootstrap.servers" is a {type(servers).__name__}: give one text, as "HOST:PORT,HOST:PORT"'
        )
    for key in sorted(reserved_settings(two_phase) & kafka.keys()):
        raise ConfigurationError(f'kafka: "{key}" is set by DualWrite itself: remove it')
    if two_phase != RESUME:
        return dict(kafka)
    return {TIMEOUT_KEY: LONGEST_TIMEOUT_MS, **kafka, TWO_PHASE_KEY: False}


def predecessor_transactions(
    config: Mapping[str, Any], runtime: Runtime
) -> Callable[["ControlPlane", str], PredecessorTransaction]:
    """The factory of PredecessorTransactions for producers with ``config``: called with the control plane and the
    transactional id."""
    if is_two_phase(config):
        return PreparedPredecessor
    return partial(UnpreparedPredecessor, clock=runtime.monotonic, sleep=runtime.sleep)


class TimeoutWatch:
    """Prevents that a transaction is prepared if it may time out before it is committed.

    :param timeout_ms: transaction.timeout.ms.
    :param clock: monotonic seconds.
    """

    def __init__(self, timeout_ms: int, clock: Callable[[], float]) -> None:
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._begun_at = clock()

    def begin(self) -> None:
        """Note that a transaction begins; in the broker it begins a little later."""
        self._begun_at = self._clock()

    def require_time(self, transactional_id: str) -> None:
        """Require that enough of the timeout is left.

        :raises PrepareFailedError: if not.
        """
        lasted = self._clock() - self._begun_at
        if lasted * 1000 > self._timeout_ms * (1 - _RESERVE):
            raise PrepareFailedError(
                f"transaction of {transactional_id}: it has lasted {lasted:.1f} s, and the broker aborts it after "
                f"{TIMEOUT_KEY}, {self._timeout_ms}: make the unit of work shorter, or the timeout longer"
            )
