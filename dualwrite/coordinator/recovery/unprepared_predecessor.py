"""The open transaction of a predecessor, without a broker that keeps it (today's Apache Kafka): described, compared and
ended.

KIP-939 fences the predecessor before the decision. Here that is impossible: an InitProducerId would abort the
transaction. So safety rests on the database. The caller has raised the fencing token and holds the row's lock: from
then on the database commits no unit of work of a predecessor, and no such unit can begin a transaction in Kafka (a unit
reads its token before that, see ``begin_unit``). A predecessor that is alive can still do this to its transaction:

- *add records to it, or abort it*: only if it is undecided; then it is aborted here, too.
- *commit it*: only if the database has decided to commit; then it is committed here, too. A repeated EndTxn
  changes nothing: it succeeds, or the one in the older version is fenced.
- *end it between the description and the EndTxn*: the EndTxn is refused or changes nothing, and recovery starts over.

The predecessor cannot begin a new transaction with this identity in between: librdkafka keeps the identity for a
session. So a committing EndTxn affects the described transaction or nothing. The transaction's timeout may abort a
transaction that the database has decided to commit: a heuristic abort, which only the log shows.
"""

from collections.abc import Callable
from itertools import chain, repeat
from typing import TYPE_CHECKING

from dualwrite.client.fate.transaction_fate import ended_transaction, ongoing_transaction, open_transaction
from dualwrite.client.terms.transaction_states import ENDING, ONGOING
from dualwrite.client.terms.versions import TV2
from dualwrite.coordinator.ports.runtime import Runtime
from dualwrite.coordinator.recovery.prepared_predecessor import EndingCheck
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision, end_of, identity_after, verdict
from dualwrite.errors import FencedError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import NO_PRODUCER, Ending, OngoingTransaction, PreparedTxnState, ProducerIdentity
from dualwrite.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from dualwrite.client.admin.control_plane import ControlPlane, TransactionDescription

PATIENCE = 30.0
"""Seconds within which the transaction must end."""

_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5)

_ENDED_BY_OTHERS = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING})


class UnpreparedPredecessor:
    """The transaction, if any, that is open and not fenced under a transactional id when its next owner has taken it.

    :param control: describes the transaction and ends it.
    """

    def __init__(self, control: "ControlPlane", transactional_id: str, *, runtime: Runtime) -> None:
        self._control = control
        self._transactional_id = transactional_id
        self._runtime = runtime

    def complete(self, state: PreparedTxnState, *, is_last: bool = True) -> Outcome:
        """Commit it if ``state`` identifies it, abort it otherwise. If the transaction of ``state`` is not open, the
        log shows its end: an earlier commit, or an abort although the database has decided to commit.

        :param is_last: see PreparedPredecessor.complete.
        """
        ongoing: OngoingTransaction | None = None

        def judge(producer: ProducerIdentity) -> RecoveryDecision:
            nonlocal ongoing
            ongoing = ongoing_transaction(self._control, self._transactional_id, producer, state)
            return verdict(state, ongoing)

        described, done = self._end_open(judge)
        now = NO_PRODUCER if described is None else identity_after(described.producer)
        return EndingCheck(self._control, self._transactional_id, now, is_last).outcome(state, done, ongoing)

    def name(self) -> PreparedTxnState:
        """The state that names it, for the record; the empty state if there is none."""
        described = self._control.describe_transaction(self._transactional_id)
        if described is None or described.state != ONGOING:
            return PreparedTxnState()
        return open_transaction(self._control, self._transactional_id, described.producer)

    def has_committed(self, state: PreparedTxnState) -> bool:
        """True if the transaction of ``state`` was committed before, as far as the log tells; see
        PredecessorTransaction."""
        return ended_transaction(self._control, state).ending is Ending.COMMITTED

    def end(self, decided: RecoveryDecision) -> Outcome:
        """Commit or abort it, without comparing."""
        return self._end_open(lambda _: decided)[1]

    def _end_open(
        self, judge: Callable[[ProducerIdentity], RecoveryDecision]
    ) -> "tuple[TransactionDescription | None, Outcome]":
        """Describe, judge and end the open transaction, until none is open; return the last description and the
        outcome."""
        deadline = self._runtime.monotonic() + PATIENCE
        for pause in chain(_PAUSES, repeat(_PAUSES[-1])):
            described = self._control.describe_transaction(self._transactional_id)
            state = "" if described is None else described.state
            if described is not None and state == ONGOING:
                decided = judge(described.producer)
                if self._has_ended(described.producer, decided):
                    return described, end_of(decided)
            elif state not in ENDING:
                return described, Outcome.NOTHING
            if self._runtime.monotonic() + pause >= deadline:
                break
            self._runtime.sleep(pause)
        raise KafkaUnavailableError(
            f"transaction of {self._transactional_id}: still {state}, and the coordinator does not end it. If a process"
            " with two_phase='keep-prepared' has used it before, let one of that kind recover it"
        )

    def _has_ended(self, producer: ProducerIdentity, decided: RecoveryDecision) -> bool:
        """End the described transaction; False if another process or its timeout has ended it meanwhile.

        Repeats the request if the answer is lost. Where transactions bump the epoch (KIP-890 part 2), this fences its
        producer, of either protocol.
        """
        fences = self._control.transaction_version() >= TV2
        try:
            self._control.end_txn(
                self._transactional_id,
                producer,
                decided is RecoveryDecision.COMMIT,
                bumps_epoch=fences,
                repeatable=True,
            )
        except FencedError:
            return False
        except KafkaRefusedError as error:
            if error.code not in _ENDED_BY_OTHERS:
                raise
            return False
        return True
