"""The end of the broker's process after a failure: its memory and its disk may no longer agree."""

import errno
import logging
import os
from typing import NoReturn

logger = logging.getLogger(__name__)

STOP_EXIT_CODE = 70
"""EX_SOFTWARE: the exit code of a broker that stopped because its disk failed or its state was wrong."""
TEMPORARY_ERRORS = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT})
"""Failures of a disk that the next start may not meet. A start that meets one ends with STOP_EXIT_CODE: after the code
of a start that was refused, a supervisor gives up."""


def stop_process(error: BaseException) -> NoReturn:
    """End the process at once. The next start recovers from the disk."""
    if isinstance(error, OSError):  # the error names the file; a stack trace would not help
        logger.critical(
            "the broker stops: %s; check the disk (free space, permissions, errors) and start it again: it recovers "
            "from the disk", error,
        )  # fmt: skip
    else:
        logger.critical("the broker stops: %s", error, exc_info=error)
    logging.shutdown()
    os._exit(STOP_EXIT_CODE)
