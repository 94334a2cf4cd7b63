"""Units of work whose block could not end them: an interrupt came, or Python collected the block."""

import logging
from collections import deque
from collections.abc import Callable

_LOG = logging.getLogger("dualwrite")


class AbandonedUnits:
    """The units of one application that wait to be ended. Finalizers append them: a deque takes no lock."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._ends: deque[Callable[[], None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._ends)

    def append(self, end: Callable[[], None]) -> None:
        """Let the next :meth:`end` call ``end``, which ends a unit of work."""
        self._ends.append(end)

    def end(self) -> None:
        """End them all. Errors are logged: they are not those of the unit of work that comes by."""
        while True:
            try:
                end = self._ends.popleft()
            except IndexError:
                return
            try:
                end()
            except Exception:  # noqa: BLE001 - logged, see above
                whose = self._application
                _LOG.exception(
                    "%s: ending a unit of work that was interrupted failed", whose, extra={"application": whose}
                )
            except BaseException:
                self._ends.append(end)
                raise
