"""PgBouncer in front of a PostgreSQL server: clients share few connections to it."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, make_url

from tests.support.servers.accounts import server_user
from tests.support.servers.mariadb import find_program

PORT = 6432
START_SECONDS = 30

UNPREPARED: dict[str, Any] = {"prepare_threshold": None}
"""psycopg's connect_args behind transaction pooling without max_prepared_statements."""


class PgBouncer:
    """A pooler on a Unix socket in a temporary directory.

    :param upstream: the URL of the database that it leads to, by a Unix socket.
    :param mode: session, transaction or statement.
    :param size: connections to PostgreSQL, for all clients together.
    """

    def __init__(self, program: str, upstream: str, mode: str, size: int) -> None:
        self._upstream = make_url(upstream)
        self._home = Path(tempfile.mkdtemp(prefix="dw-bouncer-"))
        self._program = program
        self._user = server_user("postgres", "nobody")  # PgBouncer refuses to run as root
        (self._home / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"* = host={self._upstream.query['host']} user={self._upstream.username}\n"
            "[pgbouncer]\n"
            f"unix_socket_dir = {self._home}\nlisten_port = {PORT}\nlisten_addr =\nauth_type = any\n"
            f"pool_mode = {mode}\ndefault_pool_size = {size}\nmax_client_conn = 200\n"
            "ignore_startup_parameters = extra_float_digits\n"
            f"logfile = {self._home}/log\n"
        )
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._home, account.pw_uid, account.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> URL:
        """The same database, through the pooler."""
        return self._upstream.set(query={"host": str(self._home), "port": str(PORT)})

    def start(self) -> None:
        """Start it, and return when PostgreSQL answers through it."""
        self._process = subprocess.Popen(
            [self._program, "-q", str(self._home / "pgbouncer.ini")], user=self._user, cwd=self._home
        )
        patience = time.monotonic() + START_SECONDS
        socket = self._home / f".s.PGSQL.{PORT}"
        while not socket.exists():
            assert self._process.poll() is None, (self._home / "log").read_text()
            assert time.monotonic() < patience, "PgBouncer does not start"
            time.sleep(0.01)

    def close(self) -> None:
        """Leave nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def engine(self, **options: Any) -> Engine:
        """An engine through it, whose driver prepares nothing unless ``options`` say so."""
        return create_engine(self.url, **{"connect_args": UNPREPARED, **options})


def find_pgbouncer() -> str | None:
    """The program, if this machine has it."""
    found = find_program("pgbouncer")
    return None if found is None else str(found)
