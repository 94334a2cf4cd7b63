"""The pytest plugin: a Kafka broker and a DualWrite for the tests of programs that use this library.

pytest loads this module in every run where dualwrite is installed, so it imports nothing until a test uses a fixture.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
    from dualwrite.coordinator.dual_write import DualWrite
    from dualwrite.testing.kafka import KafkaBroker


@pytest.fixture(scope="session")
def kafka_broker_config() -> Mapping[str, str]:
    """Settings of the brokers by Kafka's names. There are none unless you override this fixture (scope "session")."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker_config: Mapping[str, str]
) -> "Iterator[KafkaBroker]":
    """A running broker, shared by all tests: bootstrap_servers, client_config, create_topic(), read(topic).

    Do not stop it, and use your own topics (kafka_topic). kafka_broker_factory starts brokers that a test may stop.
    """
    from dualwrite.testing.kafka import KafkaBroker

    with KafkaBroker(tmp_path_factory.mktemp("kafka"), config=kafka_broker_config) as broker:
        yield broker


@pytest.fixture
def kafka_broker_factory(
    tmp_path_factory: pytest.TempPathFactory, kafka_broker_config: Mapping[str, str]
) -> "Iterator[Callable[..., KafkaBroker]]":
    """``kafka_broker_factory(config={…})`` starts a broker for this test alone, which may stop, kill and restart it."""
    from dualwrite.testing.kafka import KafkaBroker

    with ExitStack() as made:

        def make(config: Mapping[str, str] | None = None) -> KafkaBroker:
            broker = KafkaBroker(tmp_path_factory.mktemp("kafka"), config={**kafka_broker_config, **(config or {})})
            return made.enter_context(broker)

        yield make


@pytest.fixture
def kafka_topic(kafka_broker: "KafkaBroker") -> str:
    """The name of a new topic of one partition on kafka_broker."""
    return kafka_broker.create_topic()


@pytest.fixture
def dualwrite_engine(tmp_path: Path) -> "Iterator[Engine]":
    """The database of ``dualwrite``: a new SQLite file for this test, with the state tables.

    Override it, in any scope, to test on your database. ``dualwrite`` creates the state tables if they are missing.
    """
    from sqlalchemy import create_engine

    from dualwrite.schema import upgrade_engine

    engine = create_engine(f"sqlite:///{tmp_path / 'dualwrite.db'}")
    upgrade_engine(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def dualwrite_application() -> str:
    """The application name of this test's DualWrites, unique to the test. Override it to choose one."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def dualwrite_factory(
    request: pytest.FixtureRequest, dualwrite_application: str
) -> "Iterator[Callable[..., DualWrite]]":
    """``dualwrite_factory(application=…, engine=…, kafka={…}, **options)`` creates a DualWrite for this test.

    Defaults are dualwrite_application, dualwrite_engine and kafka_broker; ``kafka`` is added to its client_config. The
    options are DualWrite's own. The fixture closes it at the end of the test.
    """
    from dualwrite.coordinator.dual_write import DualWrite
    from dualwrite.schema import upgrade_engine

    with ExitStack() as made:

        def make(
            application: str = dualwrite_application,
            *,
            engine: "Engine | None" = None,
            kafka: Mapping[str, Any] | None = None,
            **options: Any,
        ) -> DualWrite:
            if engine is None:
                engine = request.getfixturevalue("dualwrite_engine")
                made.callback(engine.dispose)  # that fixture may be torn down before the DualWrite is closed here
            config = dict(kafka or {})
            if "bootstrap.servers" not in config:
                config.update(request.getfixturevalue("kafka_broker").client_config)
            dual_write = made.enter_context(DualWrite(engine, config, application=application, **options))
            upgrade_engine(engine)
            return dual_write

        yield make


@pytest.fixture(name="dualwrite")
def dualwrite_fixture(dualwrite_factory: "Callable[..., DualWrite]") -> "DualWrite":
    """A DualWrite on dualwrite_engine and kafka_broker, with an application name that is unique to this test."""
    return dualwrite_factory()


@pytest.fixture
def async_dualwrite_engine(dualwrite_engine: "Engine") -> "AsyncEngine":
    """The database of ``async_dualwrite``: that of ``dualwrite_engine``, by aiosqlite, asyncpg or aiomysql. It keeps no
    connection open, which would belong to one event loop. Override it for another driver."""
    from sqlalchemy import NullPool

    from dualwrite.coordinator.sql.dialects.supported import database_of
    from dualwrite.extras import brought_by

    driver = next(iter(database_of(dualwrite_engine.dialect).blocking_drivers))
    url = dualwrite_engine.url.set(drivername=f"{dualwrite_engine.url.drivername.partition('+')[0]}+{driver}")
    with brought_by(driver):
        from sqlalchemy.ext.asyncio import create_async_engine

        return create_async_engine(url, poolclass=NullPool)


@pytest.fixture
def async_dualwrite(
    dualwrite_engine: "Engine",
    async_dualwrite_engine: "AsyncEngine",
    kafka_broker: "KafkaBroker",
    dualwrite_application: str,
) -> "Iterator[AsyncDualWrite]":
    """An AsyncDualWrite like ``dualwrite``, for the event loop of one test; the fixture closes it."""
    import asyncio

    from dualwrite.coordinator.aio.dual_write import AsyncDualWrite
    from dualwrite.schema import upgrade_engine

    upgrade_engine(dualwrite_engine)
    made = AsyncDualWrite(async_dualwrite_engine, kafka_broker.client_config, application=dualwrite_application)
    yield made
    asyncio.run(made.close())
