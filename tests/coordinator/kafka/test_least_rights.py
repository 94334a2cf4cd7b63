"""Units of work and recovery with the rights that docs/security.md names and no others."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from sqlalchemy import Engine, insert

from dualwrite.broker.access.acls import AclOperation, PatternType, ResourceType
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import DualWriteError, KafkaRefusedError
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.peer_clients.kafka_helpers import visible
from tests.support.requests.acl_calls import EVERY_ACL, acl, create, delete
from tests.support.requests.calls import new_topic
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, OPEN, PASSWORD, SASL, sasl_broker

PRODUCERS = ["native", "librdkafka"]
RIGHTS = {
    ResourceType.TOPIC: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.READ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.TWO_PHASE_COMMIT),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Its open listener is the administrator's; users come by the one with SASL."""
    config = {
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:ANONYMOUS",
    }
    with sasl_broker(tmp_path_factory.mktemp("broker"), **config) as running:
        yield running


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return ready_engine(f"sqlite:///{tmp_path / 'app.db'}")


def grant(broker: EmbeddedBroker, topic: str, application: str, without: AclOperation | None = None) -> None:
    """Alice's rights to the topic and to the application's transactional ids."""
    names = {ResourceType.TOPIC: topic, ResourceType.TRANSACTIONAL_ID: f"{application}-"}
    with RawClient(broker.listeners[OPEN]) as admin:
        create(
            admin,
            [
                acl(operation, kind, names[kind], principal=f"User:{ALICE}", pattern=PatternType.PREFIXED)
                for kind, operations in RIGHTS.items()
                for operation in operations
                if operation is not without
            ],
        )


def config(broker: EmbeddedBroker, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.listeners[SASL],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": ALICE,
        "sasl.password": PASSWORD,
        **more,
    }


def new_place(broker: EmbeddedBroker) -> str:
    with RawClient(broker.listeners[OPEN]) as admin:
        return new_topic(admin)


def write(made: DualWrite, topic: str, value: str) -> None:
    with made.transaction() as tx:
        tx.execute(insert(events).values(value=value))
        tx.produce(topic, value)


def write_with_offsets(made: DualWrite, topic: str, consumer: Consumer) -> None:
    with made.transaction() as tx:
        tx.send_offsets(consumer)
        tx.execute(insert(events).values(value="b"))
        tx.produce(topic, "b")


