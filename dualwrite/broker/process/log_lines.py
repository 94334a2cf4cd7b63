"""The formats of the broker's log: one record is one line, even if its message has several. As text, a traceback adds
lines; as JSON, each line is one object."""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from dualwrite.broker.clients.shown_text import one_line
from dualwrite.broker.process.data_dir import private
from dualwrite.errors import ConfigurationError

if TYPE_CHECKING:
    from logging import _SysExcInfoType as SysExcInfo

logger = logging.getLogger(__name__)


class OneLineFormatter(logging.Formatter):
    """Escapes line ends and control characters, with which a client could write lines of its own into the log."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line of ``record``, without its traceback."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: "SysExcInfo") -> str:  # noqa: N802 - logging's name
        """The traceback, indented: an exception may quote a client, whose text must not look like a line of the log."""
        return "\n".join(f"  {one_line(line)}" for line in super().formatException(ei).splitlines())


class JsonLineFormatter(logging.Formatter):
    """One JSON object a line, in ASCII: ``time`` (UTC), ``level``, ``logger``, ``message``; ``exception`` with the
    traceback, if there is one; and what a record has in its attribute ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        """The object of ``record``, its traceback included."""
        time = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        fields = getattr(record, "fields", None)
        return json.dumps({**fields, **line} if isinstance(fields, Mapping) else line)


LOG_FORMATS: Mapping[str, Callable[[], logging.Formatter]] = {"text": OneLineFormatter, "json": JsonLineFormatter}


class _PrivateFileHandler(WatchedFileHandler):
    """Opens the file again after it was renamed (logrotate). A file that it creates is for the broker's user alone."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=private)

    def emit(self, record: logging.LogRecord) -> None:
        """Write ``record``."""
        try:
            self.reopenIfNeeded()
            self.stream = self.stream or self._open()
        except OSError:
            self.handleError(record)
        else:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say why the file cannot be written, and write ``record`` where the log goes: no act goes unrecorded."""
        logger.error("audit log %s: %s; its line follows", self.baseFilename, sys.exc_info()[1])
        logging.getLogger().handle(record)


def log_to_standard_error(log_format: str = "text") -> None:
    """Write what the broker logs to standard error, from level INFO on.

    :param log_format: one of LOG_FORMATS.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(LOG_FORMATS[log_format]())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_to_file(logger: str, path: Path, log_format: str = "text") -> None:
    """Write the lines of ``logger`` to the end of the file ``path``, and no longer to standard error.

    :raises ConfigurationError: if the file cannot be opened.
    """
    try:
        handler = _PrivateFileHandler(path)
    except OSError as error:
        raise ConfigurationError(f"audit log {path}: {error.strerror}") from None
    handler.setFormatter(LOG_FORMATS[log_format]())
    logging.getLogger(logger).addHandler(handler)
    logging.getLogger(logger).propagate = False
