"""How long each ongoing transaction has been open, by a clock that does not jump.

Kafka compares the wall clock with the stored start. If that clock jumps forward, transactions that are seconds old are
aborted; if it jumps back, overdue ones stay open. Here the wall clock counts only for the time before a restart.
"""

from collections.abc import Iterable

from dualwrite.broker.facts.transactions import TransactionFact, TransactionRecorded, TransactionStatus

_ONGOING = TransactionStatus.ONGOING


class OpenTimes:
    """When each ongoing transaction began, in steady milliseconds: on a clock of this run that never jumps.

    :param entries: the transactional ids as a restart found them. The time that a transaction was open before is the
        difference of the wall clock's times, at least 0 and at most its timeout.
    :param wall_ms: the wall clock's time now, in milliseconds since the epoch.
    :param steady_ms: the steady clock's time now.
    """

    def __init__(self, entries: Iterable[TransactionRecorded], wall_ms: int, steady_ms: int) -> None:
        self._begun_ms = {
            entry.transactional_id: steady_ms - max(0, min(wall_ms - entry.started_ms, entry.timeout_ms))
            for entry in entries
            if entry.status is _ONGOING
        }

    def note(self, fact: TransactionFact, steady_ms: int) -> None:
        """Remember the begin of a transaction, or forget it if ``fact`` ends the transaction."""
        if isinstance(fact, TransactionRecorded) and fact.status is _ONGOING:
            self._begun_ms.setdefault(fact.transactional_id, steady_ms)
        else:
            self._begun_ms.pop(fact.transactional_id, None)

    def open_ms(self, transactional_id: str, steady_ms: int) -> int:
        """How long the transaction of ``transactional_id`` has been open, in milliseconds; 0 if there is none."""
        return steady_ms - self._begun_ms.get(transactional_id, steady_ms)
