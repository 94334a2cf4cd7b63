"""Consumers' offsets with the real clients and broker: identity, lost membership, and a librdkafka that hangs."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from sqlalchemy import Engine, insert

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.client.producer.arguments import member_of
from dualwrite.client.protocol.requests import GroupMember
from dualwrite.comparison.topic import read_topic
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.coordinator.kafka.native import NativeProducer
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.unit.transaction import driver_of
from dualwrite.errors import FencedError, KafkaRefusedError, KafkaUnavailableError, RebalancedError
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.testing.kafka import KafkaBroker
from dualwrite.wire.apis import ApiKey
from tests.support.coordinator.consumed_topics import BROKER, fill, reading, values_of
from tests.support.coordinator.event_table import events, expire_leases, stored_values
from tests.support.forked import ForkedBroker, ForkedKafkaBroker
from tests.support.peer_clients.secure_brokers import secure_broker
from tests.support.requests.acl_calls import acl, create
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, OPEN, PASSWORD, SASL
from tests.support.servers.holding_proxy import HoldingProxy
from tests.support.waiting import PATIENCE_SECONDS, eventually

PARTICIPANTS: list[Callable[[Any], KafkaParticipant]] = [NativeProducer, LibrdkafkaProducer]
producers = pytest.mark.parametrize("producer", ["native", "librdkafka"])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    with ForkedKafkaBroker(tmp_path / "broker", config=BROKER) as broker:
        broker.create_topic("in")
        fill(broker.bootstrap_servers, 0, 6)
        yield broker


def polled(consumer: Any, count: int) -> list[str]:
    """The next ``count`` records."""
    found: list[str] = []
    while len(found) < count:
        found += [
            message.value().decode() for message in consumer.consume(count - len(found), 0.2) if message.error() is None
        ]
    return found


def write_all(dual_write: DualWrite, consumer: Any, values: list[str], method: str = "send_offsets") -> None:
    with dual_write.transaction() as tx:
        for value in values:
            tx.execute(insert(events).values(value=value))
            tx.produce("out", value)
        getattr(tx, method)(consumer)


def with_offsets_alone(dual_write: DualWrite, consumer: Any, values: list[str]) -> None:
    with dual_write.transaction() as tx:
        tx.execute(insert(events), [{"value": value} for value in values])
        tx.send_offsets(consumer)


def committed(servers: str, group: str = "group") -> int:
    """Where a new member of ``group`` would begin."""
    with reading(servers, group) as consumer:
        return int(consumer.committed([TopicPartition("in", 0)], timeout=30)[0].offset)


@pytest.mark.slow_cases
@producers
def test_offsets_are_committed_with_their_unit_of_work(
    broker: KafkaBroker, sqlite_engine: Engine, producer: Any
) -> None:
    with (
        DualWrite(sqlite_engine, broker.client_config, application="worker", producer=producer) as dual_write,
        reading(broker.bootstrap_servers) as consumer,
    ):
        consumer.subscribe(["in"])
        write_all(dual_write, consumer, polled(consumer, 2))
        with pytest.raises(KeyError):
            _fail(dual_write, consumer, polled(consumer, 2))
        dual_write.seek_to_committed(consumer)
        write_all(dual_write, consumer, polled(consumer, 3))
        assert committed(broker.bootstrap_servers) == 5
    assert values_of(broker, 5) == stored_values(sqlite_engine) == ["0", "1", "2", "3", "4"]


def _fail(dual_write: DualWrite, consumer: Any, values: list[str]) -> None:
    with dual_write.transaction() as tx:
        tx.produce("out", values[0])
        tx.send_offsets(consumer)
        raise KeyError


def test_a_restarted_worker_recovers_what_its_consumer_waits_for_before_its_first_unit(
    broker: KafkaBroker, sqlite_engine: Engine
) -> None:
    """The offset of a killed process is in an open transaction, for which every new member of the group waits."""
    config = broker.client_config
    killed = DualWrite(sqlite_engine, config, application="worker")
    with reading(broker.bootstrap_servers) as consumer:
        consumer.subscribe(["in"], on_assign=killed.seek_to_committed)
        assert polled(consumer, 2) == ["0", "1"]
        block = killed.transaction()  # held: one that is collected ends its unit of work
        tx = block.__enter__()
        tx.send_offsets(consumer)
    driver_of(tx).drop_database()
    manager_of(killed).process.pool.heartbeat.stop(PATIENCE_SECONDS)
    expire_leases(sqlite_engine)
    with (
        DualWrite(sqlite_engine, config, application="worker", lease_timeout=1) as restarted,
        reading(broker.bootstrap_servers) as consumer,
    ):
        consumer.subscribe(["in"], on_assign=restarted.seek_to_committed)
        assert polled(consumer, 1) == ["0"]
        assert restarted.counters.units == 0
    del block
    killed.close(timeout=0)


@pytest.mark.slow_cases
@pytest.mark.parametrize("make", PARTICIPANTS)
def test_offsets_alone_are_named_so_that_no_other_transaction_is_taken_for_them(
    broker: KafkaBroker, make: Callable[[Any], KafkaParticipant]
) -> None:
    config = {**broker.client_config, "transactional.id": "app-0"}
    with reading(broker.bootstrap_servers) as consumer:
        consumer.subscribe(["in"])
        polled(consumer, 1)
        metadata = consumer.consumer_group_metadata()

        def prepared(participant: KafkaParticipant, offset: int) -> PreparedTxnState:
            participant.begin_transaction()
            participant.send_offsets_to_transaction([TopicPartition("in", 0, offset)], metadata)
            return participant.prepare_transaction()

        def recovered(state: PreparedTxnState) -> Outcome:
            heir = make(config)
            heir.init_transactions(keep_prepared_txn=True)
            outcome = heir.complete_transaction(state)
            heir.close()
            return outcome

        participant = make(config)
        participant.init_transactions()
        earlier = prepared(participant, 2)
        participant.commit_transaction()
        assert prepared(participant, 3) != earlier
        participant.close()
        assert recovered(earlier) is Outcome.ABORTED
        assert committed(broker.bootstrap_servers) == 2
        participant = make(config)
        participant.init_transactions()
        state = prepared(participant, 4)
        participant.close()
        assert recovered(state) is Outcome.COMMITTED
        assert committed(broker.bootstrap_servers) == 4


@pytest.mark.slow
@producers
@pytest.mark.parametrize("method", ["send_offsets", "store_offsets"])
def test_a_consumer_removed_from_its_group_commits_nothing(
    broker: KafkaBroker, sqlite_engine: Engine, producer: Any, method: str
) -> None:
    settings = {"max.poll.interval.ms": 1000, "session.timeout.ms": 1000, "heartbeat.interval.ms": 200}
    with (
        DualWrite(sqlite_engine, broker.client_config, application="worker", producer=producer) as dual_write,
        reading(broker.bootstrap_servers, **settings) as consumer,
    ):
        seek = {"on_assign": dual_write.seek_to_stored} if method == "store_offsets" else {}
        consumer.subscribe(["in"], **seek)
        values = polled(consumer, 2)
        # It is silent for longer than max.poll.interval.ms, and librdkafka leaves the group for it.
        eventually(lambda: member_of(consumer.consumer_group_metadata()), lambda member: not member.member_id)
        assert [position.offset for position in consumer.position(consumer.assignment())] == [2]
        with pytest.raises(RebalancedError):
            write_all(dual_write, consumer, values, method)
    assert stored_values(sqlite_engine) == []
    assert committed(broker.bootstrap_servers) < 0


@pytest.mark.slow_cases
@pytest.mark.parametrize("make", PARTICIPANTS)
def test_kafka_accepts_offsets_without_a_member_id(
    broker: KafkaBroker, make: Callable[[Any], KafkaParticipant]
) -> None:
    """Which is why a unit of work must not send them: this is what would become of them."""
    with reading(broker.bootstrap_servers) as owner:
        owner.subscribe(["in"])
        polled(owner, 1)
        participant = make({**broker.client_config, "transactional.id": "zombie-0"})
        participant.init_transactions()
        participant.begin_transaction()
        metadata = b"CGMDv2:\xff\xff\xff\xffgroup\x00\x00\x01"  # as librdkafka tells it
        assert member_of(metadata) == GroupMember("group")
        participant.send_offsets_to_transaction([TopicPartition("in", 0, 5)], metadata)
        assert participant.prepare_transaction()
        participant.commit_transaction()
        participant.close()
    assert committed(broker.bootstrap_servers) == 5


def test_a_fenced_librdkafka_raises_fenced_error_from_any_call(broker: KafkaBroker) -> None:
    """Its first refusal is told at a poll, and before that each record is refused for a fatal error without a name."""
    config = {**broker.client_config, "transactional.id": "app-0", "log_level": 0}
    with closing(LibrdkafkaProducer(config)) as fenced, closing(LibrdkafkaProducer(config)) as heir:
        fenced.init_transactions()
        fenced.begin_transaction()
        fenced.produce(OutgoingRecord("out", b"v"))
        heir.init_transactions()
        with pytest.raises(FencedError):
            eventually(lambda: fenced.produce(OutgoingRecord("out", b"v")), lambda _: False)


@contextmanager
def behind(tmp_path: Path, proxy: HoldingProxy) -> Iterator[str]:
    """A broker, which clients reach through ``proxy`` alone."""
    servers = f"127.0.0.1:{proxy.port}"
    advertised = {"advertised.listeners": f"PLAINTEXT://{servers}"}
    with ForkedBroker(tmp_path / "broker", config={**BROKER, **advertised}) as broker:
        proxy.broker_port = int(broker.bootstrap_servers.rpartition(":")[2])
        fill(servers, 0, 6)
        yield servers
    proxy.close()


@pytest.mark.slow
def test_librdkafka_goes_back_by_itself_behind_what_its_group_has_committed(tmp_path: Path) -> None:
    """Which is why on_assign puts it where the group is. Where its question for a partition's beginning comes to
    nothing after the partition was taken away, it asks again half a second later, whatever it has begun since."""
    proxy = HoldingProxy(ApiKey.LIST_OFFSETS, cuts=False)
    with behind(tmp_path, proxy) as servers, reading(servers) as consumer:
        consumer.subscribe(["in"])
        eventually(lambda: consumer.consume(1, 0.05), lambda _: proxy.held.is_set())
        consumer.unsubscribe()
        eventually(lambda: consumer.consume(1, 0.05), lambda _: not consumer.assignment())
        with reading(servers) as other:
            eventually(lambda: is_committed(other, 4), bool)  # when nobody is in the group
        consumer.subscribe(["in"])
        eventually(lambda: consumer.consume(1, 0.05), lambda _: consumer.assignment())
        proxy.hang_up()
        values: list[str] = []
        eventually(lambda: values.extend(polled(consumer, 1)), lambda _: "0" in values)


def test_librdkafka_asks_for_no_offsets_of_a_consumer_positioned_by_on_assign(
    tmp_path: Path, sqlite_engine: Engine
) -> None:
    proxy = HoldingProxy()
    with (
        behind(tmp_path, proxy) as servers,
        DualWrite(sqlite_engine, {"bootstrap.servers": servers}, application="worker") as dual_write,
        reading(servers) as consumer,
    ):
        consumer.subscribe(["in"], on_assign=dual_write.seek_to_committed)
        values = polled(consumer, 2)
        asked = proxy.seen[ApiKey.LIST_OFFSETS]
        assert asked == 2  # both ends, by the callback, which waits for them
        write_all(dual_write, consumer, values)
        consumer.unsubscribe()
        eventually(lambda: consumer.consume(1, 0.05), lambda _: not consumer.assignment())
        consumer.subscribe(["in"], on_assign=dual_write.seek_to_committed)
        write_all(dual_write, consumer, polled(consumer, 4))
        assert proxy.seen[ApiKey.LIST_OFFSETS] == asked
    assert stored_values(sqlite_engine) == ["0", "1", "2", "3", "4", "5"]


def is_committed(consumer: Any, offset: int) -> bool:
    try:
        consumer.commit(offsets=[TopicPartition("in", 0, offset)], asynchronous=False)
    except KafkaException as error:
        return error.args[0].code() != KafkaError.UNKNOWN_MEMBER_ID
    return True


@pytest.mark.slow
@producers
def test_offsets_that_come_late_reach_no_later_unit(tmp_path: Path, sqlite_engine: Engine, producer: Any) -> None:
    """The second unit's offsets are on their way for longer than a call may take. They arrive in the third unit, where
    they would be the later ones, and the group would go on behind records that were used."""
    proxy = HoldingProxy(ApiKey.TXN_OFFSET_COMMIT, number=2, cuts=False)
    late = threading.Event()

    def deliver_late(step: str) -> None:
        if step == "STORE_STATE" and late.is_set():
            late.clear()
            proxy.release()

    with behind(tmp_path, proxy) as servers:
        kafka = {"bootstrap.servers": servers, "delivery.timeout.ms": "1000"}
        with (
            DualWrite(sqlite_engine, kafka, application="late", producer=producer, on_step=deliver_late) as dual_write,
            reading(servers) as consumer,
        ):
            consumer.subscribe(["in"])
            write_all(dual_write, consumer, polled(consumer, 2))
            with pytest.raises(KafkaUnavailableError):
                write_all(dual_write, consumer, polled(consumer, 2))
            dual_write.seek_to_committed(consumer)
            late.set()
            write_all(dual_write, consumer, polled(consumer, 4))
            assert not late.is_set()
        assert committed(servers) == 6
        visible = [value.decode() for _, value in read_topic(servers, "out", "read_committed")]
    assert visible == stored_values(sqlite_engine) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.slow
def test_a_hanging_librdkafka_is_replaced(
    tmp_path: Path, sqlite_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Its question for the group's coordinator has no answer, and no limit in time."""
    proxy = HoldingProxy(ApiKey.FIND_COORDINATOR, number=0, cuts=False)
    with behind(tmp_path, proxy) as servers:
        kafka = {"bootstrap.servers": servers, "delivery.timeout.ms": "1000"}
        with (
            DualWrite(sqlite_engine, kafka, application="worker", producer="librdkafka") as dual_write,
            reading(servers) as consumer,
        ):
            consumer.subscribe(["in"])
            values = polled(consumer, 2)
            dual_write.recover()
            proxy.swallows = True
            with pytest.raises(KafkaUnavailableError, match="librdkafka did not return") as raised:
                with_offsets_alone(dual_write, consumer, values)
            proxy.swallows = False
            assert raised.value.retriable
            assert "its producer is abandoned" in caplog.text
            write_all(dual_write, consumer, values)  # the records in hand, once more
            write_all(dual_write, consumer, polled(consumer, 4))
        assert committed(servers) == 6
        visible = [value.decode() for _, value in read_topic(servers, "out", "read_committed")]
    assert visible == stored_values(sqlite_engine) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("method", ["seek_to_stored", "seek_to_committed"])
