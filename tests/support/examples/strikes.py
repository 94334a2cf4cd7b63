"""SIGKILL at places that a test has named: the programs of the tests call :func:`strike` wherever they come by."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

VARIABLE = "STRIKES"
"""The environment variable with the directory of the strikes that have not happened yet."""


class Strikes:
    """Each of ``places`` kills the process that comes there first, once.

    :param directory: a new directory, for the processes to find them.
    """

    def __init__(self, directory: Path, places: Iterable[str]) -> None:
        directory.mkdir()
        for place in places:
            (directory / place).touch()
        self.directory = directory
        self.environment = {VARIABLE: str(directory)}

    @property
    def left(self) -> list[str]:
        """The places where nothing was killed yet."""
        return sorted(path.name for path in self.directory.iterdir())


def strike(place: str) -> None:
    """Kill this process, if ``place`` is one of those named."""
    try:
        Path(os.environ[VARIABLE], place).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def strike_after_inserts(table: str, place: str) -> None:
    """Strike at ``place-N`` after each INSERT into ``table``, inside its transaction; N is the first value."""

    def inserted(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith(f"INSERT INTO {table} "):
            strike(f"{place}-{parameters[0]}")

    event.listen(Engine, "after_cursor_execute", inserted)
