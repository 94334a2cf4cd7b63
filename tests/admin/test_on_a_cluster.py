"""The daily verbs on an Apache Kafka of three nodes, while all live and while one is dead."""

from collections.abc import Iterator

import pytest

from dualwrite.admin.topics import describe_topic
from tests.support.admin.admin_site import AdminSite
from tests.support.apache_kafka.cluster import KafkaCluster
from tests.support.peer_clients.kafka_helpers import fresh_name
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.jvm]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_every_leader_is_asked_and_a_dead_node_is_done_without(cluster: KafkaCluster) -> None:
    site, topic, group = AdminSite(cluster.bootstrap_servers), fresh_name(), fresh_name()
    assert site.run("topics", "create", topic, "--partitions", "3", "--replication-factor", "3").code == 0
    for node in range(3):
        site.plain(topic, f"{node}", partition=node)
    writer = site.producer().write(topic, "open", partition=2)
    details = describe_topic(site.config, topic)
    assert len({partition.leader for partition in details.partitions}) == 3, "each node leads a partition"
    assert [partition.high_watermark for partition in details.partitions] == [1, 1, 2]
    assert all(partition.size for partition in details.partitions)
    assert [row[4] for row in site.rows("consume", topic, "--all")] == ["0", "1", "2", "open"]
    assert site.run("groups", "reset-offsets", group, "--topic", topic, "--to", "beginning", "--yes").code == 0

    dead = cluster.leader_of(topic, 0)
    cluster.kill(dead)
    assert cluster.leader_of(topic, 0) != dead
    described = describe_topic(site.config, topic)
    assert [len(partition.replicas) for partition in described.partitions] == [3, 3, 3]
    assert all(dead not in partition.in_sync for partition in described.partitions)
    assert described.partitions[2].holder is not None
    assert described.partitions[2].holder.transactional_id == writer.name
    assert [row[4] for row in site.rows("consume", topic, "--all")] == ["0", "1", "2", "open"]
    # The group's new coordinator answers from what it knows to be committed, and may hear of that a little later.
    assert eventually(lambda: [group, "Empty", "classic", "-"] in site.rows("groups", "list"))
    assert site.run("groups", "delete", group, "--yes").code == 0
    writer.abort()
    assert site.run("topics", "delete", topic, "--yes").code == 0
