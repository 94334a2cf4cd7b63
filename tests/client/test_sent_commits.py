"""TwoPhaseProducer.send_commit: the commit is on its way, and its answer is collected at a later call."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dualwrite import TwoPhaseProducer
from dualwrite.client.drivers.blocking import BlockingDriver
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import AnswerLostError, FencedError, InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState
from dualwrite.wire.apis import ApiKey
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.consumers import consume
from tests.support.servers.holding_proxy import HoldingProxy
from tests.support.waiting import eventually

TOPIC = "events"


class HeldCommitPlace:
    """A broker behind a proxy that holds the second EndTxn."""

    def __init__(self, directory: Path, *, cuts: bool) -> None:
        self.cuts = cuts
        self.proxy = HoldingProxy(ApiKey.END_TXN, number=2, cuts=cuts)
        self.at = f"127.0.0.1:{self.proxy.port}"
        self.broker = ForkedBroker(directory, config={"advertised.listeners": f"PLAINTEXT://{self.at}"}).start()
        self.proxy.broker_port = int(self.broker.bootstrap_servers.rpartition(":")[2])
        self.made: list[TwoPhaseProducer] = []

    def producer(self, **config: object) -> TwoPhaseProducer:
        named = {name.replace("_", "."): value for name, value in config.items()}
        made = TwoPhaseProducer({"bootstrap.servers": self.at, "transactional.id": "sent", **named})
        self.made.append(made)
        return made

    def seen(self, minimum: int = 0) -> list[bytes]:
        return consume(self.broker.bootstrap_servers, TOPIC, minimum=minimum)[0]

    def close(self) -> None:
        for producer in self.made:
            producer.close()
        self.broker.stop()
        self.proxy.close()


@pytest.fixture(params=[True, False], ids=["cut", "silent"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HeldCommitPlace]:
    made = HeldCommitPlace(tmp_path / "broker", cuts=request.param)
    yield made
    made.close()


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[TwoPhaseProducer]:
    with ForkedBroker(tmp_path / "broker") as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "sent"}
        with TwoPhaseProducer(config) as producer:
            producer.init_transactions()
            yield producer


def prepare(producer: TwoPhaseProducer, value: str) -> PreparedTxnState:
    producer.begin_transaction()
    producer.produce(TOPIC, value)
    return producer.prepare_transaction()


def test_a_commit_that_was_sent_needs_its_answer_before_the_next_transaction(producer: TwoPhaseProducer) -> None:
    for number in range(3):
        prepare(producer, str(number))
        assert not producer.is_committing
        producer.send_commit()
        assert producer.is_committing
        with pytest.raises(InvalidTransactionStateError, match="another call of the producer is in progress"):
            producer.begin_transaction()
        assert producer.collect_commit(wait=True)
        assert (producer.is_committing, producer.state) == (False, ProducerState.READY)


def test_an_answer_that_has_arrived_is_collected_without_waiting(producer: TwoPhaseProducer) -> None:
    prepare(producer, "one")
    producer.send_commit()
    assert eventually(lambda: producer.collect_commit(wait=False), bool)
    prepare(producer, "two")


def test_a_commit_is_sent_although_the_coordinators_connection_was_lost_meanwhile(tmp_path: Path) -> None:
    """No other call of the producer sends it."""
    drivers: list[BlockingDriver] = []

    def make_driver(*arguments: Any) -> BlockingDriver:
        drivers.append(BlockingDriver(*arguments))
        return drivers[-1]

    with ForkedBroker(tmp_path / "broker") as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "sent"}
        with TwoPhaseProducer(config, make_driver=make_driver) as producer:
            producer.init_transactions()
            prepare(producer, "one")
            for link in drivers[0].connections.values():
                link.socket.shutdown(socket.SHUT_RDWR)
            producer.send_commit()
            assert consume(broker.bootstrap_servers, TOPIC, minimum=1)[0] == [b"one"]
            assert producer.collect_commit(wait=True)


def test_collect_commit_returns_at_once_if_nothing_was_sent(producer: TwoPhaseProducer) -> None:
    assert producer.collect_commit(wait=True)
    assert producer.collect_commit(wait=False)


def test_records_that_are_not_prepared_are_flushed_first(producer: TwoPhaseProducer) -> None:
    told: list[object] = []
    producer.begin_transaction()
    producer.produce(TOPIC, "one", on_delivery=lambda error, record: told.append(error))
    producer.send_commit()
    assert told == [None]
    assert producer.collect_commit(wait=True)


def test_an_empty_transaction_is_committed_at_once(producer: TwoPhaseProducer) -> None:
    producer.begin_transaction()
    producer.send_commit()
    assert producer.collect_commit(wait=False)
    assert producer.state is ProducerState.READY


@pytest.mark.parametrize("verb", ["commit_transaction", "prepare_transaction", "abort_transaction", "send_commit"])
def test_every_other_verb_is_refused_meanwhile(producer: TwoPhaseProducer, verb: str) -> None:
    prepare(producer, "one")
    producer.send_commit()
    refused: Callable[[], object] = getattr(producer, verb)
    with pytest.raises(InvalidTransactionStateError):
        refused()
    assert producer.collect_commit(wait=True)


@pytest.mark.slow_cases
def test_a_commit_whose_connection_fails_is_sent_again_as_its_answer_is_collected(place: HeldCommitPlace) -> None:
    producer = place.producer(socket_timeout_ms=1000, retry_backoff_ms=10)
    producer.init_transactions()
    for value in ("one", "two"):
        prepare(producer, value)
        producer.send_commit()
        if value == "one":
            assert producer.collect_commit(wait=True)
    assert place.proxy.held.wait(20)
    assert place.seen(minimum=1) == [b"one"]
    assert producer.collect_commit(wait=True)
    assert place.seen(minimum=2) == [b"one", b"two"]
    place.proxy.release()  # the first copy arrives
    prepare(producer, "three")
    assert producer.abort_transaction() is TransactionResult.ABORTED
    assert place.seen() == [b"one", b"two"]


@pytest.mark.slow
def test_an_answer_that_never_comes_leaves_the_commit_to_recovery(place: HeldCommitPlace) -> None:
    producer = place.producer(delivery_timeout_ms=1500, socket_timeout_ms=1000)
    producer.init_transactions()
    prepare(producer, "one")
    producer.commit_transaction()
    state = prepare(producer, "two")
    place.proxy.swallows = True
    producer.send_commit()
    began = time.monotonic()
    with pytest.raises(AnswerLostError, match="EndTxn"):
        producer.collect_commit(wait=True)
    assert time.monotonic() - began < 20
    with pytest.raises(AnswerLostError):
        producer.collect_commit(wait=False)
    assert producer.is_committing
    producer.close()
    place.proxy.swallows = False
    successor = place.producer()
    successor.init_transactions(keep_prepared_txn=True)
    assert successor.complete_transaction(state) is TransactionResult.COMMITTED
    assert place.seen(minimum=2) == [b"one", b"two"]


def test_a_producer_fenced_after_sending_its_commit_raises_fenced_error(place: HeldCommitPlace) -> None:
    producer = place.producer()
    producer.init_transactions()
    prepare(producer, "one")
    producer.commit_transaction()
    state = prepare(producer, "two")
    producer.send_commit()
    assert place.proxy.held.wait(20)
    successor = place.producer()
    successor.init_transactions(keep_prepared_txn=True)
    assert successor.complete_transaction(state) is TransactionResult.COMMITTED
    if not place.cuts:
        place.proxy.hang_up()
    with pytest.raises(FencedError):
        producer.collect_commit(wait=True)