def test_an_offset_that_a_broker_does_not_tell_is_not_taken_for_none(
    tmp_path: Path, sqlite_engine: Engine, method: str
) -> None:
    """librdkafka raises nothing then: the group's committed offset looks as if there were none."""
    rules = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    user = {"sasl.mechanism": "PLAIN", "sasl.username": ALICE, "sasl.password": PASSWORD}
    with secure_broker(tmp_path / "broker", **BROKER, **rules, **{"super.users": "User:ANONYMOUS"}) as broker:
        servers = broker.listeners[OPEN]
        fill(servers, 0, 6)
        with (
            RawClient(servers) as administrator,
            reading(servers) as other,
            reading(broker.listeners[SASL], **{"security.protocol": SASL, **user}) as consumer,
            DualWrite(sqlite_engine, {"bootstrap.servers": servers}, application="worker") as dual_write,
        ):
            eventually(lambda: is_committed(other, 4), bool)
            read = partial(acl, AclOperation.READ, principal=f"User:{ALICE}")
            create(administrator, [read(ResourceType.GROUP, "group")])
            with pytest.raises(KafkaRefusedError, match=r"^committed offsets of in-0: .*authorization failed"):
                getattr(dual_write, method)(consumer, [TopicPartition("in", 0)])
            create(administrator, [read(ResourceType.TOPIC, "in")])
            getattr(dual_write, method)(consumer, [TopicPartition("in", 0)])
            assert polled(consumer, 2) == ["4", "5"]


