"""The servers that the cells of one process share: a PostgreSQL, a MariaDB, and a cluster of Apache Kafka."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from sqlalchemy import create_engine, make_url

from dualwrite.wire.error_codes import ErrorCode
from tests.support.apache_kafka.cluster import KafkaCluster
from tests.support.crash.application import LEFT_PARTITIONS
from tests.support.requests.calls import ask_for_topics, wanted_topic
from tests.support.servers.mariadb import MariaDB, find_program
from tests.support.servers.postgresql import PostgreSQL, find_binaries


class MortalServer(Protocol):
    """A database server that can be killed."""

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class MissingServerError(Exception):
    """A server is not installed. The message names it."""


def _postgresql() -> MortalServer:
    binaries = find_binaries()
    if binaries is None:
        raise MissingServerError("PostgreSQL is not installed")
    return PostgreSQL(binaries)


def _mariadb() -> MortalServer:
    program = find_program("mariadbd")
    if program is None:
        raise MissingServerError("MariaDB is not installed")
    return MariaDB(program)


_MAKE: dict[str, Callable[[], MortalServer]] = {"postgresql": _postgresql, "mariadb": _mariadb}


class Servers:
    """Starts each server when a cell needs it first, and stops all of them at the end of the ``with`` block.

    :param directory: of Apache Kafka's data.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._databases: dict[str, MortalServer] = {}
        self._cluster: KafkaCluster | None = None
        self._stack = ExitStack()

    def database(self, kind: str) -> MortalServer:
        """The server of ``kind``.

        :raises MissingServerError: if it is not installed.
        """
        if kind not in self._databases:
            server = _MAKE[kind]()
            self._stack.callback(server.close)
            server.start()
            self._databases[kind] = server
        return self._databases[kind]

    def new_database(self, kind: str, name: str) -> str:
        """Make the database ``name`` on the server of ``kind``; its URL."""
        url = self.database(kind).url
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return make_url(url).set(database=name).render_as_string(hide_password=False)

    def cluster(self) -> KafkaCluster:
        """Apache Kafka, on three nodes. It is one for all cells: each has an application name of its own there."""
        if self._cluster is None:
            cluster = KafkaCluster(self._directory / "kafka")
            self._stack.callback(cluster.close)
            self._cluster = cluster.start()
        return self._cluster

    def close(self) -> None:
        """Stop all of them."""
        self._stack.close()


class ClusterAsBroker:
    """Apache Kafka with the face of a broker that can be killed: the node that leads the first partition of the first
    of the ``topics``, which are made."""

    def __init__(self, cluster: KafkaCluster, topics: tuple[str, str]) -> None:
        self._cluster = cluster
        self._topics = topics
        wanted = [wanted_topic(name, LEFT_PARTITIONS, len(cluster.nodes)) for name in topics]
        with cluster.connect(min(cluster.live)) as client:
            codes = {result.error_code for result in ask_for_topics(client, *wanted)}
        assert codes == {ErrorCode.NONE}, codes
        cluster.wait_until_in_sync(*topics)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all nodes."""
        return self._cluster.bootstrap_servers

    def start(self) -> None:
        """Start the node that was killed, if one was, and wait until all replicas are in sync."""
        self._cluster.restart_dead()

    def stop(self) -> None:
        """The cluster goes on: other cells use it."""

    def kill(self) -> None:
        """SIGKILL to the node that leads the first partition."""
        self._cluster.kill(self._cluster.leader_of(self._topics[0], 0))
