"""Attempts of a task in threads of their own, which a test can stop while they write."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import text

from tests.support.spark.writing import PATIENCE, SparkPlace, rows_of


class HeldAttempt:
    """An attempt of a task in a thread, with a worker of its own, that stops after its first rows."""

    def __init__(self, place: SparkPlace, rows: list[tuple[int, str]], end: Callable[[], None] = lambda: None) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.result: Any = None
        self._rows, self._place, self._end = rows, place, end
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _given(self) -> Iterator[tuple[int, str]]:
        yield from self._rows[:2]
        self.began.set()
        assert self.go_on.wait(PATIENCE)
        yield from self._rows[2:]
        self._end()

    def _run(self) -> None:
        try:
            with self._place.worker() as worker:
                self.result = self._place.writer(begin=False).write(worker, 0, self._given())
        except Exception as error:  # noqa: BLE001  the test looks at it
            self.result = error

    def end(self) -> Any:
        self.go_on.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.result


def begun(place: SparkPlace, **options: Any) -> HeldAttempt:
    place.begin(place.options(), 1)
    attempt = HeldAttempt(place, rows_of(5), **options)
    assert attempt.began.wait(PATIENCE)
    return attempt


def in_thread(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(act()))
    thread.start()
    return thread, done


def is_awaited(place: SparkPlace) -> bool:
    """True if a transaction waits for another one."""
    asked = {
        "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    }[place.engine.dialect.name]
    time.sleep(0.15)  # MariaDB's answer is of the last look, if that was less than 0.1 s ago
    with place.engine.connect() as connection:
        return bool(connection.scalar(text(asked)))
