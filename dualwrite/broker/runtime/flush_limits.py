"""flush.messages and flush.ms of a partition, with ``durability=os``: how many records are unsynced, and for how long.

With ``durability=fsync`` every record is on disk before it is acknowledged, so these limits are never reached.
Sources: Kafka's UnifiedLog.append (messages) and LogManager.flushDirtyLogs (time).
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

NO_LIMIT = 2**63 - 1
"""The default of both settings: the operating system decides."""


class SyncedLog(Protocol):
    """A log as these limits see it."""

    @property
    def end_offset(self) -> int:
        """The offset after the last append."""

    @property
    def synced_offset(self) -> int:
        """The offset below which the log is on disk."""


class FlushLimits:
    """The limits of one partition. Belongs to the event loop's thread.

    :param messages: flush.messages: as soon as so many records are unsynced, an fsync begins, for which their requests
        wait.
    :param interval_ms: flush.ms: no record stays unsynced for longer, in milliseconds.
    :param sync: begins an fsync.
    """

    def __init__(self, log: SyncedLog, messages: int, interval_ms: int, sync: Callable[[], None]) -> None:
        self._log = log
        self.messages = messages
        self.interval_ms = interval_ms
        self._sync = sync
        self._timer: asyncio.TimerHandle | None = None

    def appended(self) -> None:
        """Note an append: begin an fsync, or see to it that one begins in time."""
        if self._log.end_offset - self._log.synced_offset >= self.messages:
            self.cancel()
            self._sync()
        elif self._timer is None and self.interval_ms < NO_LIMIT:
            self._timer = asyncio.get_running_loop().call_later(self.interval_ms / 1000, self._end_interval)

    def cancel(self) -> None:
        """Forget the time limit of what was appended so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_interval(self) -> None:
        self._timer = None
        if self._log.synced_offset < self._log.end_offset:
            self._sync()
