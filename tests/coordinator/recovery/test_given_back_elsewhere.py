"""A slot that was given back in one Kafka cluster and is taken in another, whose log has a transaction that looks the
same: producer ids, epochs and offsets begin at the same numbers in each cluster.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from sqlalchemy import Engine, update

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.recovery_decision import LEFT_ELSEWHERE, UNCLAIMED, Outcome
from dualwrite.coordinator.sql.tables import UNRECOVERED
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import await_sweeps, expire_leases, ready_engine, slot_rows
from tests.support.forked import ForkedKafkaBroker

pytestmark = pytest.mark.slow_cases("mariadb")

ID, TOPIC = "orders-0", "events"
LOST = (Outcome.HEURISTIC_HAZARD, LEFT_ELSEWHERE)


class Arrival:
    """An application that has come from another cluster. This one has a transaction of the same producer id, epoch and
    offset as the application's last one: it is the same broker, and the row says that it was another.

    :param kind: the producer.
    """

    def __init__(self, engine: Engine, broker: KafkaBroker, kind: Literal["native", "librdkafka"]) -> None:
        self._engine, self._broker, self._kind = engine, broker, kind
        broker.create_topic(TOPIC)

    def dual_write(self, **options: Any) -> DualWrite:
        options = {"pool_size": 1, "producer": self._kind, **options}
        return DualWrite(self._engine, self._broker.client_config, application="orders", **options)

    def die_when(self, is_over: Callable[[list[str]], bool]) -> None:
        """A process that does nothing any more once ``is_over`` is true of the steps that it has begun."""
        die_when(is_over, self.dual_write)
        expire_leases(self._engine)

    def came_from_elsewhere(self) -> None:
        """The slot was last leased for another cluster, and given back there."""
        values = {"cluster_id": "another", "owner": "", "lease_expires_at": None}
        with self._engine.begin() as connection:
            connection.execute(update(table).values(**values))

    def mark(self) -> str | None:
        mark: str | None = slot_rows(self._engine)[ID].outcome
        return mark

    def visible(self) -> list[bytes | None]:
        return [record.value for record in self._broker.read(TOPIC)]


@pytest.fixture(params=["native", "librdkafka"])
def arrival(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Iterator[Arrival]:
    with ForkedKafkaBroker(tmp_path / "broker") as broker:
        yield Arrival(engine, broker, request.param)


def write(dual_write: DualWrite, value: str) -> None:
    with dual_write.transaction() as tx:
        tx.produce(TOPIC, value)


def die_when(is_over: Callable[[list[str]], bool], make: Callable[..., DualWrite]) -> None:
    """A process made by ``make`` that does nothing any more once ``is_over`` is true of the steps that it has begun."""
    seen: list[str] = []

    def observe(step: str) -> None:
        if not (seen and is_over(seen)):
            seen.append(step)
        if is_over(seen):
            raise SystemExit

    dying = make(on_step=observe)
    with pytest.raises(SystemExit):
        write(dying, "dead")
    dying.close(timeout=0)
    await_sweeps()


def on_record(dual_write: DualWrite) -> list[tuple[Outcome, str]]:
    return [(outcome.outcome, outcome.detail) for outcome in dual_write.outcomes()]


def test_a_transaction_that_looks_the_same_is_not_taken_for_the_one_in_the_former_cluster(arrival: Arrival) -> None:
    with arrival.dual_write() as former:
        write(former, "one")
    arrival.came_from_elsewhere()
    with arrival.dual_write() as here:
        write(here, "two")
        assert on_record(here) == [LOST]
        assert here.counters.heuristic == 1
        write(here, "three")
    assert arrival.mark() is None
    with arrival.dual_write() as again:
        write(again, "four")
        assert on_record(again) == [LOST], "once"


def test_an_open_transaction_that_looks_the_same_is_aborted_and_on_record(arrival: Arrival) -> None:
    """The row's state names it, and only another database can have begun it."""
    arrival.die_when(lambda seen: seen[-1] == "COMMIT_KAFKA")
    arrival.came_from_elsewhere()
    with arrival.dual_write() as here:
        write(here, "two")
        assert on_record(here) == [(Outcome.HEURISTIC_HAZARD, UNCLAIMED), LOST], "two units that are called the same"
    assert arrival.visible() == [b"two"]


