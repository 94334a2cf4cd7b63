"""A request that the network delivers long after the producer has repeated it by itself."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, MetaData, String, Table, create_engine, insert, select

from dualwrite import DualWrite
from dualwrite.cli.db import upgrade
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.librdkafka.errors import ConnectionWatch
from dualwrite.comparison.topic import read_topic
from dualwrite.wire.apis import ApiKey
from tests.support.forked import ForkedBroker
from tests.support.servers.holding_proxy import HoldingProxy

rows = Table("rows", MetaData(), Column("name", String(20)))
LOST = "127.0.0.1:9092/0: Disconnected: connection closed by peer: receive 0 after POLLIN (after 66ms in state UP)"
REFUSED = "127.0.0.1:9092/0: Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT)"


TIMED_OUT = "TxnCoordinator/0: Timed out 1 in-flight, 0 retry-queued, 0 out-queue, 0 partially-sent requests"


@pytest.fixture(params=[True, False], ids=["the connection is cut", "there is no answer"])
def proxy(request: pytest.FixtureRequest) -> Iterator[HoldingProxy]:
    made = HoldingProxy(ApiKey.END_TXN, number=2, cuts=request.param)
    yield made
    made.close()


class ChangedMyMindError(Exception):
    pass


def write(dual_write: DualWrite, name: str) -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(rows).values(name=name))
        tx.produce("topic", value=name.encode())


def require_open(bootstrap_servers: str) -> None:
    """The application's transaction is open in the broker."""
    control = ControlPlane({"bootstrap.servers": bootstrap_servers})
    described = control.describe_transaction("late-0")
    control.close()
    assert described is not None
    assert described.state == "Ongoing"


@pytest.mark.slow_cases
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_a_late_commit_does_not_end_the_next_unit_of_work(tmp_path: Path, proxy: HoldingProxy, producer: str) -> None:
    """The second unit's EndTxn is lost and repeated by the producer, which tells nobody. Its first copy arrives in the
    third unit: under the same epoch it would commit that one, which is then rolled back in the database.

    Without an answer the producer closes the connection by itself; librdkafka logs only that the request timed out."""
    url = f"sqlite:///{tmp_path}/rows.db"
    engine = create_engine(url)
    rows.create(engine)
    upgrade(url)
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
    config = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "socket.timeout.ms": 1000}
    with ForkedBroker(tmp_path / "broker", config=advertised) as broker:
        proxy.broker_port = int(broker.bootstrap_servers.rpartition(":")[2])
        late = threading.Event()

        def deliver_late(step: str) -> None:
            if step == "STORE_STATE" and late.is_set():
                late.clear()
                require_open(broker.bootstrap_servers)
                proxy.release()
                raise ChangedMyMindError

        with DualWrite(engine, config, application="late", producer=producer, on_step=deliver_late) as dual_write:
            write(dual_write, "first")
            write(dual_write, "second")
            assert proxy.held.is_set()
            late.set()
            with pytest.raises(ChangedMyMindError):
                write(dual_write, "third")
            write(dual_write, "fourth")
        visible = [value.decode() for _, value in read_topic(config["bootstrap.servers"], "topic", "read_committed")]
    with engine.connect() as connection:
        assert visible == list(connection.scalars(select(rows.c.name))) == ["first", "second", "fourth"]
    engine.dispose()


@pytest.mark.parametrize(
    ("facility", "message", "lost"),
    [("FAIL", LOST, True), ("FAIL", REFUSED, False), ("REQTMOUT", TIMED_OUT, True), ("GETPID", LOST, False)],
)
def test_only_the_loss_of_a_connection_that_was_up_is_noticed(facility: str, message: str, lost: bool) -> None:
    lines: list[tuple[object, ...]] = []

    class Logger:
        def log(self, *line: object) -> None:
            lines.append(line)

    watch = ConnectionWatch(Logger())
    watch.log(20, "%s [%s] %s", facility, "rdkafka#producer-1", message)
    assert watch.has_lost_connection is lost
    assert lines == [(20, "%s [%s] %s", facility, "rdkafka#producer-1", message)]
