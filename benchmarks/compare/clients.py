"""The processes of a comparison, which import the product from the directory that they are started in.

    python -m benchmarks.compare.clients WORKLOAD '{"directory": "/tmp/x", ...}'

See ../processes.py. ``site`` is a broker with its databases, and ends with its standard input. ``units`` is one worker:
for each line it does some units of work, and says how much processor time it and the broker have used.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from benchmarks.processes import TaskInput, process_clock, serve
from benchmarks.unit_contenders import CONTENDERS, PAYLOAD_SIZE, UnitPlace, engine_of
from benchmarks.unit_places import DATABASES, JOURNALS
from dualwrite import EmbeddedBroker

WARM_UP = 50
"""Units of each process before the first round."""
_LEAD = 5
"""Units of a round before those that are measured: another process has used the caches meanwhile."""


def site(directory: str, databases: Sequence[str]) -> TaskInput:
    """A broker and databases, until this process ends: the broker's address and process, the databases' URLs."""
    opened = ExitStack()
    home = Path(directory)
    broker = opened.enter_context(EmbeddedBroker(home / "broker", durability="os"))
    urls = {name: opened.enter_context(DATABASES[name](home, JOURNALS[0])).url for name in databases}
    _open.append(opened)
    return lambda: {"bootstrap": broker.bootstrap_servers, "broker_pid": broker.pid, "urls": urls}


def units(
    contender: str, url: str, bootstrap: str, broker_pid: int, name: str, units: int, burden: float = 0.0
) -> TaskInput:
    """``units`` units of work of one row and one record, one after another, for each line.

    :param burden: milliseconds of processor time that each unit wastes, to see whether the comparison notices.
    """
    (unit,) = CONTENDERS[contender](UnitPlace(engine_of(url), bootstrap, name))
    numbers = count()
    broker = process_clock(broker_pid)

    def one() -> None:
        unit([f"{next(numbers)} ".ljust(PAYLOAD_SIZE, "x")])

    for _ in range(WARM_UP):
        one()

    def work() -> dict[str, object]:
        for _ in range(_LEAD):
            one()
        began, client_before, broker_before = time.monotonic(), time.process_time(), time.clock_gettime(broker)
        for _ in range(units):
            one()
            _waste(burden / 1000)
        used = {"client": time.process_time() - client_before, "broker": time.clock_gettime(broker) - broker_before}
        return {"elapsed": time.monotonic() - began, **used}

    return work


def _waste(seconds: float) -> None:
    """Processor time of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        continue


_open: list[ExitStack] = []
WORKLOADS: Mapping[str, Callable[..., TaskInput]] = {"site": site, "units": units}


if __name__ == "__main__":
    try:
        serve(WORKLOADS)
    finally:
        for opened in _open:
            opened.close()
