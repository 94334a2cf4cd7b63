"""Databases with the state table, and a DualWrite over the fake Kafka."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.process import watchdog
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, async_url
from tests.support.coordinator.event_table import CONFIG, await_sweeps, ready_engine
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.forked import ForkedBroker
from tests.support.servers.databases import EVERY


@pytest.fixture(autouse=True)
def first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fencing token of each slot, which is drawn at random otherwise, is 1: tests can say what follows it."""
    monkeypatch.setattr("dualwrite.coordinator.sql.lease_store.FIRST_TOKENS", 1)
    monkeypatch.setattr("dualwrite.coordinator.sql.lease_store.TOKEN_STEPS", 1)


@pytest.fixture(autouse=True)
def no_limit_is_left() -> Iterator[None]:
    """The limit that a strike has left around this thread, until its exception is collected, is not the next test's."""
    with watchdog.isolated():
        yield


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture(params=EVERY)
def database_url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = ready_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_engine(sqlite_url: str) -> Iterator[Engine]:
    engine = ready_engine(sqlite_url)
    yield engine
    engine.dispose()


@pytest.fixture
def kafka() -> FakeKafka:
    return FakeKafka()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One for the tests of a file, which use topics and applications of their own."""
    with ForkedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def make_dual_write(sqlite_engine: Engine, kafka: FakeKafka) -> Iterator[Callable[..., DualWrite]]:
    """Makes DualWrites over the fake Kafka, which knows one transactional id, and closes them."""
    made: list[DualWrite] = []

    def make(engine: Engine = sqlite_engine, application: str = "orders", **options: Any) -> DualWrite:
        options = {"participant": kafka.participant, "pool_size": 1, **options}
        dual_write = DualWrite(engine, CONFIG, application=application, **options)
        made.append(dual_write)
        return dual_write

    yield make
    for dual_write in made:
        dual_write.close(timeout=0)
    await_sweeps()


@pytest.fixture
def dual_write(make_dual_write: Callable[..., DualWrite]) -> DualWrite:
    return make_dual_write()


SERVER_DRIVERS = [
    pytest.param("asyncpg", marks=pytest.mark.postgresql),
    pytest.param("psycopg", marks=pytest.mark.postgresql),
    pytest.param("aiomysql", marks=pytest.mark.mariadb),
]


@pytest.fixture(params=["aiosqlite", *SERVER_DRIVERS])
def place(request: pytest.FixtureRequest) -> Iterator[AsyncPlace]:
    """A database of each driver for asyncio."""
    yield from place_of(request, request.param)


@pytest.fixture(params=SERVER_DRIVERS)
def server_place(request: pytest.FixtureRequest) -> Iterator[AsyncPlace]:
    yield from place_of(request, request.param)


@pytest.fixture
def sqlite_place(request: pytest.FixtureRequest) -> Iterator[AsyncPlace]:
    yield from place_of(request, "aiosqlite")


def place_of(request: pytest.FixtureRequest, driver: str) -> Iterator[AsyncPlace]:
    server = {"aiosqlite": "sqlite", "aiomysql": "mariadb"}.get(driver, "postgresql")
    url = request.getfixturevalue(f"{server}_url")
    seen = ready_engine(url)
    yield AsyncPlace(driver, async_url(url, driver), seen)
    seen.dispose()
