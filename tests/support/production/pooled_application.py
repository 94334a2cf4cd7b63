"""The application that gets killed, behind a pooler that its driver may prepare no statements for."""

from sqlalchemy import create_engine

from tests.support.crash import application
from tests.support.servers.pgbouncer import UNPREPARED


def main(task: application.Task) -> None:
    """What its process does."""
    application.run(task, create_engine(task.url, connect_args=UNPREPARED))
