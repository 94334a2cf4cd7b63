"""Transactions of every client: whole or not at all, fenced by a successor, invisible while they are open."""

from collections.abc import Callable

import pytest

from tests.support.peer_clients import client as ability
from tests.support.peer_clients.client import PeerAdministrator, PeerRefusedError, PeerSender, Receiver
from tests.support.peer_clients.reading import read_to_end, values
from tests.support.requests.calls import unique

Producer = Callable[..., PeerSender]
Consumer = Callable[..., Receiver]

pytestmark = pytest.mark.needs(ability.TRANSACTIONS)


@pytest.fixture
def topic(admin: PeerAdministrator) -> str:
    """A topic of two partitions."""
    name = unique("topic")
    admin.create_topic(name, 2)
    return name


def test_committed_transactions_are_read_and_aborted_ones_are_not(
    topic: str, producer: Producer, consumer: Consumer
) -> None:
    sender = producer(transactional_id=unique("tx"))
    sender.init_transactions()
    kept = []
    for number in range(12):
        sender.begin()
        for index in (0, 1):
            sender.send(topic, b"%d" % number, partition=index)
        sender.flush()
        if number % 3:
            sender.commit()
            kept.append(b"%d" % number)
        else:
            sender.abort()
    for index in (0, 1):
        assert values(read_to_end(consumer(committed_only=True), (topic, index))) == kept
        assert len(read_to_end(consumer(), (topic, index))) == 12


def test_an_open_transaction_is_invisible_to_read_committed_consumers(
    topic: str, producer: Producer, consumer: Consumer
) -> None:
    sender, plain = producer(transactional_id=unique("tx")), producer()
    sender.init_transactions()
    plain.send(topic, b"before")
    plain.flush()
    sender.begin()
    sender.send(topic, b"open")
    sender.flush()
    plain.send(topic, b"after")
    plain.flush()
    assert consumer(committed_only=True).watermarks((topic, 0)) == (0, 1)
    assert values(read_to_end(consumer(committed_only=True), (topic, 0))) == [b"before"]
    assert values(read_to_end(consumer(), (topic, 0))) == [b"before", b"open", b"after"]
    sender.commit()
    assert values(read_to_end(consumer(committed_only=True), (topic, 0))) == [b"before", b"open", b"after"]


def test_an_empty_transaction_does_no_harm(topic: str, producer: Producer, consumer: Consumer) -> None:
    sender = producer(transactional_id=unique("tx"))
    sender.init_transactions()
    sender.begin()
    sender.commit()
    sender.begin()
    sender.abort()
    sender.begin()
    sender.send(topic, b"v")
    sender.commit()
    assert values(read_to_end(consumer(committed_only=True), (topic, 0))) == [b"v"]


@pytest.mark.slow
def test_a_successor_aborts_what_is_open_and_fences(topic: str, producer: Producer, consumer: Consumer) -> None:
    transactional_id = unique("tx")
    zombie = producer(transactional_id=transactional_id)
    zombie.init_transactions()
    zombie.begin()
    zombie.send(topic, b"zombie")
    zombie.flush()
    successor = producer(transactional_id=transactional_id)
    successor.init_transactions()
    with pytest.raises(PeerRefusedError, match=r"(?i)fenced|INVALID_PRODUCER_EPOCH"):
        zombie.commit()
    successor.begin()
    successor.send(topic, b"successor")
    successor.commit()
    assert values(read_to_end(consumer(committed_only=True), (topic, 0))) == [b"successor"]


def test_a_transaction_of_many_records_is_whole(topic: str, producer: Producer, consumer: Consumer) -> None:
    sender = producer(transactional_id=unique("tx"), compression="lz4", linger_ms=5)
    sender.init_transactions()
    sender.begin()
    written = [b"%d" % number * 10 for number in range(3000)]
    for value in written:
        sender.send(topic, value)
    sender.commit()
    assert values(read_to_end(consumer(committed_only=True), (topic, 0))) == written
