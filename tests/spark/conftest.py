"""Databases, places to write to, and a Spark session that all tests share."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine

from dualwrite.spark.workers import engine_of
from dualwrite.testing.kafka import KafkaBroker
from tests.coordinator.conftest import database_url, sqlite_url
from tests.support.coordinator.event_table import make_tables
from tests.support.spark.expected_rows import options
from tests.support.spark.sessions import spark_session
from tests.support.spark.writing import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["database_url", "sqlite_url"]


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
def place(engine: Engine, kafka_broker: KafkaBroker, dualwrite_application: str) -> Place:
    """On each database."""
    return Place(engine, kafka_broker, dualwrite_application)


@pytest.fixture
def postgresql_place(postgresql: Engine, kafka_broker: KafkaBroker, dualwrite_application: str) -> Place:
    return Place(postgresql, kafka_broker, dualwrite_application)


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Two tasks at a time, each attempted three times at most."""
    with spark_session("local[2,3]") as session:
        yield session
