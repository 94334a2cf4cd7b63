"""Apache Kafka's own command-line tools, as they were released, on the bundled broker and on its files."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.records.batch import Record, build_batch
from tests.support.apache_kafka.single_node import java_tool
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import (
    add,
    batch,
    describe,
    end,
    metadata,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    read_all,
    tx_batch,
    unique,
)
from tests.support.requests.consumer_group_calls import ConsumerClient
from tests.support.requests.group_calls import joined_member
from tests.support.requests.offset_calls import commit, txn_commit
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.jvm]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def broker(data_dir: Path) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(data_dir) as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as connected:
        yield connected


def tool(name: str, *arguments: str, stdin: str = "") -> str:
    """What the tool prints; it must succeed."""
    done = java_tool(f"org.apache.kafka.tools.{name}", *arguments, stdin=stdin)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on(broker: EmbeddedBroker) -> tuple[str, str]:
    return "--bootstrap-server", broker.bootstrap_servers


def table(text: str) -> list[list[str]]:
    """The rows of a tool's table, without its head."""
    return [line.split() for line in text.strip().splitlines()[1:]]


# --- topics, offsets


def test_topics_are_created_and_listed(broker: EmbeddedBroker) -> None:
    assert "Created topic made." in tool(
        "TopicCommand", *on(broker), "--create", "--topic", "made", "--partitions", "3"
    )
    again = ("--create", "--if-not-exists", "--topic", "made")
    assert tool("TopicCommand", *on(broker), *again) == ""
    assert {"made", "__consumer_offsets", "__transaction_state"} <= set(
        tool("TopicCommand", *on(broker), "--list").split()
    )
    assert "made" not in tool("TopicCommand", *on(broker), "--list", "--topic", "other")


def test_get_offset_shell_finds_offsets_by_timestamp(broker: EmbeddedBroker, client: RawClient) -> None:
    topic = new_topic(client)
    for timestamp in (1000, 3000, 2000):
        produce(client, topic, batch([b"v"], timestamp=timestamp))
    told = {
        time: tool("GetOffsetShell", *on(broker), "--topic", topic, "--time", time).strip()
        for time in ("latest", "earliest", "max-timestamp", "1500", "5000")
    }
    offsets = {"latest": 3, "earliest": 0, "max-timestamp": 1, "1500": 1}
    assert told == {"5000": "", **{time: f"{topic}:0:{offset}" for time, offset in offsets.items()}}


def test_a_topic_is_described_grows_and_goes(broker: EmbeddedBroker) -> None:
    topic = unique("topic")
    settings = ("--config", "retention.ms=5000", "--config", "cleanup.policy=compact")
    tool("TopicCommand", *on(broker), "--create", "--topic", topic, "--partitions", "2", *settings)
    tool("TopicCommand", *on(broker), "--alter", "--topic", topic, "--partitions", "4")
    said = tool("TopicCommand", *on(broker), "--describe", "--topic", topic)
    assert "PartitionCount: 4" in said
    assert re.findall(r"Configs: (\S+)", said) == ["cleanup.policy=compact,retention.ms=5000"]
    assert re.findall(r"Partition: (\d) +Leader: 0", said.replace("\t", " ")) == ["0", "1", "2", "3"]
    tool("TopicCommand", *on(broker), "--delete", "--topic", topic)
    assert topic not in tool("TopicCommand", *on(broker), "--list").split()


def test_log_dirs_command_shows_partition_sizes(broker: EmbeddedBroker, client: RawClient) -> None:
    topic = new_topic(client)
    content = batch([b"v"])
    produce(client, topic, content)
    said = tool("LogDirsCommand", *on(broker), "--describe", "--topic-list", topic)
    (told,) = json.loads(said.splitlines()[-1])["brokers"]
    ((partition,),) = [entry["partitions"] for entry in told["logDirs"]]
    assert (partition["partition"], partition["size"]) == (f"{topic}-0", len(content))


# --- the cluster


