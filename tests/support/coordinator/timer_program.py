"""Run by test_struck_by_timer.py in a process of its own: units of work in the main thread, which a timer strikes at
random instants, and in three other threads, which must not notice."""

import random
import signal
import sys
import threading
import time
from traceback import walk_tb
from types import FrameType

from sqlalchemy import create_engine
from sqlalchemy.exc import StatementError
from sqlalchemy.pool import NullPool

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import DualWriteError, InDoubtError, UnitCommitted
from tests.support.coordinator import fake_kafka as fakes
from tests.support.coordinator.event_table import CONFIG, ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeCluster
from tests.support.coordinator.usual_unit import recovered, write_unit

THREADS = 3


class LimitError(Exception):
    """As Celery's SoftTimeLimitExceeded."""


def strike(number: int, frame: FrameType | None) -> None:
    """Raise the limit; a little later, if it would strike the fake Kafka, which is no process of its own here."""
    while frame is not None:
        if frame.f_code.co_filename == fakes.__file__:
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
            return
        frame = frame.f_back
    raise LimitError


def note_rolled_back(told: dict[str, bool], value: str, error: BaseException) -> None:
    """Note that the unit of ``value`` is said not to be there, unless the limit struck this program's code. That may be
    right after the block has ended: CPython raises it on the line of the ``with`` statement, where no code of the
    library can say that the unit is committed."""
    *_, (struck, _), _ = walk_tb(error.__traceback__)
    if "/tests/" not in struck.f_code.co_filename:
        told.setdefault(value, False)


def main(url: str, seconds: float, seed: int) -> None:
    chance = random.Random(seed)
    cluster = FakeCluster()
    ready_engine(url).dispose()
    # SQLAlchemy's QueuePool has a Condition of Python's, which the timer can leave locked.
    engine = create_engine(url, poolclass=NullPool)
    dual_write = DualWrite(engine, CONFIG, application="orders", participant=cluster.participant, acquire_timeout=20)
    end = time.monotonic() + seconds
    counts = [0] * THREADS
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            while time.monotonic() < end:
                write_unit(dual_write, f"thread {index} {counts[index]}")
                counts[index] += 1
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    signal.signal(signal.SIGALRM, strike)
    told: dict[str, bool] = {}
    strikes = unit = 0
    while time.monotonic() < end:
        unit += 1
        value = f"struck {unit}"
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.02))
            write_unit(dual_write, value)
            told[value] = True
            signal.setitimer(signal.ITIMER_REAL, 0)
        except InDoubtError:
            strikes += 1
        except UnitCommitted:
            strikes += 1
            told[value] = True
        except (LimitError, StatementError) as error:
            # SQLAlchemy wraps so what strikes it while it prepares a statement.
            if isinstance(error, StatementError) and not isinstance(error.orig, LimitError):
                raise
            strikes += 1
            note_rolled_back(told, value, error)
        except DualWriteError as error:
            failures.append(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a thread hangs"
    assert not failures, failures
    assert recovered(dual_write)
    rows = set(stored_values(engine))
    assert sorted(rows) == cluster.committed, "both sides differ"
    assert cluster.ongoing == []
    assert {value for value, is_there in told.items() if is_there is not (value in rows)} == set()
    dual_write.close()
    print(strikes, unit, sum(counts))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
