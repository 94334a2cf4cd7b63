"""The FastAPI example under uvicorn: every answer tells what is in both places, also across an outage and kill -9."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from dualwrite.testing.kafka import KafkaBroker
from examples.fastapi_orders import orders
from tests.support.examples.serving import Service

COMMAND = ["-m", "uvicorn", "--factory", "examples.fastapi_orders:create_app", "--fd", "{fd}"]
TEA = {"number": "o-1", "item": "tea", "quantity": 2}

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    return kafka_broker_factory()


@pytest.fixture
def service(dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path) -> Iterator[Service]:
    environment = {"DATABASE_URL": str(dualwrite_engine.url), "KAFKA": broker.bootstrap_servers}
    with Service(COMMAND, environment, tmp_path / "uvicorn.log") as service:
        yield service


def rows(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(orders.c.number).order_by(orders.c.number)))


def records(broker: KafkaBroker) -> list[str]:
    return sorted((record.key or b"").decode() for record in broker.read("orders"))


def test_each_answer_matches_the_database_and_the_topic(
    service: Service, dualwrite_engine: Engine, broker: KafkaBroker
) -> None:
    assert service.post("/orders", TEA)[:2] == (201, TEA)
    assert service.get("/orders/o-1").body == TEA
    again = service.post("/orders", {**TEA, "item": "coffee"})
    assert again[:2] == (409, {"detail": "there is an order o-1 already"})
    assert service.post("/orders", {**TEA, "quantity": 0}).status == 422
    assert service.get("/orders/o-2").status == 404
    assert rows(dualwrite_engine) == ["o-1"]
    (record,) = broker.read("orders")
    assert (record.key, json.loads(record.value or b"")) == (b"o-1", TEA)
    assert "Application shutdown complete" in service.stop()


def test_in_an_outage_of_kafka_an_order_can_be_sent_again_afterwards(
    service: Service, dualwrite_engine: Engine, broker: KafkaBroker
) -> None:
    assert service.post("/orders", TEA).status == 201
    broker.stop()
    refused = service.post("/orders", {**TEA, "number": "o-2"})
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert rows(dualwrite_engine) == ["o-1"]
    broker.start()
    while service.post("/orders", {**TEA, "number": "o-2"}).status == 503:
        pass  # each waits in the service until what was under way has been finished, or two seconds
    assert rows(dualwrite_engine) == records(broker) == ["o-1", "o-2"]


def test_it_starts_while_kafka_is_down_and_says_so(
    dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> None:
    environment = {"DATABASE_URL": str(dualwrite_engine.url), "KAFKA": broker.bootstrap_servers}
    broker.stop()
    with Service(COMMAND, environment, tmp_path / "uvicorn.log") as service:
        assert service.get("/readyz")[:2] == (503, {"ready": False})
        assert service.get("/orders/o-1").status == 404
        assert service.post("/orders", TEA).status == 503
        broker.start()
        while service.get("/readyz").status == 503:
            pass  # recovery tries again within five seconds
        assert service.post("/orders", TEA).status == 201
    assert rows(dualwrite_engine) == records(broker) == ["o-1"]


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
        placed = [clients.submit(place, number) for number in range(1, 200)]
        placed[20].result()
        service.kill()
        service.start()
    statuses = [201, *(future.result() for future in placed)]
    assert set(statuses) == {201, 0}  # answered, or cut off by the kill
    kept = rows(dualwrite_engine)
    assert kept == records(broker)
    assert {f"o-{number:03}" for number, status in enumerate(statuses) if status == 201} <= set(kept)
