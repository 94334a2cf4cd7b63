"""What the native producer's drivers tell Python's ``logging``: connections, their losses, and settings to no effect.

The engine is pure and logs nothing; what ends a call is that call's error. Nothing here is said for each request.
"""

import logging

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import DualWriteError

_LOG = logging.getLogger("dualwrite")
_LOG.addHandler(logging.NullHandler())  # without logging set up, silence: not logging's last resort, stderr
_QUIET_FOR = 60.0
"""Seconds in which the same trouble with a broker is said once: it is tried again every second or so."""


class ConnectionLog:
    """The log of one producer's connections.

    :param settings: those that are given to no effect are named at once.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._troubles: dict[Endpoint, tuple[str, float]] = {}
        if settings.unused:
            _LOG.warning("without effect: %s: see security.protocol", ", ".join(settings.unused))

    def opening(self, endpoint: Endpoint) -> None:
        """A connection is begun."""
        _LOG.debug("broker %s: connecting", endpoint)

    def opened(self, endpoint: Endpoint) -> None:
        """It is ready for requests."""
        was_troubled = self._troubles.pop(endpoint, None) is not None
        _LOG.log(logging.INFO if was_troubled else logging.DEBUG, "broker %s: connected", endpoint)

    def lost(self, endpoint: Endpoint, error: DualWriteError, now: float, *, is_idle: bool) -> None:
        """It could not be opened, or is broken.

        :param now: monotonic seconds.
        :param is_idle: True if nothing was under way on it: brokers close those that are not used.
        """
        said, at = self._troubles.get(endpoint, ("", now))
        if is_idle:
            _LOG.info("%s", error)
        elif said != str(error) or now - at >= _QUIET_FOR:
            self._troubles[endpoint] = str(error), now
            _LOG.warning("%s", error)
        else:
            _LOG.debug("%s", error)

    def closed(self, endpoint: Endpoint, unanswered: int) -> None:
        """The engine wants it closed.

        :param unanswered: requests whose answers are overdue.
        """
        if unanswered:
            _LOG.warning("broker %s: given up: %d requests were not answered in time", endpoint, unanswered)
        else:
            _LOG.debug("broker %s: closed, as it was idle", endpoint)
