"""Fixtures that several directories share: a PostgreSQL and a MariaDB server, from wherever there is one."""

import gc
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import pytest
from hypothesis import settings
from sqlalchemy import Engine, create_engine, make_url

from tests.support.servers.empty_databases import EmptyDatabases
from tests.support.servers.mariadb import MariaDB, find_program
from tests.support.servers.postgresql import PostgreSQL, find_binaries
from tests.support.skip_summary import pytest_terminal_summary as pytest_terminal_summary
from tests.support.slow_cases import mark_slow_cases

Server = TypeVar("Server", MariaDB, PostgreSQL)

settings.register_profile("dualwrite", deadline=None)  # no test asserts a time
settings.load_profile("dualwrite")


def pytest_configure() -> None:
    """What is collected now stays in memory until the end. A shell's background job ignores SIGINT, and so would each
    program that a test starts and interrupts."""
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


LONG = (
    "batch/test_spark_batch_crashes.py",
    "flights/test_pipeline.py",
    "crash/test_broker_kill.py",
    "spark/test_spark_clusters.py",
    "faults/test_runtime_crash.py",
    "crash/test_cluster_kill.py",
    "faults/test_admin_crash.py",
    "core/test_transaction_search.py",
    "crash/test_dual_write.py",
    "spark/test_spark.py",
    "batch/test_batch.py",
    "partitions/test_partitions.py",
    "aio/test_ended_transactions.py",
)
"""Files that take longest in make slow or in make test, the longest first. Begun last, they would keep one process busy
while the others have nothing left to do (the Makefile gives --no-loadscope-reorder)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow cases, and let the longest files come first."""
    mark_slow_cases(items)
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get("/".join(item.path.parts[-2:]), len(LONG)))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """From here on no garbage collection looks at the thousands of tests again: that is several times as fast."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Nor does one look again at what the tests of a file have left for good: modules, servers, compiled statements."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Dispose of the engines that a test leaves when it fails, or skips the rest of itself. Else their connections are
    collected later, which is a warning, and the failure of whichever test runs then."""
    report = yield
    if call.when == "call" and not report.passed:
        for thing in gc.get_objects():
            if type(thing) is Engine and not thing.dialect.is_async:
                thing.dispose()
    return report


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL server: DUALWRITE_TEST_POSTGRESQL_URL, or local binaries, or a container."""
    given = os.environ.get("DUALWRITE_TEST_POSTGRESQL_URL")
    binaries = find_binaries()
    if given:
        yield given
    elif binaries is not None:
        with running(PostgreSQL(binaries)) as local:
            yield local.url
    elif docker_answers():
        from testcontainers.postgres import PostgresContainer

        with PostgresContainer("postgres:17", driver="psycopg") as container:
            yield container.get_connection_url()
    else:
        missing("PostgreSQL")


@pytest.fixture(scope="session")
def postgresql_databases(postgresql_server: str) -> Iterator[EmptyDatabases]:
    """Databases that the tests have one after another."""
    databases = EmptyDatabases(postgresql_server)
    yield databases
    databases.close()


@pytest.fixture
def postgresql_url(postgresql_databases: EmptyDatabases) -> Iterator[str]:
    """The URL of an empty database of this test's own."""
    url = postgresql_databases.take()
    yield url
    postgresql_databases.give_back(url)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[str]:
    """The URL of a MariaDB server: DUALWRITE_TEST_MARIADB_URL, or local binaries, or a container. It may be a MySQL."""
    given = os.environ.get("DUALWRITE_TEST_MARIADB_URL")
    program = find_program("mariadbd")
    if given:
        yield given
    elif program is not None:
        with running(MariaDB(program)) as local:
            yield local.url
    elif docker_answers():
        from testcontainers.mysql import MySqlContainer

        with MySqlContainer("mariadb:11.4", dialect="pymysql", username="root") as container:
            yield container.get_connection_url()
    else:
        missing("MariaDB")


@pytest.fixture
def own_postgresql() -> Iterator[PostgreSQL]:
    """A PostgreSQL server that only this test has, and may kill."""
    binaries = find_binaries()
    if binaries is None:
        missing("PostgreSQL", "a test kills the server")
    with running(PostgreSQL(binaries)) as server:
        yield server


@pytest.fixture
def own_mariadb() -> Iterator[MariaDB]:
    """A MariaDB server that only this test has, and may kill."""
    program = find_program("mariadbd")
    if program is None:
        missing("MariaDB", "a test kills the server")
    with running(MariaDB(program)) as server:
        yield server


@pytest.fixture
def mariadb_url(mariadb_server: str) -> Iterator[str]:
    """The URL of an empty database of this test's own."""
    name = f"test_{uuid.uuid4().hex}"
    server = create_engine(mariadb_server, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield make_url(mariadb_server).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name}")
    server.dispose()


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start ``server``; nothing of it is left afterwards."""
    try:
        server.start()
        yield server
    finally:
        server.close()


def missing(server: str, why: str = "") -> NoReturn:
    """There is no ``server``: skip the test, or fail where DUALWRITE_REQUIRE names it."""
    name = server.upper()
    reason = f"no {server}: " + (
        f"{why}, so install it" if why else f"set DUALWRITE_TEST_{name}_URL, or install the server, or start Docker"
    )
    if server.lower() in os.environ.get("DUALWRITE_REQUIRE", ""):
        pytest.fail(reason)
    pytest.skip(reason)


def docker_answers() -> bool:
    """True if containers can be started."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
