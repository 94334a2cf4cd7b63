"""The control plane against the bundled broker: KIP-939's answers, and the facts that tell transactions apart."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.errors import FencedError, KafkaRefusedError
from dualwrite.ids import ProducerIdentity, TopicPartition
from tests.support.peer_clients.kafka_helpers import create_topic, fresh_name, visible

TWO_PHASE = {"transaction.timeout.ms": 2147483647, "message.timeout.ms": 30000, "log_level": 0}


@pytest.fixture
def control(shared_broker: EmbeddedBroker) -> Iterator[ControlPlane]:
    plane = ControlPlane({"bootstrap.servers": shared_broker.bootstrap_servers})
    yield plane
    plane.close()


class Session:
    """A librdkafka producer of its own topic and transactional id."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.name = fresh_name()
        self.bootstrap = broker.bootstrap_servers
        create_topic(self.bootstrap, self.name, partitions=2)
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.name, **TWO_PHASE})
        self._producer.init_transactions(30)

    def write(self, *values: bytes, partition: int = 0) -> list[int]:
        offsets: list[int] = []
        for value in values:
            self._producer.produce(
                self.name, value, partition=partition, on_delivery=lambda _, message: offsets.append(message.offset())
            )
        assert self._producer.flush(30) == 0
        return offsets

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction(30)


@pytest.fixture
def session(shared_broker: EmbeddedBroker) -> Session:
    return Session(shared_broker)


def keep(control: ControlPlane, session: Session) -> tuple[ProducerIdentity, ProducerIdentity | None]:
    answer = control.init_producer_id(session.name, two_phase_commit=True, keep_prepared_txn=True)
    return answer.producer, answer.ongoing


def identity(control: ControlPlane, session: Session) -> ProducerIdentity:
    described = control.describe_transaction(session.name)
    assert described is not None
    return described.producer


def test_the_bundled_broker_offers_keep_prepared(control: ControlPlane) -> None:
    assert control.supports_keep_prepared()


def test_an_unknown_transactional_id_is_described_as_none(control: ControlPlane) -> None:
    assert control.describe_transaction(fresh_name()) is None


def test_an_open_transaction_is_described_with_its_partitions_and_never_expires(
    control: ControlPlane, session: Session
) -> None:
    session.begin()
    session.write(b"a", partition=1)
    described = control.describe_transaction(session.name)
    assert described is not None
    assert (described.state, described.timeout_ms) == ("Ongoing", 2147483647)
    assert described.partitions == {TopicPartition(session.name, 1)}
    assert described.start_ms > 0


def test_a_transaction_starts_at_its_first_records_offset_also_after_other_transactions(
    control: ControlPlane, session: Session
) -> None:
    partition = TopicPartition(session.name, 0)
    firsts = []
    for _ in range(3):
        session.begin()
        offsets = session.write(b"a", b"b")
        starts = control.current_transaction_start_offsets(
            [partition, TopicPartition(session.name, 1)], identity(control, session)
        )
        assert starts == {partition: offsets[0]}
        firsts.append(offsets[0])
        session.commit()
        assert control.current_transaction_start_offsets([partition], identity(control, session)) == {}
    assert firsts == sorted(set(firsts))


def test_open_transactions_are_listed(control: ControlPlane, session: Session) -> None:
    session.begin()
    session.write(b"a")
    states = {listing.transactional_id: listing.state for listing in control.list_transactions()}
    assert states[session.name] == "Ongoing"


@pytest.mark.parametrize(("committed", "seen"), [(True, [b"a"]), (False, [])])
def test_a_kept_transaction_is_ended_under_the_new_identity_and_again_without_harm(
    control: ControlPlane, session: Session, committed: bool, seen: list[bytes]
) -> None:
    session.begin()
    session.write(b"a")
    before = identity(control, session)
    producer, ongoing = keep(control, session)
    assert (ongoing, producer != before) == (before, True)
    for _ in range(2):
        control.end_txn(session.name, producer, committed, repeatable=True)
    with pytest.raises(KafkaRefusedError, match="INVALID_TXN_STATE"):
        control.end_txn(session.name, producer, not committed, repeatable=True)
    assert visible(session.bootstrap, session.name) == seen


def test_keeping_again_and_again_shows_the_same_transaction_under_ever_newer_identities(
    control: ControlPlane, session: Session
) -> None:
    session.begin()
    session.write(b"a")
    answers = [keep(control, session) for _ in range(3)]
    assert len({ongoing for _, ongoing in answers}) == 1
    assert len({producer for producer, _ in answers}) == 3
    with pytest.raises(FencedError):
        control.end_txn(session.name, answers[0][0], True)


def test_after_the_end_nothing_is_kept(control: ControlPlane, session: Session) -> None:
    session.begin()
    session.write(b"a")
    producer, _ = keep(control, session)
    control.end_txn(session.name, producer, True, repeatable=True)
    assert keep(control, session)[1] is None


def test_a_plain_init_aborts_the_open_transaction(control: ControlPlane, session: Session) -> None:
    session.begin()
    session.write(b"a")
    answer = control.init_producer_id(session.name, two_phase_commit=True, keep_prepared_txn=False)
    assert answer.ongoing is None
    assert visible(session.bootstrap, session.name) == []


def test_an_identity_that_was_replaced_is_fenced(control: ControlPlane, session: Session) -> None:
    session.begin()
    session.write(b"a")
    old = identity(control, session)
    keep(control, session)
    with pytest.raises(FencedError):
        control.end_txn(session.name, old, True)
    assert visible(session.bootstrap, session.name) == []
