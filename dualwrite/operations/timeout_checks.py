"""The doctor's checks of timeouts in the driver and the server.

``database_timeout`` limits the library's own database requests. These timeouts limit the application's statements:
without them a frozen server, or a network that drops all packets, holds a unit of work for ever.
"""

from collections.abc import Iterator

from sqlalchemy import Engine

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.operations.findings import Finding, ok, warning

CHECK = "timeouts"


def check_timeouts(engine: Engine) -> Iterator[Finding]:
    """One finding for each timeout that is missing, with the setting to add. A file needs none."""
    database = database_of(engine.dialect)
    if database.is_file:
        return
    with engine.connect() as connection:
        missing = list(database.missing_timeouts(connection))
    for timeout in missing:
        yield warning(CHECK, f"{timeout.setting} is not set: {timeout.meaning}", timeout.advice)
    if not missing:
        yield ok(CHECK, "a database that stops answering cannot hold a unit of work for ever")
