"""TwoPhaseProducer.send_records: records leave before the transaction is prepared, and nothing is awaited."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite import EmbeddedBroker, TwoPhaseProducer
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import InvalidTransactionStateError, PrepareFailedError
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.consumers import consume
from tests.support.requests.calls import read_all
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

TOPIC = "events"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[TwoPhaseProducer]:
    """A producer that has a connection to the leader."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "early"}
    with TwoPhaseProducer(config) as made:
        made.init_transactions()
        made.begin_transaction()
        made.produce(TOPIC, b"first")
        made.commit_transaction()
        yield made


def test_a_record_is_in_the_log_before_it_is_prepared(broker: EmbeddedBroker, producer: TwoPhaseProducer) -> None:
    producer.begin_transaction()
    producer.produce(TOPIC, b"early")
    producer.send_records()
    with RawClient(broker.bootstrap_servers) as client:
        assert eventually(lambda: b"early" in read_all(client, TOPIC, committed=False))
        assert read_all(client, TOPIC) == [b"first"]
    producer.produce(TOPIC, b"later")
    producer.prepare_transaction()
    producer.commit_transaction()
    assert consume(broker.bootstrap_servers, TOPIC, minimum=3)[0] == [b"first", b"early", b"later"]


def test_what_was_sent_can_be_aborted(broker: EmbeddedBroker, producer: TwoPhaseProducer) -> None:
    producer.begin_transaction()
    producer.produce(TOPIC, b"early")
    producer.send_records()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.produce(TOPIC, b"next")
    producer.commit_transaction()
    assert consume(broker.bootstrap_servers, TOPIC, minimum=2)[0] == [b"first", b"next"]


@pytest.mark.parametrize("linger", [{}, {"linger.ms": 100}], ids=["sends all", "lingers"])
def test_a_poll_without_a_limit_ends_after_the_delivery_timeout(broker: EmbeddedBroker, linger: dict[str, int]) -> None:
    errors: list[object] = []
    named = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "late"}
    config = {**named, "delivery.timeout.ms": 500, **linger}
    with TwoPhaseProducer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(TOPIC, b"first")
        producer.commit_transaction()
        producer.begin_transaction()
        broker.kill()
        producer.produce(TOPIC, b"lost", on_delivery=lambda error, _record: errors.append(error))
        producer.send_records()
        assert producer.poll(-1) == 1
    assert isinstance(errors[0], PrepareFailedError)


def test_without_a_transaction_there_is_nothing_to_send(producer: TwoPhaseProducer) -> None:
    with pytest.raises(InvalidTransactionStateError):
        producer.send_records()
    assert producer.state is ProducerState.READY
    producer.begin_transaction()
    producer.send_records()
    producer.produce(TOPIC, b"next")
    producer.commit_transaction()


def test_a_prepared_transaction_takes_no_more(producer: TwoPhaseProducer) -> None:
    producer.begin_transaction()
    producer.produce(TOPIC, b"early")
    producer.prepare_transaction()
    with pytest.raises(InvalidTransactionStateError):
        producer.send_records()
    producer.commit_transaction()


def test_a_delivery_callback_may_not_send(producer: TwoPhaseProducer) -> None:
    raised: list[str] = []

    def report(_error: object, _record: object) -> None:
        try:
            producer.send_records()
        except InvalidTransactionStateError as error:
            raised.append(str(error))

    producer.begin_transaction()
    producer.produce(TOPIC, b"early", on_delivery=report)
    producer.commit_transaction()
    assert len(raised) == 1
    assert "a callback may call only produce()" in raised[0]
