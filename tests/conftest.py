"""Fixtures that several directories share: a PostgreSQL server, from wherever there is one."""

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from sqlalchemy import create_engine, make_url

settings.register_profile("dualwrite", deadline=None)  # no test asserts a time
settings.load_profile("dualwrite")

SERVER_USERS = ("postgres", "nobody")  # PostgreSQL refuses to run as root


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
        reason = "no PostgreSQL: set DUALWRITE_TEST_POSTGRESQL_URL, or install the server, or start Docker"
        if "postgresql" in os.environ.get("DUALWRITE_REQUIRE", ""):
            pytest.fail(reason)
        pytest.skip(reason)


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
    user = server_user()
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


def server_user() -> str | None:
    """The user to run the server as; None for the present one."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in SERVER_USERS if name in known)


def docker_answers() -> bool:
    """True if containers can be started."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
