"""librdkafka in groups of the consumer protocol: members share, follow, are killed, and outlive a broker's death."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.crash.world import free_port
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.member_process import member_process
from tests.support.requests.calls import ask_for_topics, batch, new_topic, produce, unique, wanted_topic
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

QUICK = {"group.consumer.session.timeout.ms": "1500", "group.consumer.heartbeat.interval.ms": "100"}
PARTITIONS = 4


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=QUICK) as running:
        yield running


class ConsumingMember:
    """A consumer in a group, and the values that it has read."""

    def __init__(self, servers: str, group: str, *topics: str, **more: object) -> None:
        settings = {key.replace("_", "."): value for key, value in more.items()}
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **settings,
            }
        )
        self.values: list[bytes] = []
        self.consumer.subscribe(list(topics))

    @property
    def count(self) -> int:
        """How many partitions it holds."""
        return len(self.consumer.assignment())

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.values.append(message.value())

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)


def written(client: RawClient, topic: str, values: range) -> list[bytes]:
    """New records of ``topic``."""
    produced = [b"%d" % value for value in values]
    for value in values:
        produce(client, topic, batch([b"%d" % value]), partition=value % PARTITIONS)
    return produced


def until(members: list[ConsumingMember], *counts: int, values: list[bytes] | None = None) -> None:
    """Poll until the members hold so many partitions, and have read ``values``."""

    def are_there() -> bool:
        for member in members:
            member.poll()
        seen = sorted(value for member in members for value in member.values)
        return [member.count for member in members] == list(counts) and (values is None or seen == sorted(values))

    assert eventually(are_there), ([member.count for member in members], [member.values for member in members])


def test_members_share_and_one_takes_over_without_reading_twice(
    shared_broker: EmbeddedBroker, client: RawClient
) -> None:
    topic, group = new_topic(client, PARTITIONS), unique("group")
    first = ConsumingMember(shared_broker.bootstrap_servers, group, topic)
    values = written(client, topic, range(20))
    until([first], PARTITIONS, values=values)
    first.commit()
    second = ConsumingMember(shared_broker.bootstrap_servers, group, topic)
    until([first, second], 2, 2)
    values += written(client, topic, range(20, 40))
    until([first, second], 2, 2, values=values)
    second.commit()
    second.consumer.close()
    until([first], PARTITIONS)
    values = sorted([*first.values, *written(client, topic, range(40, 60))])
    until([first], PARTITIONS, values=values)
    first.consumer.close()


def test_an_administrator_sees_the_group(shared_broker: EmbeddedBroker, client: RawClient) -> None:
    topic, group = new_topic(client, PARTITIONS), unique("group")
    member = ConsumingMember(shared_broker.bootstrap_servers, group, topic, group_instance_id="one")
    until([member], PARTITIONS)
    administrator = AdminClient({"bootstrap.servers": shared_broker.bootstrap_servers})
    listed = {entry.group_id: entry for entry in administrator.list_consumer_groups().result().valid}
    assert (listed[group].type, listed[group].state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
    described = administrator.describe_consumer_groups([group])[group].result()
    assert (described.type, described.state) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
    (seen,) = described.members
    assert seen.group_instance_id == "one"
    assert {place.partition for place in seen.assignment.topic_partitions} == set(range(PARTITIONS))
    member.consumer.close()


def test_a_pattern_follows_the_topics_that_come_and_a_bad_one_is_an_error(
    shared_broker: EmbeddedBroker, client: RawClient
) -> None:
    prefix, group = unique("prefix"), unique("group")
    member = ConsumingMember(shared_broker.bootstrap_servers, group, f"^{prefix}-.*")
    until([member], 0)
    new_topic(client)
    for number in range(2):
        ask_for_topics(client, wanted_topic(f"{prefix}-{number}"))
        until([member], number + 1)
    member.consumer.close()
    bad = ConsumingMember(shared_broker.bootstrap_servers, group, r"^(a)\1").consumer  # librdkafka itself accepts it

    def error() -> str:
        message = bad.poll(0.1)
        return "" if message is None or message.error() is None else message.error().str()

    assert "The regular expression is not valid" in eventually(error)
    bad.close()


@pytest.mark.slow
def test_the_partitions_of_a_killed_member_go_to_another(shared_broker: EmbeddedBroker, client: RawClient) -> None:
    topic, group = new_topic(client, PARTITIONS), unique("group")
    with member_process(shared_broker.bootstrap_servers, group, topic, PARTITIONS) as killed:
        member = ConsumingMember(shared_broker.bootstrap_servers, group, topic)
        until([member], 2)
        killed.kill()
        until([member], PARTITIONS)
        member.consumer.close()


def test_a_static_member_that_restarts_keeps_its_partitions(shared_broker: EmbeddedBroker, client: RawClient) -> None:
    topic, group = new_topic(client, PARTITIONS), unique("group")
    static = ConsumingMember(shared_broker.bootstrap_servers, group, topic, group_instance_id="one")
    other = ConsumingMember(shared_broker.bootstrap_servers, group, topic)
    until([static, other], 2, 2)
    mine = {place.partition for place in static.consumer.assignment()}
    static.consumer.close()
    again = ConsumingMember(shared_broker.bootstrap_servers, group, topic, group_instance_id="one")
    until([again, other], 2, 2)
    assert {place.partition for place in again.consumer.assignment()} == mine
    again.consumer.close()
    other.consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_members_outlive_the_brokers_death(tmp_path: Path, is_killed: bool) -> None:
    group, listen = unique("group"), f"127.0.0.1:{free_port()}"
    patient = {**QUICK, "group.consumer.session.timeout.ms": "45000"}
    with ForkedBroker(tmp_path / "broker", listen=listen, config=patient) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            topic = new_topic(client, PARTITIONS)
            members = [ConsumingMember(broker.bootstrap_servers, group, topic) for _ in range(2)]
            until(members, 2, 2)  # before there are records, which another member might read first
            values = written(client, topic, range(20))
        until(members, 2, 2, values=values)
        for member in members:
            member.commit()
        held = [member.consumer.assignment() for member in members]
        if is_killed:
            broker.kill()
        else:
            broker.stop()
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            values += written(client, topic, range(20, 40))
        until(members, 2, 2, values=values)
        assert [member.consumer.assignment() for member in members] == held
        for member in members:
            member.commit()
            member.consumer.close()
