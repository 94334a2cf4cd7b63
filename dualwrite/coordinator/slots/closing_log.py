"""What a pool says as it is closed and leaves something to recovery."""

import logging
from collections.abc import Sequence

_LOG = logging.getLogger("dualwrite")


def log_left(application: str, names: Sequence[str]) -> None:
    """Log the units of work that are left to recovery.

    :param names: their slots; empty for units that have none.
    """
    _LOG.warning(
        "%s: closed while units of work still run in %s: recovery will end their transactions",
        application,
        ", ".join(names) or "no slot",
        extra={"application": application},
    )


def log_unfinished(application: str, names: Sequence[str]) -> None:
    """Say which units of work are decided and not completed in Kafka: the last thing that a close does.

    :param names: their slots; nothing is said if there are none.
    """
    if names:
        units = "1 unit of work is" if len(names) == 1 else f"{len(names)} units of work are"
        _LOG.warning(
            "%s: closed, and %s not finished in Kafka (%s): recovery ends the open transactions as the database has "
            "decided, at the application's next start; until then read_committed consumers wait behind them",
            application,
            units,
            ", ".join(names),
            extra={"application": application},
        )
