"""Fixtures that several directories share: a PostgreSQL and a MariaDB server, from wherever there is one."""

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings
from sqlalchemy import create_engine, make_url

from tests.accounts import server_user
from tests.mariadb import MariaDB, find_program

settings.register_profile("dualwrite", deadline=None)  # no test asserts a time
settings.load_profile("dualwrite")


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a PostgreSQL server: DUALWRITE_TEST_POSTGRESQL_URL, or local binaries, or a container."""
    given = os.environ.get("DUALWRITE_TEST_POSTGRESQL_URL")
    binaries = find_binaries()
    if given:
        yield given
    elif binaries is not None:
        yield from local_server(binaries)
    elif docker_answers():
        from testcontainers.postgres import PostgresContainer

        with PostgresContainer("postgres:17", driver="psycopg") as container:
            yield container.get_connection_url()
    else:
        missing("PostgreSQL")


@pytest.fixture
def postgresql_url(postgresql_server: str) -> Iterator[str]:
    """The URL of an empty database of this test's own."""
    name = f"test_{uuid.uuid4().hex}"
    server = create_engine(postgresql_server, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield make_url(postgresql_server).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    server.dispose()


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[str]:
    """The URL of a MariaDB server: DUALWRITE_TEST_MARIADB_URL, or local binaries, or a container. It may be a MySQL."""
    given = os.environ.get("DUALWRITE_TEST_MARIADB_URL")
    program = find_program("mariadbd")
    if given:
        yield given
    elif program is not None:
        server = MariaDB(program)
        try:
            server.start()
            yield server.url
        finally:
            server.close()
    elif docker_answers():
        from testcontainers.mysql import MySqlContainer

        with MySqlContainer("mariadb:11.4", dialect="pymysql", username="root") as container:
            yield container.get_connection_url()
    else:
        missing("MariaDB")


@pytest.fixture
def own_mariadb() -> Iterator[MariaDB]:
    """A MariaDB server that only this test has, and may kill."""
    program = find_program("mariadbd")
    if program is None:
        missing("MariaDB", "a test kills the server")
    server = MariaDB(program)
    try:
        server.start()
        yield server
    finally:
        server.close()


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


def missing(server: str, why: str = "") -> NoReturn:
    """There is no ``server``: skip the test, or fail where DUALWRITE_REQUIRE names it."""
    name = server.upper()
    reason = f"no {server}: " + (
        f"{why}, so install it" if why else f"set DUALWRITE_TEST_{name}_URL, or install the server, or start Docker"
    )
    if server.lower() in os.environ.get("DUALWRITE_REQUIRE", ""):
        pytest.fail(reason)
    pytest.skip(reason)


def find_binaries() -> Path | None:
    """The directory of initdb and pg_ctl; the newest if there are several."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    if on_path is not None:
        candidates.append(Path(on_path).resolve().parent)
    for directory in candidates:
        if (directory / "initdb").exists() and (directory / "pg_ctl").exists():
            return directory
    return None


def local_server(binaries: Path) -> Iterator[str]:
    """A server on a Unix socket in a temporary directory."""
    home = Path(tempfile.mkdtemp(prefix="dw-pg-"))
    user = server_user("postgres", "nobody")
    if user is not None:
        account = pwd.getpwnam(user)
        os.chown(home, account.pw_uid, account.pw_gid)

    def run(*command: str) -> None:
        done = subprocess.run(command, user=user, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout

    data = str(home / "data")
    run(str(binaries / "initdb"), "-D", data, "-U", "dualwrite", "--auth=trust", "--no-sync", "-E", "UTF8")
    options = f"-k {home} -c listen_addresses='' -c fsync=off"
    try:
        # A log file, as a server that inherits the pipe would keep it open for ever.
        run(str(binaries / "pg_ctl"), "-D", data, "-w", "-l", str(home / "log"), "-o", options, "start")
        yield f"postgresql+psycopg://dualwrite@/postgres?host={home}"
        run(str(binaries / "pg_ctl"), "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def docker_answers() -> bool:
    """True if containers can be started."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