@pytest.mark.parametrize(
    ("step", "times"),
    [("RECOVER_LOCK", 1), ("RECOVER_FENCE_KAFKA", 1), ("RECOVER_RECORD", 1), ("RECOVER_LOCK", 2), ("RECOVER_INIT", 1)],
)
def test_a_crash_before_or_after_the_record_hides_nothing(arrival: Arrival, step: str, times: int) -> None:
    with arrival.dual_write() as former:
        write(former, "one")
    arrival.came_from_elsewhere()
    arrival.die_when(lambda seen: seen.count(step) == times)
    is_recorded = (step, times) in (("RECOVER_LOCK", 2), ("RECOVER_INIT", 1))
    assert arrival.mark() == (None if is_recorded else UNRECOVERED)
    with arrival.dual_write() as here:
        write(here, "two")
        assert on_record(here) == [LOST]


def test_recover_puts_it_on_record(arrival: Arrival) -> None:
    with arrival.dual_write() as former:
        write(former, "one")
    arrival.came_from_elsewhere()
    with arrival.dual_write() as here:
        assert here.recover() == {ID: Outcome.HEURISTIC_HAZARD}
        assert on_record(here) == [LOST]
        assert here.recover() == {}, "and the state is not in the row any more"


def test_a_slot_without_a_unit_of_work_goes_on_in_the_other_cluster(arrival: Arrival) -> None:
    with arrival.dual_write() as former, suppress(ZeroDivisionError), former.transaction() as tx:
        tx.produce(TOPIC, "rolled back")
        raise ZeroDivisionError
    arrival.came_from_elsewhere()
    with arrival.dual_write() as here:
        write(here, "two")
        assert on_record(here) == []


def test_a_slot_that_was_given_back_in_one_cluster_is_taken_in_another(engine: Engine, tmp_path: Path) -> None:
    brokers = [ForkedKafkaBroker(tmp_path / name) for name in ("former", "here", "third")]
    with brokers[0], brokers[1], brokers[2]:
        found = []
        for broker in brokers:
            broker.create_topic(TOPIC)
        for broker in [*brokers, brokers[0]]:
            with DualWrite(engine, broker.client_config, application="orders", pool_size=1) as there:
                write(there, "one")
                found.append(on_record(there))
        assert found == [[], [LOST], [LOST] * 2, [LOST] * 3], "one for each change"
        assert [len(broker.read(TOPIC)) for broker in brokers] == [2, 1, 1]


def test_a_unit_of_a_former_cluster_on_record_does_not_hide_one_of_the_same_name_here(
    engine: Engine, tmp_path: Path
) -> None:
    """Another database has used the third cluster, and its first transaction there is called as this one's first."""
    brokers = [ForkedKafkaBroker(tmp_path / name) for name in ("former", "here", "third")]

    def dual_write(engine: Engine, broker: KafkaBroker, **options: Any) -> DualWrite:
        return DualWrite(engine, broker.client_config, application="orders", pool_size=1, **options)

    other_engine = ready_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with brokers[0], brokers[1], brokers[2]:
        for broker in brokers:
            broker.create_topic(TOPIC)
        with dual_write(engine, brokers[0]) as former:
            write(former, "one")
        with dual_write(engine, brokers[1]) as here:
            here.recover()
            assert on_record(here) == [LOST]
        die_when(lambda seen: seen[-1] == "COMMIT_KAFKA", partial(dual_write, other_engine, brokers[2]))
        with dual_write(engine, brokers[2]) as third:
            write(third, "two")
            assert on_record(third) == [LOST, (Outcome.HEURISTIC_HAZARD, UNCLAIMED)]
            assert len({outcome.state for outcome in third.outcomes()}) == 1, "two units that are called the same"
    other_engine.dispose()
