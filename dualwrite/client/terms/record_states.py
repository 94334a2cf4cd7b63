"""The state of a record's transaction, which decides who reads the record."""

from enum import Enum


class RecordState(Enum):
    """The state of the transaction of a record; for a control record, its kind. Values are for people."""

    PLAIN = "plain"
    """Not transactional."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    """``read_committed`` consumers never see it."""
    OPEN = "open"
    """The transaction has no end yet, as far as the log goes."""
    COMMIT_MARKER = "commit-marker"
    """A control record: it ends a transaction in the partition. Consumers do not see it, but it has an offset."""
    ABORT_MARKER = "abort-marker"
    OTHER_MARKER = "other-marker"
    """A control record of a kind that this client does not know."""

    @property
    def is_marker(self) -> bool:
        """True for a control record."""
        return self in (RecordState.COMMIT_MARKER, RecordState.ABORT_MARKER, RecordState.OTHER_MARKER)

    @property
    def may_be_read(self) -> bool:
        """True for a record that ``read_committed`` consumers see, as soon as no earlier transaction is open."""
        return self in (RecordState.PLAIN, RecordState.COMMITTED)
