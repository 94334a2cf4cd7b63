"""Apache Kafka's own tools and the Java client 4.4.0 as members of groups on the bundled broker."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.apache_kafka.single_node import java_program, java_tool
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import batch, new_topic, produce, read_all, unique
from tests.support.requests.consumer_group_calls import ConsumerClient
from tests.support.requests.offset_calls import commit, committed
from tests.support.requests.raw_client import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

PROGRAMS = Path(__file__).parent / "java"
GROUPS = "consumer.group.ConsumerGroupCommand"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    config = {"group.initial.rebalance.delay.ms": "0", "group.consumer.heartbeat.interval.ms": "100"}
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=config) as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as connected:
        yield connected


def tool(broker: EmbeddedBroker, name: str, *arguments: str) -> str:
    """What the tool prints; it must succeed."""
    done = java_tool(f"org.apache.kafka.tools.{name}", "--bootstrap-server", broker.bootstrap_servers, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(text: str) -> list[list[str]]:
    """The rows of a tool's table, without its head."""
    table = [line.split() for line in text.splitlines() if line.strip() and "has no active members" not in line]
    return table[1:]


def filled(client: RawClient, number: int = 30) -> str:
    topic = new_topic(client)
    produce(client, topic, batch([str(value).encode() for value in range(number)]))
    return topic


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_verifiable_consumer_reads_and_commits(broker: EmbeddedBroker, client: RawClient, protocol: str) -> None:
    topic, group = filled(client), unique("group")
    reading = ("--topic", topic, "--group-id", group, "--max-messages", "30", "--reset-policy", "earliest")
    reading += ("--group-protocol", protocol)
    events = [json.loads(line) for line in tool(broker, "VerifiableConsumer", *reading).splitlines()]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 30
    assert {"partitions_assigned", "offsets_committed", "partitions_revoked"} <= {event["name"] for event in events}
    assert committed(client, group, (topic, 0))[topic, 0][0] == 30


def test_the_console_and_the_performance_consumer_read_in_groups(broker: EmbeddedBroker, client: RawClient) -> None:
    topic = filled(client)
    reading = ("--topic", topic, "--group", unique("group"), "--from-beginning", "--max-messages", "30")
    assert tool(broker, "consumer.ConsoleConsumer", *reading).split() == [str(value) for value in range(30)]
    load = ("--topic", topic, "--group", unique("group"), "--num-records", "30", "--timeout", "10000")
    head, figures = tool(broker, "ConsumerPerformance", *load).splitlines()[:2]
    told = dict(zip(head.split(", "), figures.split(", "), strict=True))
    assert told["data.consumed.in.nMsg"] == "30"


def test_groups_are_listed_and_described(broker: EmbeddedBroker, client: RawClient) -> None:
    topic, group = filled(client), unique("group")
    commit(client, group, {(topic, 0): 12})
    assert group in tool(broker, GROUPS, "--list").split()
    assert [group, "Empty"] in rows(tool(broker, GROUPS, "--list", "--state"))
    ((owner, name, partition, current, end, lag, *_),) = rows(tool(broker, GROUPS, "--describe", "--group", group))
    assert (owner, name, partition, current, end, lag) == (group, topic, "0", "12", "30", "18")
    (state,) = rows(tool(broker, GROUPS, "--describe", "--group", group, "--state"))
    assert state[-2:] == ["Empty", "0"]
    assert group in tool(broker, "GroupsCommand", "--list")


def test_a_consumer_group_is_described_with_its_members(broker: EmbeddedBroker, client: RawClient) -> None:
    topic, group = filled(client), unique("group")
    member = ConsumerClient(client, group)
    member.join(topic)
    commit(client, group, {(topic, 0): 12}, generation_id_or_member_epoch=member.epoch, member_id=member.member_id)
    assert [group, "Consumer"] in rows(tool(broker, GROUPS, "--list", "--type"))
    ((owner, name, partition, current, *_),) = rows(tool(broker, GROUPS, "--describe", "--group", group))
    assert (owner, name, partition, current) == (group, topic, "0", "12")
    (state,) = rows(tool(broker, GROUPS, "--describe", "--group", group, "--state"))
    assert state[-3:] == ["uniform", "Stable", "1"]
    assert member.member_id in tool(broker, GROUPS, "--describe", "--group", group, "--members", "--verbose")


def test_offsets_are_reset_and_deleted_and_the_group_too(broker: EmbeddedBroker, client: RawClient) -> None:
    topic, group = filled(client), unique("group")
    commit(client, group, {(topic, 0): 12})
    for how, offset in {("--to-offset", "3"): 3, ("--shift-by", "4"): 7, ("--to-latest",): 30}.items():
        tool(broker, GROUPS, "--reset-offsets", "--group", group, "--topic", topic, *how, "--execute")
        assert committed(client, group, (topic, 0))[topic, 0][0] == offset
    said = tool(broker, GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert [topic, "0", "Successful"] in rows(said)
    commit(client, group, {(topic, 0): 12})
    assert "was successful" in tool(broker, GROUPS, "--delete", "--group", group)
    assert group not in tool(broker, GROUPS, "--list").split()


@pytest.mark.parametrize("way", [(), ("--group-mode", "--use-group-metadata")], ids=["assigned", "in a group"])
def test_the_transactional_message_copier_copies_exactly_once(
    broker: EmbeddedBroker, client: RawClient, way: tuple[str, ...]
) -> None:
    source, target, group = filled(client), new_topic(client), unique("group")
    copying = ("--input-topic", source, "--output-topic", target, "--input-partition", "0", "--transaction-size", "7")
    names = ("--transactional-id", unique("tx"), "--consumer-group", group)
    arguments = ("--broker-list", broker.bootstrap_servers, *copying, *names, "--max-messages", "30", *way)
    done = java_tool("org.apache.kafka.tools.TransactionalMessageCopier", *arguments, "--enable-random-aborts")
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_all(client, target) == [str(value).encode() for value in range(30)]
    assert committed(client, group, (source, 0))[source, 0][0] == 30


def test_end_to_end_latency_is_measured(broker: EmbeddedBroker, client: RawClient) -> None:
    load = ("--topic", new_topic(client), "--num-records", "20", "--producer-acks", "all", "--record-size", "100")
    assert "Avg latency" in tool(broker, "EndToEndLatency", *load)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_go_with_the_transaction_and_a_second_member_takes_over(
    broker: EmbeddedBroker, client: RawClient, protocol: str
) -> None:
    source, target = new_topic(client, partitions=2), new_topic(client)
    for partition in (0, 1):
        produce(client, source, batch([f"{partition}-{number}".encode() for number in range(5)]), partition=partition)
    done = java_program(PROGRAMS / "Groups.java", broker.bootstrap_servers, source, target, unique("group"), protocol)
    said = done.stdout.splitlines()[:5]  # the client may log that it was closed while it got a partition back
    assert said == [
        "aborted: committed null",
        "while open: null",
        "committed: 10 records, offsets 5 and 5",
        "members 2, one partition each",
        "the zombie is fenced",
    ], done.stdout + done.stderr
    assert sorted(read_all(client, target)) == sorted(  # type: ignore[type-var]
        f"{partition}-{number}".encode() for partition in (0, 1) for number in range(5)
    )
