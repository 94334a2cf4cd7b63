"""Units of work that change the same row: their records are in the order of their commits."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import Engine, insert, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dualwrite import EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from tests.support.peer_clients.consumers import consume
from tests.support.requests.calls import unique
from tests.support.waiting import PATIENCE_SECONDS, eventually

THREADS, UNITS = 4, 15


class OrderedBase(DeclarativeBase):
    pass


class Account(OrderedBase):
    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    changes: Mapped[int]


class OrderWorld:
    """A DualWrite whose units change one row, and the topic with their records."""

    def __init__(self, engine: Engine, broker: EmbeddedBroker, producer: str) -> None:
        self.topic = unique("topic")
        self.servers = broker.bootstrap_servers
        kafka = {"bootstrap.servers": self.servers, "linger.ms": 0}
        self.dual_write = DualWrite(
            engine,
            kafka,
            application=unique("app"),
            pool_size=THREADS,
            producer=producer,  # type: ignore[arg-type]
        )

    def records(self, isolation: str = "read_committed") -> list[str]:
        return [value.decode() for value in consume(self.servers, self.topic, isolation=isolation)[0]]

    def produce(self, tx: Transaction, value: object) -> None:
        tx.produce(self.topic, str(value), key="account 1", partition=0)


@pytest.fixture(params=["native", "librdkafka"])
def world(engine: Engine, broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[OrderWorld]:
    OrderedBase.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(Account).values(id=1, changes=0))
    made = OrderWorld(engine, broker, request.param)
    with made.dual_write:
        yield made
    OrderedBase.metadata.drop_all(engine)


@pytest.mark.slow_cases
def test_units_that_change_one_row_produce_in_the_order_of_their_commits(world: OrderWorld) -> None:
    def change(_: int) -> None:
        with world.dual_write.transaction() as tx:
            tx.execute(update(Account).values(changes=Account.changes + 1))
            world.produce(tx, tx.scalar(select(Account.changes)))

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(change, range(THREADS * UNITS)))
    assert world.records() == [str(number) for number in range(1, THREADS * UNITS + 1)]


def by_its_session(world: OrderWorld, *, flushes: bool) -> None:
    """Change the row by the ORM, which writes it when the block ends, if it is not flushed before."""
    with world.dual_write.transaction() as tx:
        account = tx.session.get_one(Account, 1)
        account.changes = Account.changes + 1  # type: ignore[assignment]
        if flushes:
            tx.session.flush()
        world.produce(tx, "second")


def run_beside(world: OrderWorld, second: Callable[[], None], until: Callable[[], object]) -> None:
    """Run ``second`` while another unit has changed the row, until ``until`` holds; then end that unit first."""
    with world.dual_write.transaction() as tx:
        tx.execute(update(Account).values(changes=Account.changes + 1))
        thread = threading.Thread(target=second)
        thread.start()
        assert eventually(until, bool)
        world.produce(tx, "first")
    thread.join(PATIENCE_SECONDS)


def run_beside_flushed(world: OrderWorld) -> None:
    """The second unit produces after its flush, which waits for the row."""
    begun = threading.Event()

    def second() -> None:
        begun.set()
        by_its_session(world, flushes=True)

    run_beside(world, second, begun.is_set)


@pytest.mark.slow_cases
def test_a_record_that_is_produced_after_the_flush_comes_after_the_earlier_units(world: OrderWorld) -> None:
    run_beside_flushed(world)
    assert world.records() == ["first", "second"]


@pytest.mark.slow_cases
def test_a_record_that_is_produced_before_the_row_is_locked_may_come_first(world: OrderWorld) -> None:
    """The records are sent before the objects are written: this order is not promised."""
    run_beside_flushed(world)  # both slots are warm then, and know the topic
    sent = partial(by_its_session, world, flushes=False)
    run_beside(world, sent, lambda: world.records("read_uncommitted").count("second") == 2)
    assert world.records()[2:] == ["second", "first"]


@pytest.mark.slow_cases
def test_a_group_that_has_read_everything_seems_to_be_behind_by_the_marker(world: OrderWorld) -> None:
    with world.dual_write.transaction() as tx:
        world.produce(tx, "one")
    config = {"bootstrap.servers": world.servers, "group.id": unique("group"), "enable.auto.commit": False}
    consumer, place = Consumer(config), TopicPartition(world.topic, 0, 0)
    consumer.assign([place])
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.value() == b"one"
    consumer.commit(message=message, asynchronous=False)
    (committed,) = consumer.committed([place], PATIENCE_SECONDS)
    _, end = consumer.get_watermark_offsets(place, PATIENCE_SECONDS, cached=False)
    consumer.close()
    assert end - committed.offset == 1
