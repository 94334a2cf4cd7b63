"""A journal whose appends go with the flusher's rounds."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from dualwrite.broker.facts.fields import LaterReleaseError
from dualwrite.broker.log.journal import Journal
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.errors import CorruptLogError
from dualwrite.ports import Files
from dualwrite.records.batch import Record

logger = logging.getLogger(__name__)


def unreadable(directory: Path, record: Record, error: Exception) -> CorruptLogError:
    """The error about a ``record`` in ``directory`` that cannot be read."""
    advice = (
        ". A later release of dualwrite wrote it; start the later release"
        if isinstance(error, LaterReleaseError)
        else ""
    )
    return CorruptLogError(f"{directory}: record at offset {record.offset}: {error}{advice}")


class FlushedJournal:
    """A journal as a :class:`~dualwrite.broker.runtime.flusher.Flushable`: append, then wait at the barrier."""

    def __init__(self, journal: Journal, flusher: Flusher) -> None:
        self._journal = journal
        self._flusher = flusher

    @classmethod
    def open(
        cls, files: Files, directory: Path, flusher: Flusher, on_record: Callable[[Record], None]
    ) -> "FlushedJournal":
        """The journal in ``directory``, after its replay: calls ``on_record`` with every record in order.

        :raises CorruptLogError: if the log is damaged, or ``on_record`` rejects a record (ValueError, AssertionError).
        """

        def replay(record: Record) -> None:
            try:
                on_record(record)
            except (ValueError, AssertionError) as error:
                raise unreadable(directory, record, error) from error

        journal = Journal.open(files, directory, replay)
        if journal.log.cut_bytes:
            logger.warning("%s: cut %d bytes that a crash left unfinished", directory, journal.log.cut_bytes)
        return cls(journal, flusher)

    def append(self, records: Sequence[Record]) -> None:
        """Append ``records`` as one batch: after a crash either all of them exist or none."""
        self._journal.append(records)
        self._flusher.touch(self)

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self._journal.log.end_offset

    def sync(self) -> None:
        """Make the journal durable."""
        self._journal.log.sync()

    def checkpoint(self) -> None:
        """Store the end as the recovery point, for a clean stop."""
        self._journal.log.checkpoint()

    def flushed(self, end_offset: int) -> None:
        """Does nothing: a journal has no readers while it is written."""
