"""The Flask example under gunicorn: four workers share one application."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert, select

from dualwrite.testing.kafka import KafkaBroker
from examples.flask_stock import metadata, reservations, stock
from tests.examples.serving import Service

COMMAND = ["-m", "gunicorn", "--workers", "4", "--threads", "4", "--bind", "fd://{fd}", "--worker-tmp-dir", "/dev/shm"]

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    return kafka_broker_factory()


@pytest.fixture
def service(dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path) -> Iterator[Service]:
    metadata.create_all(dualwrite_engine)
    with dualwrite_engine.begin() as connection:
        connection.execute(insert(stock).values(article="tea", left=100))
    environment = {"DATABASE_URL": str(dualwrite_engine.url), "KAFKA": broker.bootstrap_servers}
    with Service([*COMMAND, "examples.flask_stock:create_app()"], environment, tmp_path / "gunicorn.log") as service:
        yield service


def reserved(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.scalars(select(reservations.c.id)))


def announced(broker: KafkaBroker) -> list[str]:
    return sorted((record.value or b"").decode() for record in broker.read("reservations"))


def test_no_more_is_reserved_than_there_is_and_each_reservation_is_announced(
    service: Service, dualwrite_engine: Engine, broker: KafkaBroker
) -> None:
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: service.post("/reservations", {"article": "tea"}), range(130)))
    assert Counter(answer.status for answer in answers) == {201: 100, 409: 30}
    ids = sorted(answer.body["id"] for answer in answers if answer.status == 201)
    assert ids == reserved(dualwrite_engine) == announced(broker)
    assert service.get("/stock/tea").body == {"left": 0}
    assert service.get("/stock/coffee").status == 404
