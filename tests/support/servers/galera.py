"""A Galera cluster of two MariaDB servers on this machine."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from tests.support.crash.world import free_port
from tests.support.servers.mariadb import MariaDB, find_program

SECONDS = 60
LIBRARY = Path("/usr/lib/galera/libgalera_smm.so")


def can_run() -> bool:
    """True if this machine has what it needs."""
    return LIBRARY.exists() and find_program("rsync") is not None and find_program("mariadbd") is not None


@contextmanager
def cluster() -> Iterator[tuple[MariaDB, MariaDB]]:
    """Both servers, synchronised, with a database ``test`` in each."""
    program = find_program("mariadbd")
    assert program is not None
    port = free_port()
    with ExitStack() as started:
        servers = []
        for number, (own, joins) in enumerate([(port, ""), (free_port(), f"127.0.0.1:{port}")]):
            server = MariaDB(program, *_options(number, own, joins))
            started.callback(server.close)
            server.start()
            _await(server, number + 1)
            servers.append(server)
        engine = create_engine(servers[0].url)
        with engine.connect() as connection:
            connection.exec_driver_sql("CREATE DATABASE test")
        engine.dispose()
        yield servers[0], servers[1]


def _options(number: int, port: int, joins: str) -> list[str]:
    return [
        "--wsrep-on=ON",
        f"--wsrep-provider={LIBRARY}",
        f"--wsrep-cluster-address=gcomm://{joins}",
        f"--wsrep-node-name=node{number}",
        f"--wsrep-node-address=127.0.0.1:{port}",
        "--wsrep-sst-method=rsync",
        f"--wsrep-sst-receive-address=127.0.0.1:{free_port()}",
        "--wsrep-provider-options="
        f"gmcast.listen_addr=tcp://127.0.0.1:{port};ist.recv_addr=127.0.0.1:{free_port()};gcache.size=16M",
        "--binlog-format=ROW",
        "--innodb-autoinc-lock-mode=2",
    ]


def _await(server: MariaDB, size: int) -> None:
    """Wait until ``server`` is one of a cluster of ``size`` servers, and takes statements."""
    engine = create_engine(server.url)
    patience = time.monotonic() + SECONDS
    wanted = {"wsrep_ready": "ON", "wsrep_cluster_size": str(size)}
    found: dict[str, str] = {}
    while found != wanted:
        assert time.monotonic() < patience, f"the cluster is not ready: {found}"
        try:
            with engine.connect() as connection:
                rows = connection.execute(
                    text("SHOW STATUS WHERE Variable_name IN ('wsrep_ready', 'wsrep_cluster_size')")
                )
                found = {row.Variable_name: row.Value for row in rows}
        except OperationalError:
            found = {}
    engine.dispose()
