"""The pytest plugin, as users' own test suites see it; each of them is a run of pytest inside of a test."""

import re
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's project, whose runs have this plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p dualwrite.testing.pytest_plugin")
    return pytester


ORDERS = """
from sqlalchemy import Column, Integer, MetaData, String, Table, func, insert, inspect, select

orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True), Column("item", String(80)))

def place(dual_write, topic, item):
    with dual_write.transaction() as tx:
        tx.execute(insert(orders).values(item=item))
        tx.produce(topic, item)
        if item == "coffee":
            raise ValueError("no coffee")
"""


def test_a_users_tests_find_both_sides_as_they_should_be(suite: pytest.Pytester) -> None:
    suite.makepyfile(shop=ORDERS)
    suite.makepyfile(
        """
        import pytest
        from shop import func, insert, inspect, orders, place, select

        @pytest.mark.parametrize("run", [1, 2])
        def test_each_test_has_a_database_of_its_own(run, dualwrite, dualwrite_engine, kafka_broker, kafka_topic):
            orders.create(dualwrite_engine)
            place(dualwrite, kafka_topic, "tea")
            with pytest.raises(ValueError):
                place(dualwrite, kafka_topic, "coffee")
            with dualwrite_engine.connect() as connection:
                assert connection.scalars(select(orders.c.item)).all() == ["tea"]
            assert [record.value for record in kafka_broker.read(kafka_topic)] == [b"tea"]

        addresses = set()

        @pytest.mark.parametrize("run", [1, 2])
        def test_all_tests_have_one_broker(run, kafka_broker):
            addresses.add(kafka_broker.bootstrap_servers)
            assert len(addresses) == 1

        def test_more_are_made_of_this_application_or_of_others(
            dualwrite_factory, dualwrite_engine, kafka_broker, kafka_topic
        ):
            orders.create(dualwrite_engine)
            place(dualwrite_factory(), kafka_topic, "tea")
            place(dualwrite_factory(application="another"), kafka_topic, "cake")
            place(dualwrite_factory(kafka={"linger.ms": 0}, producer="librdkafka"), kafka_topic, "milk")
            assert [record.value for record in kafka_broker.read(kafka_topic)] == [b"tea", b"cake", b"milk"]

        def test_the_state_tables_are_there_before_any_dualwrite_is(dualwrite_engine):
            assert inspect(dualwrite_engine).has_table("kafka_transaction_state")
        """
    )
    suite.runpytest_subprocess("-W", "error").assert_outcomes(passed=6)


def test_no_connection_of_the_engine_is_left_open_at_the_end(suite: pytest.Pytester) -> None:
    """Python 3.13 and psycopg warn of one, which ends a run with ``-W error``."""
    suite.makepyfile(shop=ORDERS)
    suite.makeconftest(
        """
        import pytest
        from sqlalchemy import create_engine

        engines = []

        @pytest.fixture
        def dualwrite_engine(tmp_path):
            engines.append(create_engine(f"sqlite:///{tmp_path / 'shop.db'}"))
            yield engines[-1]
            engines[-1].dispose()

        def pytest_unconfigure():
            print("engines:", len(engines), "left open:", sum(engine.pool.checkedin() for engine in engines))
        """
    )
    suite.makepyfile(
        """
        from shop import orders, place

        def test_one_unit(dualwrite, dualwrite_engine, kafka_topic):
            orders.create(dualwrite_engine)
            place(dualwrite, kafka_topic, "tea")
        """
    )
    result = suite.runpytest_subprocess("-W", "error")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["engines: 1 left open: 0"])


