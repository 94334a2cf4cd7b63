"""What recovery does with the transaction that it finds open: the stored decision against what the cluster says."""

from enum import Enum

from dualwrite.ids import OngoingTransaction, PreparedTxnState


class Verdict(Enum):
    """The fate of the open transaction of a transactional id."""

    COMMIT = "commit"
    ABORT = "abort"
    NOTHING = "nothing"


def verdict(stored: PreparedTxnState, ongoing: OngoingTransaction | None) -> Verdict:
    """Commit the ongoing transaction if and only if the database decided for it (KIP-939, completeTransaction).

    :param stored: the state in the database; the empty state if no unit of work was ever committed there.
    :param ongoing: the open transaction, with its start offsets if ``stored`` has an anchor; None if nothing is open,
        which is success: the commit or abort got through before.
    """
    if ongoing is None:
        return Verdict.NOTHING
    return Verdict.COMMIT if stored.identifies(ongoing) else Verdict.ABORT