@pytest.mark.slow
def test_a_second_rebalance_in_one_call_of_the_consumer_is_survived(sqlite_engine: Engine, broker: KafkaBroker) -> None:
    """confluent-kafka aborts the process at the second callback if the first one has asked for the cluster's id."""
    servers, assigned = broker.bootstrap_servers, list[int]()
    broker.create_topic("two", partitions=2)

    def assign(consumer: Any, partitions: list[TopicPartition]) -> None:
        dual_write.seek_to_stored(consumer, partitions)
        assigned.append(len(partitions))

    with (
        DualWrite(sqlite_engine, broker.client_config, application="worker") as dual_write,
        reading(servers) as consumer,
        ThreadPoolExecutor(1) as thread,
    ):
        consumer.subscribe(["two"], on_assign=assign)
        consuming = thread.submit(consumer.consume, 1, PATIENCE_SECONDS)
        assert eventually(lambda: assigned == [2])
        with reading(servers) as other:
            other.subscribe(["two"])
            assert eventually(lambda: other.poll(0.05) is None and len(assigned) == 2)
        producer = Producer(broker.client_config)
        for partition in range(2):
            producer.produce("two", b"end", partition=partition)
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert [message.value() for message in consuming.result()] == [b"end"]


@pytest.mark.slow_cases
@producers
def test_with_a_silent_broker_no_step_takes_longer_than_a_record_may(sqlite_engine: Engine, producer: Any) -> None:
    kafka = {"delivery.timeout.ms": "300", "log_level": 0}
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        DualWrite(
            sqlite_engine,
            {**kafka, "bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"},
            application="worker",
            producer=producer,
        ) as dual_write,
        pytest.raises(KafkaUnavailableError, match=r"gave up after 0\.3 s"),
    ):
        write_all(dual_write, None, ["never"])
