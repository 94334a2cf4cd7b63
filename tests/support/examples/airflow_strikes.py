"""A DualWrite for examples/airflow_orders.py, whose process is killed or held at a moment of the unit of an order.

The moments are INSERTED, the names of the steps of a unit (COMMIT_DATABASE is right before the decision, COMMIT_KAFKA
after it), and CLOSED: both sides are committed, and Airflow has not heard of it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from select import select
from typing import Any

from sqlalchemy import Engine, event

from dualwrite import DualWrite
from tests.support.examples.strikes import VARIABLE, strike
from tests.support.waiting import eventually


class Hold:
    """``with Hold(directory, place) as hold:`` the process that comes to ``place`` waits there until the block ends.

    :param directory: the directory of the strikes.
    """

    def __init__(self, directory: Path, place: str) -> None:
        self._pipe = directory / f"hold-{place}"

    def process(self) -> int:
        """The process id of the process that is held; waits for one."""
        self._end = eventually(self._open_if_read, lambda end: end >= 0, patience=300)
        assert self._end >= 0, f"no process comes to {self._pipe.name}"
        return int(self._pipe.with_suffix(".pid").read_text(encoding="utf-8"))

    def _open_if_read(self) -> int:
        try:
            return os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # no process reads it yet
            return -1

    def __enter__(self) -> "Hold":
        os.mkfifo(self._pipe)
        self._end = -1
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.unlink()
        if self._end >= 0:
            os.close(self._end)


def come_to(place: str) -> None:
    """Be killed at ``place``, or be held there, if a test wants that."""
    strike(place)
    pipe = Path(os.environ[VARIABLE], f"hold-{place}")
    if pipe.exists():
        pipe.with_suffix(".pid").write_text(str(os.getpid()), encoding="utf-8")
        with pipe.open("rb") as end:
            # Not one read without an end: a signal that comes right before it would not be noticed.
            while not select([end], [], [], 0.1)[0]:
                pass


class StruckDualWrite(DualWrite):
    """Runs one unit of work, of one order."""

    def __init__(self, engine: Engine, kafka: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(engine, kafka, on_step=self._come_to, **settings)
        self._number: str | None = None
        event.listen(engine, "after_cursor_execute", self._inserted)

    def close(self) -> None:
        """As DualWrite.close; then the process may be struck once more."""
        super().close()
        self._come_to("CLOSED")

    def _inserted(self, *arguments: Any) -> None:
        _connection, _cursor, statement, _parameters, context, _many = arguments
        if statement.startswith("INSERT INTO airflow_orders "):
            self._number = context.compiled_parameters[0]["number"]
            self._come_to("INSERTED")

    def _come_to(self, moment: str) -> None:
        if self._number is not None and not moment.startswith("RECOVER_"):
            come_to(f"{moment}-{self._number}")
