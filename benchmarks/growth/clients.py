"""The processes of units of work in growth: see ../processes.py."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.growth.of_units import leave_rows
from benchmarks.processes import Result, TaskInput, process_clock, serve
from benchmarks.unit_contenders import PAYLOAD_SIZE, Tables, engine_of, write
from benchmarks.unit_places import ReadyDatabase
from dualwrite import DualWrite

_RECORDS = 20_000
"""Of all units of a size together, about."""
_UNITS = 300
_NO_BEAT = 3600.0
"""Lease timeout in seconds with which no heartbeat comes between what is measured: it is measured by itself."""


def records(url: str, bootstrap: str, name: str, broker_pid: int, records: int) -> TaskInput:
    """Units of one row and so many records."""
    dual_write = DualWrite(engine_of(url), {"bootstrap.servers": bootstrap}, application=name, producer="native")
    table, payload = Tables(name).rows, "x" * PAYLOAD_SIZE
    unit = partial(_unit, dual_write, lambda connection: write(connection, table, [payload]), name, payload, records)
    _unit(dual_write, lambda connection: write(connection, table, [payload]), name, payload, 1)
    units = min(_UNITS, max(3, _RECORDS // records))

    def work() -> Result:
        before = _resident_mib("VmHWM")
        took, client, broker = _timed(unit, units, broker_pid)
        return {
            "sample": {
                "the unit, ms (p50)": took,
                "the unit, µs of the client": client,
                "the unit, µs of the broker": broker,
                "one record, µs of both": (client + broker) / records,
                "memory for it, MiB": max(0.01, _resident_mib("VmHWM") - before),
            }
        }

    return work


def slots(url: str, bootstrap: str, name: str, broker_pid: int, slots: int) -> TaskInput:
    """Recovery of so many slots, and units in a process that holds them."""
    engine = engine_of(url)
    config = {"bootstrap.servers": bootstrap}
    leave_rows(ReadyDatabase("", url, engine), name, slots)
    table, payload = Tables(name).rows, "x" * PAYLOAD_SIZE

    def work() -> Result:
        with DualWrite(engine, config, application=name, producer="native", pool_size=slots) as dual_write:
            began, used = time.monotonic(), time.process_time()
            dual_write.recover()
            recovery = {"recover(), s": time.monotonic() - began, "recover(), processor s": time.process_time() - used}
        with DualWrite(
            engine, config, application=name, producer="native", pool_size=slots, lease_timeout=_NO_BEAT
        ) as dual_write:
            unit = partial(_unit, dual_write, lambda connection: write(connection, table, [payload]), name, payload, 1)
            before, used = _resident_mib("VmRSS"), time.process_time()
            _hold_all(dual_write, slots)
            recovery["lease one, processor ms"] = (time.process_time() - used) / slots * 1e3
            for _ in range(20):
                unit()
            took, client, _ = _timed(unit, _UNITS, broker_pid)
            held = {"one unit, ms (p50)": took, "one unit, µs of the client": client}
            held["memory, MiB"] = _resident_mib("VmRSS") - before
            used = time.process_time()
            dual_write._manager.process.pool.beat()
            held["the heartbeat, processor ms"] = (time.process_time() - used) * 1e3
        return {"sample": recovery | held}

    return work


def _hold_all(dual_write: DualWrite, slots: int) -> None:
    """Lease all slots at once, as so many units at the same time would: these would need as many connections."""
    pool = dual_write._manager.process.pool
    users = [object() for _ in range(slots)]
    for user in users:
        pool.acquire(user)
    for user in users:
        pool.release(user)


def _unit(dual_write: DualWrite, row: Callable[..., None], topic: str, payload: str, records: int) -> None:
    with dual_write.transaction() as tx:
        row(tx.connection)
        for _ in range(records):
            tx.produce(topic, payload)


def _timed(unit: Callable[[], None], units: int, broker_pid: int) -> tuple[float, float, float]:
    """The median time in ms; processor time of the client and of the broker in µs."""
    clock = process_clock(broker_pid)
    broker, client = time.clock_gettime(clock), time.process_time()
    took = []
    for _ in range(units):
        began = time.perf_counter()
        unit()
        took.append(time.perf_counter() - began)
    client, broker = time.process_time() - client, time.clock_gettime(clock) - broker
    return statistics.median(took) * 1e3, client / units * 1e6, broker / units * 1e6


def _resident_mib(which: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


WORKLOADS: Mapping[str, Callable[..., TaskInput]] = {"records": records, "slots": slots}


if __name__ == "__main__":
    serve(WORKLOADS)
