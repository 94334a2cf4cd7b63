"""A PostgreSQL server with an asynchronous standby, which can be cut off and promoted."""

from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, make_url, text

from tests.support.crash.world import free_port
from tests.support.servers.postgresql import DataDirectory, PostgreSQL
from tests.support.waiting import eventually


class Standby(DataDirectory):
    """A streaming standby of ``primary``, which listens on a port.

    :param binaries: the directory of pg_basebackup and pg_ctl.
    """

    def __init__(self, binaries: Path, primary: PostgreSQL) -> None:
        super().__init__(binaries, "dw-standby-")
        self.port = free_port()
        source = f"host=127.0.0.1 port={primary.port} user=dualwrite"
        self._run("pg_basebackup", "-d", source, "-D", self._data, "-R", "-X", "stream", "-c", "fast")
        self._start(f"-c listen_addresses=127.0.0.1 -p {self.port} -c fsync=off")

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
        self._control("promote")


def url_of_both(primary: PostgreSQL, standby: Standby) -> URL:
    """A multi-host URL: libpq connects to the one that takes writes."""
    hosts = [f"host=127.0.0.1:{port}" for port in (primary.port, standby.port)]
    return make_url(f"postgresql+psycopg://dualwrite@/postgres?{'&'.join(hosts)}&target_session_attrs=read-write")
