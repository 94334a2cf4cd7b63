"""A worker is suspended at each step of the recipe until its group has given its partitions away, and then goes on."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sqlalchemy import create_engine, select

from dualwrite.cli.db import upgrade
from dualwrite.testing.kafka import KafkaBroker
from tests.support.crash.consuming import Reading, used
from tests.support.forked import ForkedKafkaBroker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.postgresql]

STEPS = ["OFFSETS", "PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA"]
RECORDS = 30
PATIENCE = 60.0
BROKER = {
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "200",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    with ForkedKafkaBroker(tmp_path / "broker", config=BROKER) as broker:
        yield broker


class Life:
    """A worker's process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def until(self, line: str) -> None:
        """Wait until it has said ``line``."""
        assert eventually(lambda: self.is_so(line in self.said), patience=PATIENCE), f"not {line!r}: {self.said}"

    def is_so(self, holds: bool) -> bool:
        """``holds``; fails the test if the process has ended before."""
        assert holds or self.process.poll() is None, f"it has ended: {self.said}"
        return holds

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """Leave nothing of it."""
        self.process.kill()
        self._reader.join()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.strip())
        self.process.stdout.close()


@contextmanager
def living(reading: Reading) -> Iterator[Life]:
    life = Life(subprocess.Popen(reading.command(), stdout=subprocess.PIPE, text=True))
    try:
        yield life
    finally:
        life.end()


def is_stopped(life: Life) -> bool:
    return Path(f"/proc/{life.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def fill(broker: KafkaBroker, source: str, begin: int, end: int) -> None:
    producer = Producer(broker.client_config)
    for number in range(begin, end):
        producer.produce(source, f"{source} {number}", partition=number % 2)
    assert producer.flush(30) == 0


def pause(broker: KafkaBroker, reading: Reading) -> None:
    """One worker is suspended at a step, another takes its partitions, and both go on to the end."""
    broker.create_topic(reading.source, partitions=2)
    broker.create_topic(reading.target)
    fill(broker, reading.source, 0, RECORDS)
    with living(reading) as zombie:
        zombie.until("paused")
        assert eventually(lambda: zombie.is_so(is_stopped(zombie)), patience=PATIENCE), "it goes on"
        with living(replace(reading, pause_step="")) as owner:
            # By then the group has given it away, and the owner may wait for nothing but the zombie's own locks.
            owner.until("assigned 2")
            zombie.process.send_signal(signal.SIGCONT)
            fill(broker, reading.source, RECORDS, RECORDS + 10)
            broker.read(reading.target, minimum=RECORDS + 10, timeout=PATIENCE)
            assert (zombie.stop(), owner.stop()) == (0, 0), (zombie.said, owner.said)
    expected = sorted(f"{reading.source} {number}" for number in range(RECORDS + 10))
    engine = create_engine(reading.url)
    with engine.connect() as connection:
        rows = connection.scalars(select(used.c.value).where(used.c.value.startswith(f"{reading.source} "))).all()
    engine.dispose()
    told = f"{reading.variant} {reading.pause_step}: {zombie.said} {owner.said}"
    assert sorted(rows) == expected, told
    assert sorted((record.value or b"").decode() for record in broker.read(reading.target)) == expected, told


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(("variant", "producer"), [("send", "native"), ("store", "librdkafka")])
def test_a_zombie_that_goes_on_at_any_step_uses_no_record_that_another_has_used(
    broker: KafkaBroker, postgresql_url: str, variant: str, producer: str, protocol: str
) -> None:
    upgrade(postgresql_url)
    engine = create_engine(postgresql_url)
    used.create(engine)
    engine.dispose()

    def pause_at(step: str) -> None:
        source = f"{variant}.{step.lower()}"
        there = (postgresql_url, broker.bootstrap_servers, source, f"{source}.out")
        pause(broker, Reading(*there, variant, producer, step, protocol))

    with ThreadPoolExecutor() as threads:  # each with a group and an application of its own; most of it is waiting
        assert len(list(threads.map(pause_at, STEPS))) == len(STEPS)
