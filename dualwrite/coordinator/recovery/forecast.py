"""Foretells what recovery would find and do, from the rules of recovery itself. Reads only: it fences no producer, and
ends no transaction.
"""

from typing import TYPE_CHECKING, NamedTuple

from dualwrite.client.terms.transaction_states import ENDING
from dualwrite.coordinator.recovery.prepared_predecessor import EndingCheck, EndingNotCheckedError
from dualwrite.coordinator.rules.recovery_decision import (
    DETAILS,
    LEFT_ELSEWHERE,
    UNCLAIMED,
    Outcome,
    end_of,
    identity_after,
    outcome_in_log,
    verdict,
)
from dualwrite.ids import NO_PRODUCER, EndedTransaction, Ending, OngoingTransaction, PreparedTxnState

if TYPE_CHECKING:
    from dualwrite.client.admin.control_plane import ControlPlane, TransactionDescription

IS_ENDING = "Kafka is writing the markers of its end: look again"

IS_UNKNOWN_TO_KAFKA = (
    "Kafka does not know the transactional id, and its log does not show how the transaction ended. Recovery does "
    "nothing if the id has expired, and finds a heuristic hazard if the cluster has lost its data"
)


class Forecast(NamedTuple):
    """The foretold outcome of a slot's recovery.

    :param outcome: None if it cannot be told before recovery.
    :param detail: the meaning of a heuristic outcome, in a line for the operator; or why there is no outcome.
    """

    outcome: Outcome | None
    detail: str = ""

    @property
    def is_heuristic(self) -> bool:
        """True if the two sides of a unit of work differ."""
        return self.outcome is not None and self.outcome.is_heuristic


class Forecaster:
    """Foretells the outcomes of a sweep, which recovers slots without using them.

    A partition whose leader does not answer is asked once: the other slots do not wait for it.

    :param control: describes transactions and reads logs.
    """

    def __init__(self, control: "ControlPlane") -> None:
        self._control = control
        self._silent: dict[tuple[str, int] | None, str] = {}
        """By topic and partition: the reason why the leader could not be asked."""

    def foretell(
        self,
        transactional_id: str,
        state: PreparedTxnState,
        described: "TransactionDescription | None",
        ongoing: OngoingTransaction | None,
        *,
        is_new: bool,
    ) -> Forecast:
        """What the next recovery would find and do.

        :param state: the state in the slot's row.
        :param described: the coordinator's description; None if it does not know the transactional id.
        :param ongoing: the open transaction; None if none waits for a decision.
        :param is_new: True if the row is new in this cluster and not recovered yet, or will be once it is taken
            (LeaseMemory.is_new).
        """
        if described is not None and described.state in ENDING:
            return Forecast(None, IS_ENDING)
        if is_new and (state or ongoing is not None):
            units = ((state, LEFT_ELSEWHERE), (ongoing, UNCLAIMED))
            return Forecast(Outcome.HEURISTIC_HAZARD, ". Besides, ".join(detail for unit, detail in units if unit))
        now = NO_PRODUCER if described is None else identity_after(described.producer)
        check = EndingCheck(self._control, transactional_id, now, is_last=False)
        done = end_of(verdict(state, ongoing))
        if not check.is_needed(state, done):
            return Forecast(done)
        ended = self._ended(check, state)
        if isinstance(ended, str):
            return Forecast(None, ended)
        if described is None and ended.ending is Ending.UNKNOWN:
            return Forecast(None, IS_UNKNOWN_TO_KAFKA)
        outcome = outcome_in_log(state, done, now, ended, ongoing)
        if ended.unread and not outcome.is_heuristic:
            return Forecast(None, f"this client may not read topic {ended.unread}, whose log tells it: grant READ")
        return Forecast(outcome, DETAILS.get(outcome, ""))

    def _ended(self, check: EndingCheck, state: PreparedTxnState) -> EndedTransaction | str:
        """How the transaction of ``state`` has ended; or the reason why its partition's leader cannot be asked."""
        first = state.first_record
        place = None if first is None else (first.topic, first.partition)
        if place in self._silent:
            return self._silent[place]
        try:
            return check.ended(state)
        except EndingNotCheckedError as error:
            self._silent[place] = str(error.__cause__)
            return self._silent[place]
