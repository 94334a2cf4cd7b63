"""Databases, places to write to, and a Spark session that all tests share."""

from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine

from dualwrite.spark.workers import close_workers, engine_of
from dualwrite.testing.kafka import KafkaBroker
from tests.coordinator.conftest import database_url, sqlite_url
from tests.support.coordinator.event_table import make_tables
from tests.support.spark.expected_rows import options
from tests.support.spark.sessions import spark_session
from tests.support.spark.writing import SparkPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["database_url", "sqlite_url"]


_CLOSES_ITS_SOCKETS = (4, 2)
"""The first version of PySpark that leaves no socket to the garbage collector."""
_LEFT_SOCKET = "ignore:unclosed <socket.*127.0.0.1:ResourceWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With an older PySpark, let its sockets pass: pytest turns each of them into an error of the test that runs."""
    pyspark = find_spec("pyspark") and version("pyspark")
    if pyspark and tuple(int(part) for part in pyspark.split(".")[:2]) < _CLOSES_ITS_SOCKETS:
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.filterwarnings(_LEFT_SOCKET))


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    """This process keeps no worker, before the test and after it."""
    close_workers()
    yield
    close_workers()


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """Of an empty database with the library's tables: SQLite, PostgreSQL and MariaDB in turn."""
    yield from ready(database_url)


@pytest.fixture
def postgresql(postgresql_url: str) -> Iterator[Engine]:
    yield from ready(postgresql_url)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    yield from ready(f"sqlite:///{tmp_path / 'app.db'}")


def ready(url: str) -> Iterator[Engine]:
    engine = engine_of(options(url=url))
    make_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def place(engine: Engine, kafka_broker: KafkaBroker, dualwrite_application: str) -> SparkPlace:
    """On each database."""
    return SparkPlace(engine, kafka_broker, dualwrite_application)


@pytest.fixture
def postgresql_place(postgresql: Engine, kafka_broker: KafkaBroker, dualwrite_application: str) -> SparkPlace:
    return SparkPlace(postgresql, kafka_broker, dualwrite_application)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Two tasks at a time, each attempted three times at most."""
    with spark_session("local[2,3]") as session:
        yield session
