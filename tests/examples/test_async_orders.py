"""The asyncio example under uvicorn: every answer tells what is in both places, also after kill -9 and in no time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from dualwrite.testing.kafka import KafkaBroker
from examples.async_orders import orders
from tests.support.examples.serving import Service

COMMAND = ["-m", "uvicorn", "--factory", "examples.async_orders:create_app", "--fd", "{fd}"]
TEA = {"number": "o-1", "item": "tea", "quantity": 2}

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    return kafka_broker_factory()


@pytest.fixture
def serve(dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path) -> Callable[..., Service]:
    url = dualwrite_engine.url.set(drivername="sqlite+aiosqlite")

    def make(**more: str) -> Service:
        environment = {"DATABASE_URL": str(url), "KAFKA": broker.bootstrap_servers, **more}
        return Service(COMMAND, environment, tmp_path / "uvicorn.log")

    return make


@pytest.fixture
def service(serve: Callable[..., Service]) -> Iterator[Service]:
    with serve() as service:
        yield service


def in_both(engine: Engine, broker: KafkaBroker) -> list[str]:
    with engine.connect() as connection:
        rows = list(connection.scalars(select(orders.c.number).order_by(orders.c.number)))
    assert rows == sorted((record.key or b"").decode() for record in broker.read("orders"))
    return rows


def test_each_answer_matches_the_database_and_the_topic(
    service: Service, dualwrite_engine: Engine, broker: KafkaBroker
) -> None:
    assert service.post("/orders", TEA)[:2] == (201, TEA)
    assert service.get("/orders/o-1").body == TEA
    assert service.post("/orders", {**TEA, "item": "coffee"}).status == 409
    assert service.get("/orders/o-2").status == 404
    assert in_both(dualwrite_engine, broker) == ["o-1"]
    assert "Application shutdown complete" in service.stop()


def test_an_order_times_out_only_if_it_did_not_happen(
    serve: Callable[..., Service], dualwrite_engine: Engine, broker: KafkaBroker
) -> None:
    numbers = [f"o-{number:03}" for number in range(60)]
    for seconds in ("0.000001", "0.01"):  # at once, and at any moment of an order
        with serve(SECONDS_FOR_AN_ORDER=seconds) as service, ThreadPoolExecutor(4) as clients:
            answers = clients.map(lambda number: service.post("/orders", {**TEA, "number": number}), numbers)
            statuses = [answer.status for answer in answers]
            service.stop()
        assert set(statuses) <= {201, 503}
        assert 503 in statuses or seconds == "0.01"
        placed = [number for number, status in zip(numbers, statuses, strict=True) if status == 201]
        assert in_both(dualwrite_engine, broker) == placed


@pytest.mark.crash
def test_after_kill_9_the_next_start_has_both_places_equal_before_its_first_answer(
    service: Service, dualwrite_engine: Engine, broker: KafkaBroker
) -> None:
    def place(number: int) -> int:
        try:
            return service.post("/orders", {**TEA, "number": f"o-{number:03}"}).status
        except OSError:
            return 0

    assert place(0) == 201
    with ThreadPoolExecutor(4) as clients:
        placed = [clients.submit(place, number) for number in range(1, 100)]
        placed[20].result()
        service.kill()
        service.start()
    statuses = [201, *(future.result() for future in placed)]
    assert set(statuses) == {201, 0}  # answered, or cut off by the kill
    kept = in_both(dualwrite_engine, broker)
    assert {f"o-{number:03}" for number, status in enumerate(statuses) if status == 201} <= set(kept)
