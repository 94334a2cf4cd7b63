"""The Flask example under gunicorn: workers are killed in the middle of requests, and the master replaces them."""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from types import TracebackType

import pytest
from sqlalchemy import Engine, insert, select

from dualwrite.testing.kafka import KafkaBroker
from examples.flask_stock import metadata, reservations, stock
from tests.support.examples.serving import GUNICORN, Answer, Service

CLIENTS = 8
KILLS = 5
TEA = 1_000_000
PATIENCE = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.crash]


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    return kafka_broker_factory()


@pytest.fixture
def service(dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path) -> Iterator[Service]:
    metadata.create_all(dualwrite_engine)
    with dualwrite_engine.begin() as connection:
        connection.execute(insert(stock).values(article="tea", left=TEA))
    environment = {"DATABASE_URL": str(dualwrite_engine.url), "KAFKA": broker.bootstrap_servers}
    with Service([*GUNICORN, "examples.flask_stock:create_app()"], environment, tmp_path / "gunicorn.log") as service:
        yield service


class Load:
    """Clients that reserve one after the other, from the beginning of the block to its end."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._threads = [threading.Thread(target=self._reserve) for _ in range(CLIENTS)]
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self.answers: list[Answer] = []
        self.cut_off = 0

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    @property
    def confirmed(self) -> list[str]:
        return [answer.body["id"] for answer in list(self.answers) if answer.status == 201]

    def until(self, what: Callable[[], bool]) -> None:
        """Wait until ``what`` holds; it is looked at after each answer."""
        with self._changed:
            assert self._changed.wait_for(what, PATIENCE)

    def _reserve(self) -> None:
        while not self._stopping.is_set():
            try:
                answer = self._service.post("/reservations", {"article": "tea"})
            except (OSError, HTTPException):
                answer = None  # cut off in the middle
            with self._changed:
                if answer is None:
                    self.cut_off += 1
                else:
                    self.answers.append(answer)
                self._changed.notify_all()


def anomalies(confirmed: list[str], rows: list[str], records: list[str], taken: int) -> list[str]:
    """What is wrong with the two sides, by Jepsen's names."""
    found = []
    if set(confirmed) - set(rows) or set(rows) - set(records):
        found.append("lost write")
    if set(records) - set(rows):
        found.append("aborted read")
    if len(set(records)) != len(records) or len(set(confirmed)) != len(confirmed):
        found.append("duplicate")
    if taken != len(rows):
        found.append("torn transaction")
    return found


def test_the_oracle_notices_each_anomaly() -> None:
    assert anomalies(["a"], ["a", "b"], ["b", "a"], 2) == []
    assert anomalies(["a"], [], [], 0) == ["lost write"]
    assert anomalies([], ["a"], [], 1) == ["lost write"]
    assert anomalies([], [], ["a"], 0) == ["aborted read"]
    assert anomalies([], ["a"], ["a", "a"], 1) == ["duplicate"]
    assert anomalies([], ["a"], ["a"], 2) == ["torn transaction"]


def test_workers_that_are_killed_in_the_middle_of_requests_leave_nothing_half_done(
    service: Service, dualwrite_engine: Engine, broker: KafkaBroker
) -> None:
    chance = random.Random(939)
    killed: set[int] = set()
    with Load(service) as load:
        for _ in range(KILLS):
            before = len(load.confirmed)
            load.until(lambda before=before: len(load.confirmed) > before + 10 and len(service.workers()) == 4)
            victim = chance.choice(service.workers())
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
            load.until(lambda victim=victim: victim not in service.workers())
        before = len(load.confirmed)
        load.until(lambda: len(load.confirmed) > before + 10 and len(service.workers()) == 4)
    assert len(killed) == KILLS
    assert not killed & set(service.workers())
    assert load.cut_off, "a kill struck a request"
    assert {answer.status for answer in load.answers} <= {201, 503}

    with dualwrite_engine.connect() as connection:
        rows = list(connection.scalars(select(reservations.c.id)))
        left = connection.scalar(select(stock.c.left))
    broker.read("reservations", minimum=len(rows), timeout=PATIENCE)  # the living finish what the dead have left
    records = [(record.value or b"").decode() for record in broker.read("reservations")]
    assert len(rows) > 10 * KILLS
    assert anomalies(load.confirmed, rows, records, TEA - (left or 0)) == []
