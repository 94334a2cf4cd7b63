"""Wait until transactions of a database wait for locks."""

import time
from concurrent.futures import Future

from sqlalchemy import Engine, text

PATIENCE = 60.0
"""Seconds that a test waits for what must come."""
AT_ONCE = 0.5
"""Seconds in which something happens that nothing keeps from it."""
WAITING = {
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    "AND datname = current_database()",
    "mysql": "SELECT COUNT(*) FROM information_schema.processlist p LEFT JOIN information_schema.innodb_trx t "
    "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() "
    "AND (t.trx_state = 'LOCK WAIT' OR p.state LIKE 'Waiting for table%')",
}
"""How many transactions wait for a lock."""


def await_waiting(engine: Engine, number: int, unless: "Future[None] | None" = None) -> None:
    """Until so many transactions wait for a lock, or ``unless`` is done."""
    deadline = time.monotonic() + PATIENCE
    with engine.connect() as connection:
        while connection.scalar(text(WAITING[engine.dialect.name])) < number and not (unless and unless.done()):
            assert time.monotonic() < deadline
            connection.rollback()
            time.sleep(0.15)  # InnoDB keeps its answer for as long as it is asked every tenth of a second
