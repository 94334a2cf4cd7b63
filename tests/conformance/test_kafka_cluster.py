"""The cluster of the crash tests behaves as they require: nodes die and come back, and leadership moves."""

from pathlib import Path

import pytest

from dualwrite.wire.apis import ApiVersionsRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.apache_kafka.cluster import KafkaCluster
from tests.support.apache_kafka.formatting import new_cluster_id
from tests.support.apache_kafka.process import free_ports
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.requests.calls import batch, produce
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually


@pytest.mark.slow
@pytest.mark.jvm
def test_the_leader_and_the_coordinator_of_a_dead_node_move_and_its_replicas_come_back(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path) as cluster:
        topic = cluster.create_topic()
        leader = cluster.leader_of(topic)
        name = next(name for name in map(str, range(100)) if cluster.coordinator_of(name) == leader)
        cluster.kill(leader)
        other = cluster.leader_of(topic)
        assert leader not in (other, cluster.coordinator_of(name))
        with cluster.connect(other) as client:  # which may hear later than another node that it leads
            written = eventually(
                lambda: produce(client, topic, batch([b"with two of three"])).error_code,
                lambda code: code != ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )
            assert written == ErrorCode.NONE
        cluster.restart(leader)
        cluster.wait_until_in_sync(topic)
        assert cluster.leader_of(topic) == other, "only a test moves leaders"
        cluster.move_leader(topic, 0, leader)
        assert cluster.leader_of(topic) == leader
        cluster.kill_controller()
        cluster.kill(leader)
        cluster.restart_dead()
        assert cluster.live == set(cluster.nodes)
        assert cluster.leader_of(topic) in cluster.nodes


@pytest.mark.slow
@pytest.mark.jvm
@pytest.mark.parametrize("level", [1, 2])
def test_apache_kafka_can_be_started_with_each_transaction_version(tmp_path: Path, level: int) -> None:
    with ApacheKafka(tmp_path, features={"transaction.version": level}) as kafka:
        with RawClient(kafka.bootstrap_servers) as client:
            answer = client.ask(ApiVersionsRequest(client_software_name="tests", client_software_version="1"), 3)
        assert ("transaction.version", level) in {
            (entry.name, entry.max_version_level) for entry in answer.finalized_features
        }


@pytest.mark.parametrize(("required", "outcome"), [("", pytest.skip.Exception), ("kafka", pytest.fail.Exception)])
def test_without_a_jvm_a_cluster_is_skipped_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, required: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("DUALWRITE_REQUIRE", required)
    with pytest.raises(outcome, match="no java and no mvn"):
        KafkaCluster(tmp_path).start()


def test_the_ports_of_nodes_are_none_that_outgoing_connections_get() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(8)
    assert len(set(ports)) == len(ports)
    assert max(ports) < lowest


def test_no_cluster_id_looks_like_an_option() -> None:
    ids = {new_cluster_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert not [cluster_id for cluster_id in ids if cluster_id.startswith("-")]