@pytest.mark.slow
def test_a_users_engine_and_settings_take_the_place_of_the_plugins(suite: pytest.Pytester) -> None:
    suite.makepyfile(shop=ORDERS)
    suite.makeconftest(
        """
        import pytest
        from shop import orders
        from sqlalchemy import create_engine

        @pytest.fixture(scope="session")
        def dualwrite_engine(tmp_path_factory):
            engine = create_engine(f"sqlite:///{tmp_path_factory.mktemp('db') / 'users.db'}")
            orders.create(engine)
            yield engine
            engine.dispose()

        @pytest.fixture(scope="session")
        def kafka_broker_config():
            return {"num.partitions": "3"}

        @pytest.fixture
        def dualwrite_application():
            return "shop"
        """
    )
    suite.makepyfile(
        """
        import pytest
        from shop import func, orders, place, select
        from sqlalchemy import text

        @pytest.mark.parametrize("orders_so_far", [1, 2])
        def test_it_is_the_users_database(orders_so_far, dualwrite, dualwrite_engine, kafka_topic):
            place(dualwrite, kafka_topic, "tea")
            with dualwrite_engine.connect() as connection:
                assert dualwrite_engine.url.database.endswith("users.db")
                assert connection.scalar(select(func.count()).select_from(orders)) == orders_so_far
                ids = connection.scalars(text("SELECT transactional_id FROM kafka_transaction_state")).all()
                assert ids == ["shop-0"]

        def test_it_is_a_broker_with_the_users_settings(dualwrite, kafka_broker):
            with dualwrite.transaction() as tx:
                tx.produce("orders", "tea", partition=2)
            assert [record.partition for record in kafka_broker.read("orders")] == [2]
        """
    )
    suite.runpytest_subprocess().assert_outcomes(passed=3)


@pytest.mark.slow
def test_a_test_may_stop_a_broker_of_its_own(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        from dualwrite import KafkaUnavailableError

        def test_an_outage_and_its_end(kafka_broker_factory, dualwrite_factory):
            broker = kafka_broker_factory(config={"num.partitions": "1"})
            dual_write = dualwrite_factory(kafka=broker.client_config)
            with dual_write.transaction() as tx:
                tx.produce("orders", "before")
            broker.kill()
            broker.start()
            with dual_write.transaction() as tx:
                tx.produce("orders", "after")
            assert [record.value for record in broker.read("orders")] == [b"before", b"after"]
        """
    )
    suite.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_plugins_fixtures_have_docstrings(suite: pytest.Pytester) -> None:
    shown = suite.runpytest_inprocess("--fixtures").stdout.str()
    own = shown.split("fixtures defined from dualwrite.testing.pytest_plugin")[1]
    assert set(re.findall(r"^(\w+)(?: \[session scope\])? -- ", own, re.MULTILINE)) == {
        "kafka_broker",
        "kafka_broker_config",
        "kafka_broker_factory",
        "kafka_topic",
        "async_dualwrite",
        "async_dualwrite_engine",
        "dualwrite",
        "dualwrite_application",
        "dualwrite_engine",
        "dualwrite_factory",
    }
    assert "no docstring available" not in own


def test_loading_the_plugin_imports_no_library() -> None:
    code = (
        "import sys, dualwrite.testing.pytest_plugin as plugin;"
        "print(sorted({'sqlalchemy', 'alembic', 'confluent_kafka', 'kafka', 'crc32c', 'asyncio'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.slow
def test_an_async_dualwrite_is_for_the_event_loop_of_a_test(suite: pytest.Pytester) -> None:
    suite.makepyfile(shop=ORDERS)
    suite.makepyfile(
        """
        import asyncio
        import pytest
        from shop import insert, orders, select

        async def place(dual_write, topic, item):
            async with dual_write.transaction() as tx:
                await tx.execute(insert(orders).values(item=item))
                await tx.produce(topic, item)

        @pytest.mark.parametrize("run", [1, 2])
        def test_both_sides(run, async_dualwrite, dualwrite_engine, kafka_broker, kafka_topic):
            orders.create(dualwrite_engine)
            asyncio.run(place(async_dualwrite, kafka_topic, "tea"))
            with dualwrite_engine.connect() as connection:
                assert connection.scalars(select(orders.c.item)).all() == ["tea"]
            assert [record.value for record in kafka_broker.read(kafka_topic)] == [b"tea"]

        def test_it_is_closed_already(async_dualwrite, dualwrite_engine, kafka_topic):
            orders.create(dualwrite_engine)

            async def all_of_it():
                async with async_dualwrite as dual_write:
                    await place(dual_write, kafka_topic, "tea")

            asyncio.run(all_of_it())
        """
    )
    suite.runpytest_subprocess("-W", "error").assert_outcomes(passed=3)


@pytest.mark.slow
def test_a_fixture_that_needs_an_extra_says_what_to_install(suite: pytest.Pytester) -> None:
    suite.makeconftest("import sys; sys.modules['greenlet'] = None")
    suite.makepyfile("def test_on_asyncio(async_dualwrite): pass")
    result = suite.runpytest_subprocess()
    result.stdout.fnmatch_lines(["*greenlet is not installed; run pip install '.[[]aiosqlite[]]' in a clone*"])
