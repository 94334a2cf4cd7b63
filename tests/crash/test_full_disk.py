"""The broker's disk becomes full while units of work run, and has room again later: both sides agree.

The limit of the size of files (RLIMIT_FSIZE) stands for the disk.
"""

import resource
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from sqlalchemy import insert

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import DualWriteError
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import events
from tests.support.forked import ForkedKafkaBroker
from tests.support.operations.places import OperationsSite
from tests.support.waiting import PATIENCE_SECONDS, eventually

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit of Linux"),
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[OperationsSite]:
    with ForkedKafkaBroker(tmp_path / "broker") as broker:
        site = OperationsSite(f"sqlite:///{tmp_path / 'app.db'}", broker)
        yield site
        site.close()


class UnitsInThread:
    """Units of work, one after another, in a thread of their own."""

    def __init__(self, dual_write: DualWrite, topic: str) -> None:
        self.done: list[str] = []
        self.tried = 0
        self._dual_write = dual_write
        self._topic = topic
        self._stopped = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.tried += 1
            value = f"{self.tried}:{'x' * 80}"
            try:
                with self._dual_write.transaction() as tx:
                    tx.execute(insert(events), {"value": value})
                    tx.produce(self._topic, value=value)
            except DualWriteError as error:
                if not error.retriable:
                    raise
            else:
                self.done.append(value)


def fill_disk(broker: KafkaBroker, room: int) -> None:
    """No file of the broker grows by more than ``room`` bytes beyond the largest log, which is that of units."""
    assert broker.pid is not None
    most = room + max(path.stat().st_size for path in broker.data_dir.glob("*/*.log"))
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


@pytest.mark.slow_cases
@pytest.mark.parametrize("room", [10_000, 10_100, 10_200, 10_300, 10_400, 10_500])
def test_units_of_work_agree_on_both_sides_after_the_brokers_disk_was_full(site: OperationsSite, room: int) -> None:
    broker, log = site.broker, site.broker.data_dir / "broker.log"
    units = UnitsInThread(site.dual_write(), site.topic)
    try:
        assert eventually(lambda: len(units.done) >= 20)
        fill_disk(broker, room)
        assert eventually(lambda: "CRITICAL" in log.read_text())
        assert "the broker stops: [Errno 27] File too large: '" in log.read_text().splitlines()[-1]
        broker.kill()  # it has ended by itself
        before = len(units.done)
        broker.start()
        assert eventually(lambda: len(units.done) >= before + 20)
    finally:
        units.stop()
    stored, visible = site.stored(), site.visible()
    assert sorted(stored) == sorted(visible), "each unit is in both, once, or in neither"
    assert len(visible) == len(set(visible))
    assert set(units.done) <= set(stored)
