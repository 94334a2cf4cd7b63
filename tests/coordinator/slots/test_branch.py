"""Parts: transactions that many prepare and one decides, over the fake Kafka and over the bundled broker."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, insert, update

from dualwrite import EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.ports import Lease, LeaseLostError, Outcome
from dualwrite.coordinator.rules.lease import LeaseContradictedError
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.lease_transfer import Decided, HandedLeases
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import FencedError, InvalidTransactionStateError, KafkaUnavailableError, NoFreeSlotError
from tests.broker.kafka_helpers import create_topic, visible
from tests.support.coordinator.event_table import CONFIG, await_sweeps, events, expire_leases, slot_rows, stored_values
from tests.support.coordinator.fake_kafka import FakeCluster, Fault

LONG = 1000.0
Make = Callable[..., DualWrite]


class Cause:
    """What parts are handed over to: a driver, as far as the coordinator is concerned."""

    def __init__(self, engine: Engine) -> None:
        self.store = SqlDecisionStore(engine)
        self.handed = HandedLeases(engine)

    def sign(self, lease: Lease) -> Lease:
        with self.store.transaction(commit=True) as connection:
            return self.handed.hand_over(connection, lease, "run 1", LONG)

    def decide(self, owner: str, decided: list[Decided], value: str) -> list[str]:
        """Commit ``decided``, with a row; nothing else that was handed over."""
        with self.store.transaction(commit=True) as connection:
            connection.execute(insert(events).values(value=value))
            self.handed.store_all(connection, decided, owner, LONG)
            others = self.handed.take_back(connection, "run 1", owner, LONG)
        return [lease.transactional_id for lease, _ in decided] + others


def write(process: DualWrite, sign: Callable[[Lease], Lease], value: str, prepared: Any = lambda: None) -> Decided:
    """A task: a part with one record, handed over by ``sign``, once ``prepared`` was called."""
    with process.part() as part:
        part.produce("events", value=value)
        state = part.prepare()
        prepared()
        return part.hand_over(sign), state


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def cause(engine: Engine) -> Cause:
    return Cause(engine)


@pytest.fixture
def make(engine: Engine, cluster: FakeCluster) -> Iterator[Make]:
    made: list[DualWrite] = []

    def process(**options: Any) -> DualWrite:
        options = {"application": "a", "pool_size": 9, "participant": cluster.participant, **options}
        dual_write = DualWrite(engine, CONFIG, **options)
        made.append(dual_write)
        return dual_write

    yield process
    for dual_write in made:
        dual_write.close(timeout=0)
    await_sweeps()


def test_what_is_decided_is_committed_and_all_else_that_was_handed_over_is_aborted(
    engine: Engine, make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    task, driver = make(), make()
    winners = [write(task, cause.sign, "one"), write(task, cause.sign, "two")]
    write(task, cause.sign, "loser")
    assert cluster.ongoing == ["a-0", "a-1", "a-2"]
    names = cause.decide(driver.owner, winners, "row")
    found, errors = driver.sweep(names)
    assert (found, errors) == (
        {"a-0": Outcome.COMMITTED, "a-1": Outcome.COMMITTED, "a-2": Outcome.ABORTED},
        [],
    )
    assert (cluster.committed, cluster.ongoing, stored_values(engine)) == (["one", "two"], [], ["row"])
    assert {row.owner for row in slot_rows(engine).values()} == {""}, "given back"


def test_nobody_recovers_what_was_handed_over_before_its_time(make: Make, cluster: FakeCluster, cause: Cause) -> None:
    task = make()
    write(task, cause.sign, "one")
    task._pool.beat()
    await_sweeps()
    with task.transaction() as tx:
        tx.produce("events", value="unit")
    task.close()
    make().recover()
    assert cluster.ongoing == ["a-0"]
    assert cluster.committed == ["unit"]


def test_what_was_handed_over_is_aborted_by_whoever_looks_once_its_time_is_over(
    engine: Engine, make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    decided = write(make(), cause.sign, "one")
    expire_leases(engine)
    make().recover()
    assert (cluster.committed, cluster.ongoing) == ([], [])
    with pytest.raises(LeaseLostError):
        cause.decide("driver", [decided], "row")
    assert stored_values(engine) == []


def test_a_decision_is_completed_by_anybody_if_who_took_it_dies(
    engine: Engine, make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    task = make()
    cause.decide("dead driver", [write(task, cause.sign, "one")], "row")
    expire_leases(engine)
    task._pool.beat()
    await_sweeps()
    assert (cluster.committed, cluster.ongoing, stored_values(engine)) == (["one"], [], ["row"])


def test_a_part_that_ends_early_is_aborted_and_its_slot_is_used_again(make: Make, cluster: FakeCluster) -> None:
    task = make()
    for end in (ValueError, None):
        try:
            with task.part() as part:
                part.produce("events", value="never")
                if end is not None:
                    raise end
                part.prepare()
        except ValueError:
            pass
        assert cluster.ongoing == []
    assert cluster.of("a-0").requests.count("abort") == 2
    assert list(cluster.ids) == ["a-0"]
    assert task.usage.idle == 1


def test_many_records_at_once_are_produced_one_by_one_by_a_participant_that_knows_no_better(
    make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    with make().part() as part:
        part.produce_many("events", [(f"{number}", b"k", number, [("h", b"v")]) for number in range(3)])
        part.produce_many("events", iter([("last", None, -1, None)]))
        part.prepare()
        part.hand_over(cause.sign)
    assert [each for each in cluster.of("a-0").requests if each in ("begin", "produce")] == ["begin", *["produce"] * 4]
    assert cluster.of("a-0").ongoing is not None
    assert cluster.of("a-0").ongoing.values == ["0", "1", "2", "last"]


def test_a_part_with_nothing_in_it_says_nothing_to_kafka(make: Make, cluster: FakeCluster, cause: Cause) -> None:
    with make().part() as part:
        with pytest.raises(InvalidTransactionStateError, match="nothing was produced"):
            part.prepare()
        with pytest.raises(InvalidTransactionStateError, match="nothing is prepared"):
            part.hand_over(cause.sign)
    assert set(cluster.of("a-0").requests) == {"init-keep", "complete", "init"}


def test_an_abort_that_fails_is_finished_in_the_background(make: Make, cluster: FakeCluster) -> None:
    task = make()
    kafka = cluster.of("a-0")
    with task.part() as part:
        part.produce("events", value="never")
        kafka.fault = lambda request: Fault.AFTER if request == "abort" else Fault.NONE
    (slot,) = task._pool._snapshot()
    assert slot._background.close(20)
    assert kafka.ongoing is None
    assert kafka.requests[-3:] == ["init-keep", "complete", "init"]


def test_a_database_that_went_back_before_the_handover_is_on_record(
    engine: Engine, make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    """The row is older than when the slot was leased; the token is the same."""
    task = make()
    with task.transaction() as tx:
        tx.execute(insert(events).values(value="row"))
        tx.produce("events", value="row")
    state = slot_rows(engine)["a-0"].prepared_txn_state

    def go_back() -> None:
        with engine.begin() as connection:
            connection.execute(update(table).values(prepared_txn_state="", anchor=None, first_record=None))

    with pytest.raises(LeaseContradictedError):
        write(task, cause.sign, "never", go_back)
    (found,) = task.outcomes()
    assert (found.transactional_id, found.outcome) == ("a-0", Outcome.HEURISTIC_COMMIT)
    assert found.state.startswith(state)
    assert task.counters.heuristic == 1
    task.recover()
    assert cluster.committed == ["row"]
    assert cluster.ongoing == []


def test_a_handover_that_fails_leaves_the_slot_to_recovery_whatever_became_of_it(
    engine: Engine, make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    def sign_and_lose_the_answer(lease: Lease) -> Lease:
        cause.sign(lease)
        raise ConnectionError

    task = make()
    with pytest.raises(ConnectionError):
        write(task, sign_and_lose_the_answer, "never")
    assert task.usage.used == task.usage.idle == task.usage.pending == 0
    assert cluster.ongoing == ["a-0"]
    assert slot_rows(engine)["a-0"].owner == "run 1"
    assert make().recover()["a-0"] is Outcome.ABORTED
    assert cluster.of("a-0").open_participants() == 1, "of the slot that recover() makes ready"


def test_a_task_that_was_taken_over_hands_nothing_over(
    engine: Engine, make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    task, heir = make(), make()

    def pause() -> None:
        expire_leases(engine)
        heir.recover()

    with pytest.raises(FencedError):
        write(task, cause.sign, "never", pause)
    assert (cluster.committed, cluster.ongoing) == ([], [])
    assert "run 1" not in {row.owner for row in slot_rows(engine).values()}


def test_a_slot_that_the_heartbeat_finds_lost_is_dropped_after_the_part(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    task, heir = make(), make()
    with task.part() as part:
        part.produce("events", value="never")
        expire_leases(engine)
        heir.recover()
        task._pool.beat()
    assert task._pool._snapshot() == []
    assert cluster.ongoing == []


def test_slots_that_were_handed_over_are_not_had_by_others(make: Make, cause: Cause) -> None:
    task = make(pool_size=2, acquire_timeout=0.1)
    write(task, cause.sign, "one")
    write(task, cause.sign, "two")
    with pytest.raises(NoFreeSlotError, match="a-0 by run, whose lease"), task.part():
        pass


def test_an_error_of_kafkas_ends_the_part(make: Make, cluster: FakeCluster, cause: Cause) -> None:
    cluster.of("a-0").fault = lambda request: Fault.BEFORE if request == "prepare" else Fault.NONE
    with pytest.raises(KafkaUnavailableError):
        write(make(), cause.sign, "never")
    assert (cluster.committed, cluster.ongoing) == ([], [])


def test_a_part_is_not_begun_inside_a_unit_of_work(make: Make) -> None:
    task = make()
    with (
        task.transaction(),
        pytest.raises(InvalidTransactionStateError, match="a unit of work is open"),
        task.part(),
    ):
        pass


def test_every_step_is_told_of_and_may_fail(make: Make, cluster: FakeCluster, cause: Cause) -> None:
    steps: list[str] = []
    write(make(on_step=steps.append), cause.sign, "one")
    assert steps[-3:] == ["BEGIN_KAFKA", "PREPARE_KAFKA", "HAND_OVER"]

    def fail_at(step: str) -> Callable[[str], None]:
        def observe(name: str) -> None:
            if name == step:
                raise RuntimeError(step)

        return observe

    for step in ("BEGIN_KAFKA", "PREPARE_KAFKA", "HAND_OVER"):
        with pytest.raises(RuntimeError, match=step):
            write(make(on_step=fail_at(step)), cause.sign, "never")
    assert cluster.ongoing == ["a-0"], "of the first one"


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_eight_parts_of_several_processes_are_one_act_on_a_broker(
    engine: Engine, cause: Cause, tmp_path: Path, producer: Any
) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        create_topic(broker.bootstrap_servers, "events", 3)
        config = {"bootstrap.servers": broker.bootstrap_servers}

        def process() -> DualWrite:
            return DualWrite(engine, config, application="a", pool_size=32, producer=producer)

        with process() as one, process() as two, process() as driver:
            with ThreadPoolExecutor(4) as threads:
                parts = [threads.submit(write, (one, two)[number % 2], cause.sign, str(number)) for number in range(8)]
            decided = [part.result(60) for part in parts]
            lost = write(one, cause.sign, "loser")
            assert visible(broker.bootstrap_servers, "events") == []
            found, errors = driver.sweep(cause.decide(driver.owner, decided, "row"))
        assert errors == []
        assert found.pop(lost[0].transactional_id) is Outcome.ABORTED
        assert set(found.values()) == {Outcome.COMMITTED}
        assert sorted(visible(broker.bootstrap_servers, "events")) == [b"%d" % number for number in range(8)]
    assert stored_values(engine) == ["row"]
