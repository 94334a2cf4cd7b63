"""A PostgreSQL server with an asynchronous standby, which can be cut off and promoted."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, make_url, text

from tests.broker.raw import eventually
from tests.crash.world import free_port
from tests.postgresql import PostgreSQL


class Standby:
    """A streaming standby of ``primary``, which listens on a port.

    :param binaries: the directory of pg_basebackup and pg_ctl.
    """

    def __init__(self, binaries: Path, primary: PostgreSQL) -> None:
        self.port = free_port()
        self._control = str(binaries / "pg_ctl")
        self._user = primary.user
        self._home = Path(tempfile.mkdtemp(prefix="dw-standby-"))
        self._data = str(self._home / "data")
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._home, account.pw_uid, account.pw_gid)
        backup = str(binaries / "pg_basebackup")
        source = f"host=127.0.0.1 port={primary.port} user=dualwrite"
        self._run(backup, "-d", source, "-D", self._data, "-R", "-X", "stream", "-c", "fast")
        options = f"-k {self._home} -c listen_addresses=127.0.0.1 -p {self.port} -c fsync=off"
        self._run(self._control, "-D", self._data, "-w", "-l", str(self._home / "log"), "-o", options, "start")

    def engine(self) -> Engine:
        """An engine on the standby alone."""
        return create_engine(
            URL.create("postgresql+psycopg", "dualwrite", host="127.0.0.1", port=self.port, database="postgres"),
            isolation_level="AUTOCOMMIT",
        )

    def cut_off(self) -> None:
        """Receive nothing from the primary any more: what it commits from now on is lost if it dies."""
        engine = self.engine()
        with engine.connect() as connection:
            connection.execute(text("ALTER SYSTEM SET primary_conninfo = ''"))
            connection.execute(text("SELECT pg_reload_conf()"))
            receivers = text("SELECT count(*) FROM pg_stat_wal_receiver")
            eventually(lambda: connection.scalar(receivers), lambda number: number == 0)
        engine.dispose()

    def promote(self) -> None:
        """Let it be the primary."""
        self._run(self._control, "-D", self._data, "-w", "promote")

    def close(self) -> None:
        """Leave nothing."""
        subprocess.run(
            [self._control, "-D", self._data, "-w", "-m", "immediate", "stop"],
            user=self._user,
            cwd=self._home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        shutil.rmtree(self._home, ignore_errors=True)

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, user=self._user, cwd=self._home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout


def url_of_both(primary: PostgreSQL, standby: Standby) -> URL:
    """A multi-host URL: libpq connects to the one that takes writes."""
    hosts = [f"host=127.0.0.1:{port}" for port in (primary.port, standby.port)]
    return make_url(f"postgresql+psycopg://dualwrite@/postgres?{'&'.join(hosts)}&target_session_attrs=read-write")