def test_the_cluster_tells_its_id_its_features_and_its_one_node(broker: EmbeddedBroker, client: RawClient) -> None:
    assert tool("ClusterTool", "cluster-id", *on(broker)).strip() == f"Cluster ID: {metadata(client).cluster_id}"
    (node,) = table(tool("ClusterTool", "list-endpoints", *on(broker)))
    assert (node[0], f"{node[1]}:{node[2]}") == ("0", broker.bootstrap_servers)
    features = tool("FeatureCommand", *on(broker), "describe").split()
    assert features[features.index("transaction.version") :][:6] == [
        "transaction.version", "SupportedMinVersion:", "0", "SupportedMaxVersion:", "2", "FinalizedVersionLevel:",
    ]  # fmt: skip
    assert "Produce(0): 0 to 13 [usable: 13]" in tool("BrokerApiVersionsCommand", *on(broker))


def test_the_client_compatibility_test_passes(broker: EmbeddedBroker, client: RawClient) -> None:
    able = (
        "--offsets-for-times-supported", "--cluster-id-supported", "--create-topics-supported",
        "--describe-acls-supported", "--describe-configs-supported", "--idempotent-producer-supported",
    )  # fmt: skip
    arguments = [part for ability in able for part in (ability, "True")]
    arguments += ["--expect-record-too-large-exception", "False", "--num-cluster-nodes", "1"]
    assert "SUCCESS" in tool("ClientCompatibilityTest", *on(broker), "--topic", new_topic(client), *arguments)


# --- transactions


def test_transactions_are_listed_by_state(broker: EmbeddedBroker, client: RawClient) -> None:
    topic, name = new_topic(client), unique("tx")
    producer = new_producer(client, name)
    open_transaction(client, name, producer, {(topic, 0): [b"v"]})
    listed = table(tool("TransactionsCommand", *on(broker), "list"))
    assert [name, "0", str(producer.producer_id), "Ongoing"] in listed
    pattern = ("--transactional-id-pattern", f"{name}.*")
    assert [row[0] for row in table(tool("TransactionsCommand", *on(broker), "list", *pattern))] == [name]
    longer = ("--duration-filter", "3600000")
    assert name not in tool("TransactionsCommand", *on(broker), "list", *longer)
    end(client, name, producer)


def test_a_transaction_is_described_with_its_partitions(broker: EmbeddedBroker, client: RawClient) -> None:
    topic, name = new_topic(client, partitions=2), unique("tx")
    producer = new_producer(client, name)
    open_transaction(client, name, producer, {(topic, 0): [b"v"], (topic, 1): [b"v"]})
    (row,) = table(tool("TransactionsCommand", *on(broker), "describe", "--transactional-id", name))
    assert row[:6] == ["0", name, str(producer.producer_id), "0", "Ongoing", "60000"]
    assert set(row[-1].split(",")) == {f"{topic}-0", f"{topic}-1"}
    (row,) = table(tool("TransactionsCommand", *on(broker), "describe-producers", "--topic", topic, "--partition", "1"))
    assert (row[0], row[1], row[3], row[5]) == (str(producer.producer_id), "0", "0", "0")
    end(client, name, producer)


def test_a_transaction_is_terminated_by_force(broker: EmbeddedBroker, client: RawClient) -> None:
    topic, name = new_topic(client), unique("tx")
    open_transaction(client, name, new_producer(client, name, two_phase=True), {(topic, 0): [b"v"]})
    tool("TransactionsCommand", *on(broker), "forceTerminateTransaction", "--transactionalId", name)
    assert describe(client, name).transaction_state != "Ongoing"
    assert read_all(client, topic) == []
    produce(client, topic, batch([b"after"]))
    assert read_all(client, topic) == [b"after"]


def test_an_open_transaction_is_aborted_by_its_start_offset(broker: EmbeddedBroker, client: RawClient) -> None:
    topic, name = new_topic(client), unique("tx")
    open_transaction(client, name, new_producer(client, name), {(topic, 0): [b"v"]})
    where = ("--topic", topic, "--partition", "0", "--start-offset", "0")
    tool("TransactionsCommand", *on(broker), "abort", *where)
    produce(client, topic, batch([b"after"]))
    assert read_all(client, topic) == [b"after"]


