"""Between the bundled broker and an Apache Kafka of three nodes, one of which dies while records are copied."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dualwrite.admin.topics import list_topics
from dualwrite.errors import DualWriteError
from dualwrite.moving.journal import PREFIX
from dualwrite.moving.move import ClusterMove
from dualwrite.moving.plan import MoveJob
from tests.support.apache_kafka.cluster import KafkaCluster
from tests.support.forked import ForkedKafkaBroker
from tests.support.moving.move_site import MoveSite, commit_offset, create_topic, fill, read, rest_of, write
from tests.support.peer_clients.kafka_helpers import fresh_name

pytestmark = [pytest.mark.slow, pytest.mark.jvm, pytest.mark.crash]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def outward(tmp_path: Path, cluster: KafkaCluster) -> Iterator[MoveSite]:
    with ForkedKafkaBroker(tmp_path / "source") as source:
        yield MoveSite(source, cluster)


def replicas_at(site: MoveSite) -> dict[str, int]:
    return {topic.name: topic.replicas for topic in list_topics({"bootstrap.servers": site.target.bootstrap_servers})}


def test_new_topics_and_the_journal_have_the_replicas_that_are_asked_for(outward: MoveSite) -> None:
    first = create_topic(outward.source)
    write(outward.source, first, "a")
    result = outward.run("--finish", "--verify", "--replication-factor", "3")
    assert (result.code, result.err) == (0, "")
    replicas = replicas_at(outward)
    assert replicas[first] == 3
    assert {number for name, number in replicas.items() if name.startswith(PREFIX)} == {3}
    second = create_topic(outward.source)
    for words in (("--dry-run",), ()):  # the controller of this cluster has no default.replication.factor
        result = outward.run("--topics", second, *words)
        assert result.code == 0
        assert f"topic {second} has one replica at the target, and is lost with its node" in result.err
    assert replicas_at(outward)[second] == 1
    refused = outward.run("--topics", create_topic(outward.source), "--replication-factor", "9")
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1)
    assert "INVALID_REPLICATION_FACTOR" in refused.err


def kill_during(cluster: KafkaCluster, topic: str) -> Callable[[str, int], None]:
    """An observer that kills the leader of a partition after the first transaction."""
    dead: list[int] = []

    def observe(*_: object) -> None:
        if not dead:
            dead.append(cluster.leader_of(topic))
            cluster.kill(dead[0])

    return observe


@pytest.mark.parametrize("side", ["target", "source"])
def test_a_node_that_dies_while_records_are_copied_costs_none(
    cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    monkeypatch.setattr("dualwrite.moving.copying.MOST_BYTES", 400)
    with ForkedKafkaBroker(tmp_path / "bundled") as bundled:
        site = MoveSite(bundled, cluster) if side == "target" else MoveSite(cluster, bundled)
        topic, group = fresh_name(), fresh_name()
        if side == "target":
            create_topic(bundled, topic, partitions=3)
        else:
            topic = cluster.create_topic(partitions=3, retention_ms="-1")  # and min.insync.replicas=2
            refused = site.run("--topics", topic)
            assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1)
            assert "Create it there yourself, without this setting: an empty topic is used" in refused.err
            create_topic(bundled, topic, partitions=3)
        fill(site.source, topic, 3, rounds=5)
        commit_offset(site.source, group, topic, 7)
        if side == "target":
            assert site.run("--topics", topic, "--replication-factor", "3").code == 0
            fill(site.source, topic, 3, rounds=5)
        configs = [{"bootstrap.servers": each.bootstrap_servers} for each in (site.source, site.target)]
        move = ClusterMove(*configs, MoveJob(topics=(topic,), groups=(group,)))
        with suppress(DualWriteError):  # then the command has to be run again
            move.finish(observe=kill_during(cluster, topic), compares=True)
        cluster.restart_dead()
        result = site.run("--finish", "--verify", "--topics", topic, "--groups", group)
        assert result.code == 0, result
        assert read(site.target, topic, 3) == read(site.source, topic, 3)
        assert rest_of(site.target, group, topic) == rest_of(site.source, group, topic)
