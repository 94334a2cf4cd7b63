"""The transaction that a predecessor left, where no broker keeps it (Apache Kafka today): looked at, judged and ended.

KIP-939 fences the predecessor before anything is decided. Here nothing does: an InitProducerId would abort what is to
be judged. So everything stands on the database. The caller has raised the fencing token and holds the row's lock: from
then on no unit of work of a predecessor can be committed there, and none can begin a transaction in Kafka (a unit reads
its token before that, see ``begin_unit``). What a predecessor that is alive can still do to the transaction seen here:

- *add records to it, or abort it*: only if it is undecided, and then it is aborted here, too.
- *commit it*: only if the database has decided for it, and then it is committed here, too. EndTxn twice is once.
- *end it between the look and the EndTxn*: the EndTxn is refused or changes nothing, and everything is looked at again.

It cannot have begun another transaction in between, under the identity that librdkafka keeps for a session; so an
EndTxn that commits hits the transaction that was seen or none. The transaction's timeout may abort what the database
has decided for: a heuristic abort, which only the log tells.
"""

import time
from collections.abc import Callable
from itertools import chain, repeat

from dualwrite.client.admin.control_plane import ONGOING, ControlPlane, TransactionDescription
from dualwrite.client.admin.transaction_fate import ongoing_transaction, open_transaction
from dualwrite.client.terms.versions import TV2
from dualwrite.coordinator.recovery.prepared_predecessor import LookBack
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision, verdict
from dualwrite.errors import FencedError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import NO_PRODUCER, OngoingTransaction, PreparedTxnState, ProducerIdentity
from dualwrite.wire.error_codes import ErrorCode

ENDING = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which markers are being written: soon it is ended (Kafka's TransactionState)."""

PATIENCE = 30.0
"""Seconds until it must have ended."""

_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5)
_FIRST_TO_FENCE = 5
_OLDER = 4
"""Versions of EndTxn: the first bumps the epoch."""

_ENDED_BY_OTHERS = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING})


class UnpreparedPredecessor:
    """What is open under a transactional id when its next owner has taken it, fenced by nobody. Nothing, perhaps.

    :param control: asked about the transaction, and told how it ends.
    :param clock: monotonic seconds.
    :param sleep: waits between two looks.
    """

    def __init__(
        self,
        control: ControlPlane,
        transactional_id: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._control = control
        self._transactional_id = transactional_id
        self._clock = clock
        self._sleep = sleep

    def complete(self, state: PreparedTxnState, *, is_last: bool = True) -> Outcome:
        """Commit it if ``state`` identifies it, abort it otherwise. If it was not there to be committed, the log tells
        whether it had been: a commit got through before, or it was aborted though the database has decided for it.

        :param is_last: see KeptTransaction.complete.
        """
        found: OngoingTransaction | None = None

        def judge(producer: ProducerIdentity) -> RecoveryDecision:
            nonlocal found
            found = ongoing_transaction(self._control, self._transactional_id, producer, state)
            return verdict(state, found)

        described, done = self._settle(judge)
        now = NO_PRODUCER if described is None else _following(described.producer)
        return LookBack(self._control, self._transactional_id, now, is_last).at(state, done, found)

    def name(self) -> PreparedTxnState:
        """What names it, for the record; the empty state if there is none."""
        described = self._control.describe_transaction(self._transactional_id)
        if described is None or described.state != ONGOING:
            return PreparedTxnState()
        return open_transaction(self._control, self._transactional_id, described.producer)

    def end(self, decided: RecoveryDecision) -> Outcome:
        """Commit or abort it, whatever it is."""
        return self._settle(lambda _: decided)[1]

    def _settle(
        self, judge: Callable[[ProducerIdentity], RecoveryDecision]
    ) -> tuple[TransactionDescription | None, Outcome]:
        """Look, judge and end what is open, again and again until nothing is; the last look, and what was done."""
        deadline = self._clock() + PATIENCE
        for pause in chain(_PAUSES, repeat(_PAUSES[-1])):
            described = self._control.describe_transaction(self._transactional_id)
            state = "" if described is None else described.state
            if described is not None and state == ONGOING:
                decided = judge(described.producer)
                if self._has_ended(described.producer, decided):
                    return described, Outcome.COMMITTED if decided is RecoveryDecision.COMMIT else Outcome.ABORTED
            elif state not in ENDING:
                return described, Outcome.NOTHING
            if self._clock() + pause >= deadline:
                break
            self._sleep(pause)
        raise KafkaUnavailableError(
            f"transaction of {self._transactional_id}: still {state}, and the coordinator does not end it. If a process"
            " with two_phase='keep-prepared' has used it before, let one of that kind recover it"
        )

    def _has_ended(self, producer: ProducerIdentity, decided: RecoveryDecision) -> bool:
        """End what was seen; False if somebody else has done so meanwhile, or its timeout has.

        Asked again as often as an answer is lost. Where transactions bump the epoch (KIP-890 part 2), this fences
        whoever wrote it, of either protocol.
        """
        fences = self._control.transaction_version() >= TV2
        try:
            self._control.end_txn(
                self._transactional_id,
                producer,
                decided is RecoveryDecision.COMMIT,
                version_cap=_FIRST_TO_FENCE if fences else _OLDER,
                repeatable=True,
            )
        except FencedError:
            return False
        except KafkaRefusedError as error:
            if error.code not in _ENDED_BY_OTHERS:
                raise
            return False
        return True


def _following(producer: ProducerIdentity) -> ProducerIdentity:
    return ProducerIdentity(producer.producer_id, producer.epoch + 1)