def test_a_hanging_transaction_is_found_and_then_ended(tmp_path: Path) -> None:
    """A late record of the older protocol, let through by a broker that does not verify, behind its own marker."""
    careless = {"transaction.partition.verification.enable": "false"}
    with ForkedBroker(tmp_path, config=careless) as broker, RawClient(broker.bootstrap_servers) as client:
        topic, name = new_topic(client), unique("tx")
        producer = new_producer(client, name)
        add(client, name, producer, (topic, 0))
        produce(client, topic, tx_batch([b"in time"], producer), name)
        healthy = unique("tx")
        open_transaction(client, healthy, new_producer(client, healthy), {(topic, 0): [b"still open"]})
        search = ("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
        assert table(tool("TransactionsCommand", *on(broker), *search)) == [], "both are known to the coordinator"

        end(client, name, producer, version=1)
        produce(client, topic, tx_batch([b"late"], producer, sequence=1), name)
        (row,) = table(tool("TransactionsCommand", *on(broker), *search))
        assert row[:4] == [topic, "0", str(producer.producer_id), str(producer.epoch)]
        start_offset = row[5]
        tool(
            "TransactionsCommand", *on(broker), "abort",
            "--topic", topic, "--partition", "0", "--start-offset", start_offset,
        )  # fmt: skip
        assert table(tool("TransactionsCommand", *on(broker), *search)) == []


# --- producing and consuming


def test_the_console_tools_write_and_read(broker: EmbeddedBroker, client: RawClient) -> None:
    topic = new_topic(client)
    tool("ConsoleProducer", *on(broker), "--topic", topic, stdin="a\nb\nc\n")
    reading = ("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "3")
    assert tool("consumer.ConsoleConsumer", *on(broker), *reading).split() == ["a", "b", "c"]


def test_the_console_consumer_reads_a_compacted_log_over_its_empty_batches(tmp_path: Path) -> None:
    with (
        ForkedBroker(tmp_path, config={"log.cleaner.backoff.ms": "50"}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        settings = {"cleanup_policy": "compact", "segment_bytes": "1048576", "min_cleanable_dirty_ratio": "0"}
        topic = new_topic(client, **settings)
        for number in range(60):
            key = b"%d" % number if number % 5 == 0 else b"again"
            produce(client, topic, build_batch([Record(key, bytes(100_000), 1000)]))
        assert eventually(lambda: len(read_all(client, topic)), lambda left: left == 21) == 21
        reading = ("--topic", topic, "--partition", "0", "--offset", "1", "--max-messages", "19")
        printing = ("--formatter-property", "print.offset=true", "--formatter-property", "print.value=false")
        said = tool("consumer.ConsoleConsumer", *on(broker), *reading, *printing).split()
    assert said == [f"Offset:{offset}" for offset in (5, 10, 15, 20, 25, 30, 35, 40, 45, 49, *range(50, 59))]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_come_back(broker: EmbeddedBroker, client: RawClient, codec: str) -> None:
    topic = new_topic(client)
    values = [f"value {number}" for number in range(50)]
    packing = ("--compression-codec", codec) if codec != "none" else ()
    tool("ConsoleProducer", *on(broker), "--topic", topic, *packing, stdin="\n".join(values) + "\n")
    reading = ("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "50")
    assert tool("consumer.ConsoleConsumer", *on(broker), *reading).splitlines() == values


def test_the_performance_producer_commits_transactions(broker: EmbeddedBroker, client: RawClient) -> None:
    topic, name = new_topic(client), unique("perf")
    load = ("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    transactions = ("--transactional-id", name, "--transaction-duration-ms", "20")
    said = tool("ProducerPerformance", *load, "--bootstrap-server", broker.bootstrap_servers, *transactions)
    assert "2000 records sent" in said
    assert len(read_all(client, topic)) == 2000
    assert describe(client, name).transaction_state == "CompleteCommit"


def test_the_verifiable_producer_is_acknowledged(broker: EmbeddedBroker, client: RawClient) -> None:
    topic = new_topic(client)
    said = tool("VerifiableProducer", *on(broker), "--topic", topic, "--max-messages", "20", "--acks", "-1")
    events = [json.loads(line) for line in said.splitlines()]
    assert (events[-1]["name"], events[-1]["sent"], events[-1]["acked"]) == ("tool_data", 20, 20)
    assert [event["offset"] for event in events if event["name"] == "producer_send_success"] == list(range(20))
    assert read_all(client, topic) == [str(number).encode() for number in range(20)]


# --- the files


def dump(data_dir: Path, partition: str, *arguments: str) -> str:
    files = ",".join(str(path) for path in sorted((data_dir / partition).glob("*.log")))
    return tool("DumpLogSegments", "--files", files, *arguments)


def test_a_partition_is_dumped_with_its_markers(data_dir: Path, broker: EmbeddedBroker, client: RawClient) -> None:
    topic, name = new_topic(client), unique("tx")
    produce(client, topic, batch([b"plain"]))
    producer = new_producer(client, name)
    produce(client, topic, tx_batch([b"a", b"b"], producer), name, version=12)
    end(client, name, producer, commit=False)
    said = dump(data_dir, f"{topic}-0", "--print-data-log")
    assert "Found" not in said  # its word for what is wrong
    assert re.findall(r"payload: (\w+)", said) == ["plain", "a", "b"]
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", said) == [("ABORT", "0")]
    assert said.count("isvalid: true") == 3


def test_the_transaction_log_is_dumped_with_its_decoder(
    data_dir: Path, broker: EmbeddedBroker, client: RawClient
) -> None:
    topic, name = new_topic(client), unique("tx")
    producer = new_producer(client, name)
    open_transaction(client, name, producer, {(topic, 0): [b"v"]})
    end(client, name, producer)
    said = dump(data_dir, "__transaction_state-0", "--transaction-log-decoder")
    mine = [line for line in said.splitlines() if f'"transactionalId":"{name}"' in line]
    states = [json.loads(line.partition("payload: ")[2])["data"]["transactionStatus"] for line in mine]
    assert states == [0, 1, 2, 4]  # Empty, Ongoing, PrepareCommit, CompleteCommit


def test_committed_offsets_are_dumped_with_their_decoder(
    data_dir: Path, broker: EmbeddedBroker, client: RawClient
) -> None:
    topic, group = new_topic(client), unique("group")
    assert commit(client, group, {(topic, 0): (7, 0, "seven")}) == [0]
    said = dump(data_dir, "__consumer_offsets-0", "--offsets-decoder")
    (mine,) = [line for line in said.splitlines() if f'"group":"{group}"' in line]
    assert '"offset":7' in mine
    assert '"metadata":"seven"' in mine


def test_groups_and_offsets_in_transactions_are_dumped_with_their_decoder(
    data_dir: Path, broker: EmbeddedBroker, client: RawClient
) -> None:
    topic, group, name = new_topic(client), unique("group"), unique("tx")
    member = joined_member(client, group, topic, instance_id="static")
    producer = new_producer(client, name)
    assert txn_commit(client, name, producer, group, {(topic, 0): 5}) == [0]
    end(client, name, producer)
    said = dump(data_dir, "__consumer_offsets-0", "--offsets-decoder")
    mine = [line for line in said.splitlines() if f'"group":"{group}"' in line]
    (described, position) = [json.loads(line.partition("payload: ")[2])["data"] for line in mine][-2:]
    assert (described["protocolType"], described["protocol"], described["generation"]) == ("consumer", "range", 1)
    assert [(each["memberId"], each["groupInstanceId"]) for each in described["members"]] == [
        (member.member_id, "static")
    ]
    assert (position["offset"], position["leaderEpoch"], position["metadata"]) == (5, 3, "m")
    assert "endTxnMarker: COMMIT" in said


def test_consumer_groups_are_dumped_with_their_decoder(
    data_dir: Path, broker: EmbeddedBroker, client: RawClient
) -> None:
    member = ConsumerClient(client, unique("group"), instance_id="static")
    topic = new_topic(client, 2)
    member.join(topic, server_assignor="range")
    member.leave()
    said = dump(data_dir, "__consumer_offsets-0", "--offsets-decoder")
    mine = [line for line in said.splitlines() if f'"groupId":"{member.group}"' in line]
    written: dict[str, list[dict[str, Any]]] = {}
    for key, payload in (re.findall(r"key: (\{.*\}) payload: (.*)", line)[0] for line in mine):
        fact = {} if payload == "<DELETE>" else json.loads(payload)["data"]
        written.setdefault(json.loads(key)["type"], []).append(fact)
    (epochs, (subscribed, unsubscribed), targets) = (written[kind] for kind in "357")
    assert [fact["epoch"] for fact in epochs] == [2, 3]
    assert (subscribed["instanceId"], subscribed["subscribedTopicNames"], subscribed["serverAssignor"]) == (
        "static",
        [topic],
        "range",
    )
    assert (unsubscribed, len(targets)) == ({}, 2)
    held, released = written["8"]
    assert (held["memberEpoch"], held["state"], released) == (2, 0, {})
    (assigned,) = held["assignedPartitions"]
    assert (assigned["partitions"], assigned["assignmentEpochs"]) == ([0, 1], [2, 2])
