"""``dualwrite broker`` with Kafka's own ``server.properties``: it starts, or says line by line why not."""

import socket
import subprocess
from pathlib import Path

import pytest

from dualwrite.broker.config import BrokerOptions, read_config_file
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.listening import bind_listeners
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.broker_process import COMMAND, RunningBroker
from tests.support.requests.admin_calls import BROKER, config, delete, delete_by_id
from tests.support.requests.calls import metadata, new_topic, topic_id
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

AS_SHIPPED = """\
# The settings of config/server.properties of Apache Kafka 4, without its comments.
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={directory}
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    """Kafka's file, whose data directory does not exist yet."""
    path = tmp_path / "server.properties"
    path.write_text(AS_SHIPPED.format(directory=tmp_path / "data"))
    return path


def refused(*arguments: str) -> list[str]:
    """The lines of a broker that does not start."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert all(line.startswith("dualwrite: ") for line in lines)
    return [line.removeprefix("dualwrite: ") for line in lines]


def test_kafkas_own_file_is_refused_for_what_other_machines_reach(properties: Path) -> None:
    (line,) = refused("--config-file", str(properties))
    assert line.startswith("listener PLAINTEXT on 0.0.0.0:9092: other machines reach it")
    assert "--allow-anonymous" in line


def test_kafkas_own_file_starts_a_broker(properties: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # as if another controller listened there
        controller = taken.getsockname()[1]
        own = (
            f"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller}",
            f"advertised.listeners=CONTROLLER://localhost:{controller}",
        )
        broker = RunningBroker(tmp_path, ("--config-file", str(properties), "--config", *own), ())
        try:
            with RawClient(broker.address) as client:
                topic = new_topic(client)
                assert [node.node_id for node in metadata(client).brokers] == [1]
                assert config(client, BROKER, "1", "num.io.threads") == ("8", 4)
            assert (tmp_path / "data" / f"{topic}-0").is_dir()
            assert f"not listening for controllers, of which there are none: {own[0].rpartition(',')[2]}" in (
                broker.log.read_text()
            )
            assert broker.end() == 0
        finally:
            broker.process.kill()
            broker.process.communicate()


def test_every_setting_that_cannot_be_honoured_has_a_line(properties: Path) -> None:
    with properties.open("a") as file:
        file.write("zookeeper.connect=localhost:2181\nremote.log.storage.system.enable=true\nmin.insync.replicas=2\n")
    assert refused("--config-file", str(properties)) == [
        "unknown broker setting 'zookeeper.connect': this broker needs no ZooKeeper; remove it",
        "unknown broker setting 'remote.log.storage.system.enable': this broker has no tiered storage; remove it",
        "broker setting min.insync.replicas=2: a single node is the one replica in sync",
    ]


def test_a_file_may_begin_with_windows_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\r\nlog.dirs=/data\r\n", encoding="utf-8-sig", newline="")
    assert read_config_file(file) == {"num.partitions": "3", "log.dirs": "/data"}


def test_a_file_that_is_given_as_a_setting_is_told_its_option(properties: Path) -> None:
    (line,) = refused("--data-dir", str(properties.parent / "data"), "--config", str(properties))
    assert line == f"broker setting '{properties}': expected key=value; --config-file is for a file of them"


# --- settings of sockets and of topics


@pytest.mark.parametrize(
    ("key", "name"),
    [("socket.receive.buffer.bytes", socket.SO_RCVBUF), ("socket.send.buffer.bytes", socket.SO_SNDBUF)],
)
def test_the_connections_of_a_listener_have_the_buffers_that_were_set(tmp_path: Path, key: str, name: int) -> None:
    sizes = []
    for given in ({key: "16384"}, {key: "65536"}):
        (bound,) = bind_listeners(BrokerOptions(tmp_path, config={"listeners": "PLAINTEXT://127.0.0.1:0", **given}))
        with bound.socket as listening:
            listening.listen()
            with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
                sizes.append(accepted.getsockopt(socket.SOL_SOCKET, name))
    assert 16384 <= sizes[0] < 65536 <= sizes[1]  # Linux doubles each


@pytest.mark.parametrize(
    ("key", "name"),
    [("socket.receive.buffer.bytes", socket.SO_RCVBUF), ("socket.send.buffer.bytes", socket.SO_SNDBUF)],
)
def test_a_buffer_of_minus_one_has_the_size_of_the_system(tmp_path: Path, key: str, name: int) -> None:
    (bound,) = bind_listeners(BrokerOptions(tmp_path, config={"listeners": "PLAINTEXT://127.0.0.1:0", key: "-1"}))
    with bound.socket, socket.socket() as usual:
        assert bound.socket.getsockopt(socket.SOL_SOCKET, name) == usual.getsockopt(socket.SOL_SOCKET, name)


@pytest.mark.slow_cases
@pytest.mark.parametrize("version", [1, 2, 3, 5, 6])
def test_topics_are_not_deleted_where_delete_topic_enable_is_false(tmp_path: Path, version: int) -> None:
    error = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
    given = {"delete.topic.enable": "false"}
    with EmbeddedBroker(tmp_path, config=given) as broker, RawClient(broker.bootstrap_servers) as client:
        name = new_topic(client)
        assert delete(client, name, "missing", version=version) == {name: error, "missing": error}
        if version == 6:
            assert delete_by_id(client, topic_id(client, name)) == {None: error}
        assert metadata(client, name).topics[0].error_code == ErrorCode.NONE
