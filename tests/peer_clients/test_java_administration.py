"""Apache Kafka's command-line tools about elections, replicas, features, the quorum and settings, as released."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.apache_kafka.single_node import java_tool, kafka_configs
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import batch, new_topic, produce, read_all, unique
from tests.support.requests.raw_client import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.jvm]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as connected:
        yield connected


def run(broker: EmbeddedBroker, name: str, *arguments: str, fails: bool = False) -> str:
    """What the tool prints to both of its outputs. It must succeed, or fail. ``name`` may have a verb: "Tool verb"."""
    tool, *verb = name.split()
    on_broker = (*verb, "--bootstrap-server", broker.bootstrap_servers)
    done = java_tool(f"org.apache.kafka.tools.{tool}", *on_broker, *arguments)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_kafka_leader_election_finds_every_leader_elected(broker: EmbeddedBroker, client: RawClient) -> None:
    topic = new_topic(client, 2)
    for kind in ("preferred", "unclean"):
        assert run(broker, "LeaderElectionCommand", "--election-type", kind, "--all-topic-partitions") == ""
        said = run(broker, "LeaderElectionCommand", "--election-type", kind, "--topic", topic, "--partition", "1")
        assert f"Valid replica already elected for partitions {topic}-1" in said
    missing = ("--election-type", "preferred", "--topic", topic, "--partition", "9")
    assert "there is no partition 9 of a topic" in run(broker, "LeaderElectionCommand", *missing, fails=True)


def test_kafka_reassign_partitions_generates_executes_verifies_and_cancels(
    broker: EmbeddedBroker, client: RawClient, tmp_path: Path
) -> None:
    topic = new_topic(client, 2)
    produce(client, topic, batch([b"kept"]))
    reassign = "reassign.ReassignPartitionsCommand"
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    said = run(broker, reassign, "--topics-to-move-json-file", str(topics), "--broker-list", "0", "--generate")
    proposed = json.loads(said.splitlines()[-1])
    assert [entry["replicas"] for entry in proposed["partitions"]] == [[0], [0]]
    plan.write_text(json.dumps(proposed))
    on_plan = ("--reassignment-json-file", str(plan))
    started = "Successfully started partition reassignments"
    assert f"{started} for {topic}-0,{topic}-1" in run(broker, reassign, *on_plan, "--execute")
    assert f"Reassignment of partition {topic}-1 is completed." in run(broker, reassign, *on_plan, "--verify")
    assert "No partition reassignments found." in run(broker, reassign, "--list")
    assert "None of the specified partition reassignments are active." in run(broker, reassign, *on_plan, "--cancel")
    assert read_all(client, topic) == [b"kept"]


def test_kafka_reassign_partitions_places_a_partition_in_its_own_directory(
    broker: EmbeddedBroker, client: RawClient, tmp_path: Path
) -> None:
    topic = new_topic(client)
    said = run(broker, "LogDirsCommand", "--describe", "--topic-list", topic)
    ((directory,),) = [entry["logDirs"] for entry in json.loads(said.splitlines()[-1])["brokers"]]
    entry = {"topic": topic, "partition": 0, "replicas": [0], "log_dirs": [directory["logDir"]]}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    on_plan = ("--reassignment-json-file", str(plan))
    said = run(broker, "reassign.ReassignPartitionsCommand", *on_plan, "--execute")
    assert f"Successfully started moving log directory to {directory['logDir']} for replica {topic}-0" in said
    said = run(broker, "reassign.ReassignPartitionsCommand", *on_plan, "--verify")
    assert f"Reassignment of replica {topic}-0-0 completed successfully." in said


def test_kafka_metadata_quorum_describes_the_one_voter(broker: EmbeddedBroker) -> None:
    said = run(broker, "MetadataQuorumCommand", "describe", "--status")
    status = dict(re.findall(r"(\w+): +(.*)", said))
    assert (status["LeaderId"], status["CurrentVoters"], status["CurrentObservers"]) == ("0", '[{"id": 0}]', "[]")
    assert int(status["HighWatermark"]) > 0
    head, row = run(broker, "MetadataQuorumCommand", "describe", "--replication").strip().splitlines()
    voter = dict(zip(head.split(), row.split(), strict=True))
    assert (voter["NodeId"], voter["Lag"], voter["Status"]) == ("0", "0", "Leader")
    assert int(voter["LogEndOffset"]) >= int(status["HighWatermark"])


def test_kafka_features_keeps_the_level(broker: EmbeddedBroker) -> None:
    level = ("--feature", "transaction.version=2")
    assert "transaction.version was upgraded to 2." in run(broker, "FeatureCommand", "upgrade", *level)
    trial = run(broker, "FeatureCommand", "upgrade", "--dry-run", *level)
    assert "transaction.version can be upgraded to 2." in trial
    lower = ("--feature", "transaction.version=1")
    said = run(broker, "FeatureCommand", "downgrade", *lower, fails=True)
    assert "This broker is always at level 2" in said
    other = ("--feature", "metadata.version=25")
    assert "does not support this feature" in run(broker, "FeatureCommand", "upgrade", *other, fails=True)


def test_kafka_cluster_does_not_unregister_the_node(broker: EmbeddedBroker) -> None:
    said = run(broker, "ClusterTool unregister", "--id", "0", fails=True)
    assert "broker 0 is the one node of this cluster: stop it instead" in said
    assert "Broker ID 5 is not currently registered" in run(broker, "ClusterTool unregister", "--id", "5", fails=True)


def configs(broker: EmbeddedBroker, *arguments: str, fails: bool = False) -> str:
    done = kafka_configs("--bootstrap-server", broker.bootstrap_servers, *arguments)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_kafka_configs_changes_a_topic(broker: EmbeddedBroker, client: RawClient) -> None:
    on_topic = ("--entity-type", "topics", "--entity-name", new_topic(client))
    configs(broker, "--alter", *on_topic, "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
    said = configs(broker, "--describe", *on_topic)
    assert "retention.ms=5000" in said
    assert "cleanup.policy=compact,delete" in said
    configs(broker, "--alter", *on_topic, "--delete-config", "retention.ms")
    assert "retention.ms" not in configs(broker, "--describe", *on_topic)


def test_kafka_configs_changes_a_group(broker: EmbeddedBroker) -> None:
    on_group = ("--entity-type", "groups", "--entity-name", unique("group"))
    configs(broker, "--alter", *on_group, "--add-config", "consumer.session.timeout.ms=50000")
    said = configs(broker, "--describe", *on_group)
    assert "consumer.session.timeout.ms=50000" in said
    assert "DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000" in said
    assert on_group[-1] in configs(broker, "--describe", "--entity-type", "groups")
    configs(broker, "--alter", *on_group, "--delete-config", "consumer.session.timeout.ms")
    assert "DYNAMIC_GROUP_CONFIG" not in configs(broker, "--describe", *on_group)


def test_kafka_configs_finds_no_quotas_and_sets_none(broker: EmbeddedBroker) -> None:
    for kind in ("clients", "users", "ips"):
        assert configs(broker, "--describe", "--entity-type", kind) == ""
    quota = ("--entity-type", "clients", "--entity-name", "app", "--add-config", "producer_byte_rate=1000")
    said = configs(broker, "--alter", *quota, fails=True)
    assert "this broker enforces no quotas: producer_byte_rate" in said


def test_kafka_configs_changes_the_broker_while_it_runs(broker: EmbeddedBroker) -> None:
    node, everywhere = (
        ("--entity-type", "brokers", "--entity-name", "0"),
        ("--entity-type", "brokers", "--entity-default"),
    )
    configs(broker, "--alter", *node, "--add-config", "log.cleaner.backoff.ms=5000,log.retention.ms=7000")
    configs(broker, "--alter", *everywhere, "--add-config", "max.connections=500")
    said = configs(broker, "--describe", *node)
    assert "log.cleaner.backoff.ms=5000" in said
    assert "log.retention.ms=7000" in said
    assert "max.connections=500" in configs(broker, "--describe", *everywhere)
    configs(broker, "--alter", *node, "--delete-config", "log.cleaner.backoff.ms,log.retention.ms")
    assert "log.cleaner.backoff.ms" not in configs(broker, "--describe", *node)
    said = configs(broker, "--alter", *node, "--add-config", "num.io.threads=9", fails=True)
    assert "Cannot update these configs dynamically: num.io.threads" in said


@pytest.mark.parametrize(
    ("kind", "name", "setting", "words"),
    [
        ("groups", "g", "consumer.session.timeout.ms=1", "must be in the range 45000 to 60000 inclusive"),
        ("groups", "g", "share.session.timeout.ms=50000", "Unknown group config name: share.session.timeout.ms"),
        ("broker-loggers", "0", "root=DEBUG", "this broker has no loggers whose level can be changed"),
        ("client-metrics", "m", "interval.ms=1000", "this broker takes no metrics of clients"),
    ],
)
def test_kafka_configs_is_refused_what_this_broker_lacks(
    broker: EmbeddedBroker, kind: str, name: str, setting: str, words: str
) -> None:
    said = configs(broker, "--alter", "--entity-type", kind, "--entity-name", name, "--add-config", setting, fails=True)
    assert words in said
