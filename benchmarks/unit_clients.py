"""The processes of units.py: workers, the relay of an outbox, and a consumer that notes when each record has come.

    python -m benchmarks.unit_clients WORKLOAD '{"name": "units_1", ...}'

See processes.py. Times are of the monotonic clock, which all processes of a machine share.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from sqlalchemy import delete, select

from benchmarks.processes import Result, TaskInput, serve
from benchmarks.unit_contenders import (
    CONTENDERS,
    PAYLOAD_SIZE,
    Tables,
    Unit,
    UnitPlace,
    engine_of,
    idempotent_producer,
)

IDLE_SECONDS = 0.01
"""Between two looks of a relay that found nothing."""
RELAY_BATCH = 100
_WARM_UP = 20
"""Units of each worker before the first that is timed: connections, leases, compiled and prepared statements."""
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.05
"""That a consumer waits before it looks whether it is to end."""


def units(
    contender: str,
    url: str,
    bootstrap: str,
    name: str,
    seconds: float,
    workers: int = 1,
    first: int = 0,
    rows: int = 1,
    rate: float = 0.0,
) -> TaskInput:
    """Units of work, one after another on each of ``workers`` threads: how long each took its caller, in ms.

    :param rate: units per second of each worker; 0 for as many as there can be.
    """
    place = UnitPlace(engine_of(url, workers), bootstrap, name, workers, first)
    warm = threading.Barrier(workers + 1)
    go = threading.Event()
    deadlines: list[float] = []

    def loop(number: int, unit: Unit) -> list[float]:
        took: list[float] = []
        payloads = _payloads(first + number, rows)
        try:
            for _ in range(_WARM_UP):
                unit(next(payloads))
            warm.wait(_PATIENCE_SECONDS)
        except BaseException:
            warm.abort()
            raise
        go.wait()
        began = time.monotonic()
        while (now := time.monotonic()) < deadlines[0]:
            if rate:
                time.sleep(max(0.0, began + (len(took) + number / workers) / rate - now))
            before = time.perf_counter()
            unit(next(payloads))
            took.append((time.perf_counter() - before) * 1000)
        return took

    pool = ThreadPoolExecutor(workers)
    loops = [pool.submit(loop, number, unit) for number, unit in enumerate(CONTENDERS[contender](place))]
    try:
        warm.wait(_PATIENCE_SECONDS)
    except threading.BrokenBarrierError:
        errors = [each.exception() for each in loops]
        raise next(error for error in errors if not isinstance(error, threading.BrokenBarrierError | None)) from None

    def work() -> Result:
        deadlines.append(time.monotonic() + seconds)
        go.set()
        return {"milliseconds": [each for done in loops for each in done.result()]}

    return work


def _payloads(worker: int, rows: int) -> Iterator[list[str]]:
    """Of one unit of work after another: when it began, in ns, and what tells it from all others."""
    number = 0
    while True:
        began = time.monotonic_ns()
        yield [f"{began} {worker} {number + row} ".ljust(PAYLOAD_SIZE, "x") for row in range(rows)]
        number += rows


def relay(url: str, bootstrap: str, name: str) -> TaskInput:
    """The relay of an outbox, from its start on; with the line that ends it, it sends what is there still."""
    engine, outbox = engine_of(url), Tables(name)
    producer = idempotent_producer(bootstrap)
    stopped = threading.Event()

    def send() -> int:
        with engine.begin() as connection:
            # Several relays could run side by side; SQLite has no locks of rows.
            waiting = select(outbox.outbox).order_by(outbox.outbox.c.id).limit(RELAY_BATCH)
            found = connection.execute(waiting.with_for_update(skip_locked=True)).all()
            if found:
                for row in found:
                    producer.produce(name, row.payload.encode())
                producer.flush()
                connection.execute(delete(outbox.outbox).where(outbox.outbox.c.id.in_([row.id for row in found])))
        return len(found)

    def loop() -> None:
        while True:
            is_last = stopped.is_set()  # read before the look: what was written before the stop is found by it
            if not send():
                if is_last:
                    return
                time.sleep(IDLE_SECONDS)

    pool = ThreadPoolExecutor(1)
    looping = pool.submit(loop)

    def work() -> Result:
        sys.stdin.readline()
        stopped.set()
        looping.result()
        return {}

    return work


def observer(bootstrap: str, name: str, is_warm: int = 1) -> TaskInput:
    """A read_committed consumer: when each record came, after its unit of work had begun, in ms.

    It is ready once ``is_warm`` records have come. The line that ends it says how many there are.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
    began: list[int] = []
    took: list[float] = []

    def take_in() -> None:
        """What comes within a moment, if anything does."""
        message = consumer.poll(_LOOK_SECONDS)
        if message is None:
            return
        if message.error():
            raise RuntimeError(f"after {len(took)} records: {message.error()}")
        now = time.monotonic_ns()
        began.append(int((message.value() or b"").split(b" ", 1)[0]))
        took.append((now - began[-1]) / 1e6)

    while len(took) < is_warm:
        take_in()

    def work() -> Result:
        start = time.monotonic_ns()
        told: Future[int] = Future()
        threading.Thread(target=lambda: told.set_result(int(sys.stdin.readline())), daemon=True).start()
        while not told.done() or len(took) < told.result():
            take_in()
        return {"milliseconds": [each for each, moment in zip(took, began, strict=True) if moment >= start]}

    return work


WORKLOADS: Mapping[str, Callable[..., TaskInput]] = {"units": units, "relay": relay, "observer": observer}


if __name__ == "__main__":
    serve(WORKLOADS)
