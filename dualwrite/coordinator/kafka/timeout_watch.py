"""A transaction that the broker may time out: prepared only if there is time for its commit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from dualwrite.client.config.reading import TIMEOUT_KEY
from dualwrite.errors import FencedError, PrepareFailedError

_RESERVE = 0.1
"""The part of the timeout that is reserved for the database's COMMIT and then Kafka's."""


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
        if reason := self._too_long(transactional_id):
            raise PrepareFailedError(reason)

    def raise_explained(self, transactional_id: str, error: FencedError) -> NoReturn:
        """Raise ``error``, or an explanation of it if the transaction has timed out: Kafka then answers a record as if
        another producer had taken over. For a call so frequent that :meth:`explaining` would cost too much."""
        reason = self._too_long(transactional_id)
        if reason and type(error) is FencedError:  # a LeaseLostError is the database's
            raise FencedError(f"{reason} ({error})") from error
        raise error

    @contextmanager
    def explaining(self, transactional_id: str) -> Iterator[None]:
        """A block whose FencedError is raised by :meth:`raise_explained`."""
        try:
            yield
        except FencedError as error:
            self.raise_explained(transactional_id, error)

    def _too_long(self, transactional_id: str) -> str:
        """The reason why there is not enough time left; empty if there is."""
        lasted = self._clock() - self._begun_at
        if lasted * 1000 <= self._timeout_ms * (1 - _RESERVE):
            return ""
        return (
            f"transaction of {transactional_id}: it has lasted {lasted:.1f} s, and the broker aborts it after "
            f"{TIMEOUT_KEY}, {self._timeout_ms}: make the unit of work shorter, or the timeout longer"
        )
