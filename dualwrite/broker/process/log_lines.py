"""The format of the broker's log: one record is one line, even if its message has several. A traceback adds lines."""

import logging

from dualwrite.broker.clients.shown_text import one_line


class OneLineFormatter(logging.Formatter):
    """Escapes line ends and control characters, with which a client could write lines of its own into the log."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line of ``record``, without its traceback."""
        return one_line(super().formatMessage(record))


def log_to_standard_error() -> None:
    """Write what the broker logs to standard error, from level INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
