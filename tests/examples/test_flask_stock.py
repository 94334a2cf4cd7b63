"""The Flask example under gunicorn: four workers share one application."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from dualwrite.testing.kafka import KafkaBroker
from examples.flask_stock import reservations
from tests.support.examples import programs
from tests.support.examples.programs import EXAMPLES
from tests.support.examples.serving import GUNICORN, Answer, Service

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    return kafka_broker_factory()


@pytest.fixture(params=[[], ["--preload"]], ids=["made in each worker", "made before the workers"])
def service(
    request: pytest.FixtureRequest, dualwrite_engine: Engine, broker: KafkaBroker, tmp_path: Path
) -> Iterator[Service]:
    environment = {"DATABASE_URL": str(dualwrite_engine.url), "KAFKA": broker.bootstrap_servers}
    delivery = [sys.executable, str(EXAMPLES / "flask_stock.py"), "tea", "100"]
    subprocess.run(delivery, env=programs.environment(**environment), check=True, timeout=60)
    command = [*GUNICORN, *request.param]
    with Service([*command, "examples.flask_stock:create_app()"], environment, tmp_path / "gunicorn.log") as service:
        yield service


def reserved(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.scalars(select(reservations.c.id)))


def announced(broker: KafkaBroker) -> list[str]:
    return sorted((record.value or b"").decode() for record in broker.read("reservations"))


def test_no_more_is_reserved_than_there_is_and_each_reservation_is_announced(
    service: Service, dualwrite_engine: Engine, broker: KafkaBroker
) -> None:
    def reserve(_: int) -> Answer:
        while (answer := service.post("/reservations", {"article": "tea"})).status == 503:
            pass  # nothing has happened: SQLite's lock was not free in time
        return answer

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(reserve, range(130)))
    assert Counter(answer.status for answer in answers) == {201: 100, 409: 30}
    ids = sorted(answer.body["id"] for answer in answers if answer.status == 201)
    assert ids == reserved(dualwrite_engine) == announced(broker)
    assert service.get("/stock/tea").body == {"left": 0}
    assert service.get("/stock/coffee").status == 404
