"""Writes the log of the native producer's drivers: connections, their losses, and settings without effect.

The engine is pure and logs nothing. An error that ends a call is raised by that call. Requests are not logged.
"""

import logging

from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import DualWriteError

_LOG = logging.getLogger("dualwrite")
_LOG.addHandler(logging.NullHandler())  # without this, logging's last resort would write to stderr
_QUIET_FOR = 60.0
"""Seconds in which the same error of a broker is logged as a warning once: the engine retries about every second."""


class ConnectionLog:
    """The log of one producer's connections.

    :param settings: the producer's settings. Settings without effect are logged at once.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._last_warnings: dict[Endpoint, tuple[str, float]] = {}
        if settings.unused:
            _LOG.warning("without effect: %s: see security.protocol", ", ".join(settings.unused))

    def opening(self, endpoint: Endpoint) -> None:
        """The engine begins a connection."""
        _LOG.debug("broker %s: connecting", endpoint)

    def opened(self, endpoint: Endpoint) -> None:
        """The connection is ready for requests."""
        had_failed = self._last_warnings.pop(endpoint, None) is not None
        _LOG.log(logging.INFO if had_failed else logging.DEBUG, "broker %s: connected", endpoint)

    def lost(self, endpoint: Endpoint, error: DualWriteError, now: float, *, is_idle: bool) -> None:
        """The connection could not be opened, or broke.

        :param now: monotonic seconds.
        :param is_idle: True if it had no request in flight: brokers close idle connections.
        """
        last_message, logged_at = self._last_warnings.get(endpoint, ("", now))
        if is_idle:
            _LOG.info("%s", error)
        elif last_message != str(error) or now - logged_at >= _QUIET_FOR:
            self._last_warnings[endpoint] = str(error), now
            _LOG.warning("%s", error)
        else:
            _LOG.debug("%s", error)

    def closed(self, endpoint: Endpoint, unanswered: int) -> None:
        """The engine closes the connection.

        :param unanswered: requests whose answers are overdue.
        """
        if unanswered:
            _LOG.warning("broker %s: connection closed: %d requests were not answered in time", endpoint, unanswered)
        else:
            _LOG.debug("broker %s: connection closed: it was idle", endpoint)