def die(step: str) -> None:
    if step in ("COMMIT_KAFKA", "FINISH_LATER"):
        raise SystemExit


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_unit_of_work_and_its_recovery_need_no_other_rights(
    broker: EmbeddedBroker, engine: Engine, producer: str
) -> None:
    topic = new_place(broker)
    grant(broker, topic, topic)
    options: dict[str, Any] = {"application": topic, "producer": producer, "pool_size": 1}
    with DualWrite(engine, config(broker), **options) as made:
        write(made, topic, "a")
    dying = DualWrite(engine, config(broker), on_step=die, **options)
    with pytest.raises(SystemExit):
        write(dying, topic, "b")
    dying.close(timeout=0)
    assert sorted(visible(broker.listeners[OPEN], topic)) == [b"a"]
    with DualWrite(engine, config(broker), **options) as again:
        write(again, topic, "c")
    assert sorted(stored_values(engine)) == ["a", "b", "c"]
    assert sorted(visible(broker.listeners[OPEN], topic)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("without", [AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT])
def test_without_a_right_nothing_is_written_and_the_error_is_the_librarys(
    broker: EmbeddedBroker, engine: Engine, producer: str, without: AclOperation
) -> None:
    topic = new_place(broker)
    grant(broker, topic, topic, without)
    options: dict[str, Any] = {"application": topic, "producer": producer, "pool_size": 1}
    quick = config(broker, **{"delivery.timeout.ms": 5000})
    with (
        pytest.raises(DualWriteError, match=r"(?i)authori[sz]"),
        DualWrite(engine, quick, **options) as made,
    ):
        write(made, topic, "a")
    assert stored_values(engine) == []
    assert visible(broker.listeners[OPEN], topic) == []


@pytest.mark.slow
@pytest.mark.parametrize("producer", PRODUCERS)
def test_offsets_beside_a_record_need_one_more_right_with_librdkafka(
    broker: EmbeddedBroker, engine: Engine, producer: str
) -> None:
    """The coordinator leaves a topic that the client may not describe out of what it says of the transaction."""
    topic = new_place(broker)
    grant(broker, topic, topic)
    of_group = acl(AclOperation.READ, ResourceType.GROUP, topic, principal=f"User:{ALICE}")
    of_offsets = acl(AclOperation.DESCRIBE, ResourceType.TOPIC, "__consumer_offsets", principal=f"User:{ALICE}")
    reading = {"group.id": topic, "enable.auto.commit": "false", "isolation.level": "read_committed"}
    consumer = Consumer(config(broker, **reading))
    with (
        RawClient(broker.listeners[OPEN]) as admin,
        DualWrite(engine, config(broker), application=topic, producer=producer, pool_size=1) as made,
    ):
        create(admin, [of_group])
        write(made, topic, "a")
        consumer.subscribe([topic], on_assign=made.seek_to_committed)
        assert consumer.consume(1, timeout=60)
        if producer == "librdkafka":
            with pytest.raises(KafkaRefusedError, match="grant DESCRIBE on the topic __consumer_offsets"):
                write_with_offsets(made, topic, consumer)
            assert stored_values(engine) == ["a"]
            create(admin, [of_offsets])
            made.seek_to_committed(consumer)
            assert consumer.consume(1, timeout=60)
        write_with_offsets(made, topic, consumer)
        delete(admin, replace(EVERY_ACL, resource_name="__consumer_offsets"))
    consumer.close()
    assert sorted(stored_values(engine)) == ["a", "b"]
    assert sorted(visible(broker.listeners[OPEN], topic)) == [b"a", b"b"]


@pytest.mark.slow
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("step", ["STORE_STATE", "COMMIT_DATABASE", "COMMIT_KAFKA"])
def test_rights_that_are_revoked_within_a_unit_leave_both_sides_equal(
    broker: EmbeddedBroker, engine: Engine, producer: str, step: str
) -> None:
    """Between any two of its steps; once the rights are back, recovery has the last word."""
    topic = new_place(broker)
    grant(broker, topic, topic)
    options: dict[str, Any] = {"application": topic, "producer": producer, "pool_size": 1}
    met: list[str] = []

    def revoke(each: str) -> None:
        met.append(each)
        if each == step and met.count(step) == 2:
            with RawClient(broker.listeners[OPEN]) as admin:
                delete(admin, replace(EVERY_ACL, principal=f"User:{ALICE}"))

    with DualWrite(engine, config(broker, **{"delivery.timeout.ms": 3000}), on_step=revoke, **options) as made:
        write(made, topic, "a")
        write(made, topic, "b")
    assert met.count(step) == 2
    grant(broker, topic, topic)
    with DualWrite(engine, config(broker), **options) as again:
        write(again, topic, "c")
    assert sorted(stored_values(engine)) == ["a", "b", "c"]
    assert sorted(visible(broker.listeners[OPEN], topic)) == [b"a", b"b", b"c"]


@pytest.mark.slow_cases
@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_recovery_that_may_not_see_the_topic_does_not_decide(
    broker: EmbeddedBroker, engine: Engine, producer: str
) -> None:
    """The coordinator leaves the topic out of the open transaction, which is not to say that it is another one."""
    topic = new_place(broker)
    grant(broker, topic, topic)
    options: dict[str, Any] = {"application": topic, "producer": producer, "pool_size": 1}

    def revoke_and_die(step: str) -> None:
        if step == "COMMIT_KAFKA":
            with RawClient(broker.listeners[OPEN]) as admin:
                delete(admin, replace(EVERY_ACL, resource_type=ResourceType.TOPIC, principal=f"User:{ALICE}"))
            raise SystemExit

    dying = DualWrite(engine, config(broker), on_step=revoke_and_die, **options)
    with pytest.raises(SystemExit):
        write(dying, topic, "a")
    dying.close(timeout=1)  # its recovery runs without the rights
    grant(broker, topic, topic)
    with DualWrite(engine, config(broker), **options) as again:
        write(again, topic, "b")
    assert sorted(stored_values(engine)) == ["a", "b"]
    assert sorted(visible(broker.listeners[OPEN], topic)) == [b"a", b"b"]
