"""Branches: transactions that many processes prepare and one decides, over the fake Kafka and the bundled broker."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, insert, update

from dualwrite.coordinator.branch import Branches
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.lease import Lease, LeaseContradictedError, LeaseLostError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.lease_transfer import Decided, TransferredLeases
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import FencedError, InvalidTransactionStateError, KafkaUnavailableError, NoFreeSlotError
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.event_table import CONFIG, await_sweeps, events, expire_leases, slot_rows, stored_values
from tests.support.coordinator.fake_kafka import FakeCluster, Fault
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_helpers import create_topic, visible

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")

LONG = 1000.0
Make = Callable[..., DualWrite]


def branches_of(dual_write: DualWrite) -> Branches:
    return Branches(manager_of(dual_write))


class Cause:
    """The driver to which branches are transferred, as far as the coordinator is concerned."""

    def __init__(self, engine: Engine) -> None:
        self.store = SqlDecisionStore(engine)
        self.leases = TransferredLeases(engine)

    def sign(self, lease: Lease) -> Lease:
        with self.store.transaction(commit=True) as connection:
            return self.leases.transfer(connection, lease, "run 1", LONG)

    def decide(self, owner: str, decided: list[Decided], value: str) -> list[str]:
        """Commit ``decided``, with a row; no other transferred lease."""
        with self.store.transaction(commit=True) as connection:
            connection.execute(insert(events).values(value=value))
            self.leases.store_all(connection, decided, owner, LONG)
            others = self.leases.transfer_back(connection, "run 1", owner, LONG)
        return [lease.transactional_id for lease, _ in decided] + others


def write(process: DualWrite, sign: Callable[[Lease], Lease], value: str, prepared: Any = lambda: None) -> Decided:
    """A task: a branch with one record, transferred by ``sign``, once ``prepared`` was called."""
    with branches_of(process).branch() as branch:
        branch.produce(OutgoingRecord("events", value))
        state = branch.prepare()
        prepared()
        return branch.transfer(sign), state


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


def test_decided_branches_are_committed_and_all_other_transferred_ones_are_aborted(
    engine: Engine, make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    task, driver = make(), make()
    winners = [write(task, cause.sign, "one"), write(task, cause.sign, "two")]
    write(task, cause.sign, "loser")
    assert cluster.ongoing == ["a-0", "a-1", "a-2"]
    names = cause.decide(branches_of(driver).owner, winners, "row")
    found, errors = manager_of(driver).sweep(names)
    assert (found, errors) == (
        {"a-0": Outcome.COMMITTED, "a-1": Outcome.COMMITTED, "a-2": Outcome.ABORTED},
        [],
    )
    assert (cluster.committed, cluster.ongoing, stored_values(engine)) == (["one", "two"], [], ["row"])
    assert {row.owner for row in slot_rows(engine).values()} == {""}, "given back"


def test_a_driver_completes_what_it_has_decided_and_finds_nothing_the_second_time(
    make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    task, driver = make(), branches_of(make())
    assert driver.sweep_left() == ({}, [])
    cause.decide(driver.owner, [write(task, cause.sign, "one")], "row")
    assert driver.sweep_left() == ({"a-0": Outcome.COMMITTED}, [])
    assert (cluster.committed, driver.sweep_left()) == (["one"], ({}, []))


def test_no_process_recovers_a_transferred_branch_before_its_lease_expires(
    make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    task = make()
    write(task, cause.sign, "one")
    manager_of(task).process.pool.beat()
    await_sweeps()
    with task.transaction() as tx:
        tx.produce("events", value="unit")
    task.close()
    make().recover()
    assert cluster.ongoing == ["a-0"]
    assert cluster.committed == ["unit"]


def test_any_process_aborts_a_transferred_branch_once_its_lease_has_expired(
    engine: Engine, make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    decided = write(make(), cause.sign, "one")
    expire_leases(engine)
    make().recover()
    assert (cluster.committed, cluster.ongoing) == ([], [])
    with pytest.raises(LeaseLostError):
        cause.decide("driver", [decided], "row")
    assert stored_values(engine) == []


def test_any_process_completes_a_decision_after_its_driver_died(
    engine: Engine, make: Make, cluster: FakeCluster, cause: Cause
) -> None:
    task = make()
    cause.decide("dead driver", [write(task, cause.sign, "one")], "row")
    expire_leases(engine)
    manager_of(task).process.pool.beat()
    await_sweeps()
    assert (cluster.committed, cluster.ongoing, stored_values(engine)) == (["one"], [], ["row"])


def test_a_branch_that_ends_early_is_aborted_and_its_slot_is_used_again(make: Make, cluster: FakeCluster) -> None:
    task = make()
    for end in (ValueError, None):
        try:
            with branches_of(task).branch() as branch:
                branch.produce(OutgoingRecord("events", "never"))
                if end is not None:
                    raise end
                branch.prepare()
        except ValueError:
            pass
        assert cluster.ongoing == []
    assert cluster.of("a-0").requests.count("abort") == 2
    assert list(cluster.ids) == ["a-0"]
    assert task.usage.idle == 1


def test_produce_many_falls_back_to_single_records(make: Make, cluster: FakeCluster, cause: Cause) -> None:
    with branches_of(make()).branch() as branch:
        branch.produce_many([OutgoingRecord("events", f"{number}", b"k", number) for number in range(3)])
        branch.produce_many(iter([OutgoingRecord("events", "last")]))
        branch.prepare()
        branch.transfer(cause.sign)
    assert [request for request in cluster.of("a-0").requests if request in ("begin", "produce")] == [
        "begin",
        *["produce"] * 4,
    ]
    assert cluster.of("a-0").ongoing is not None
    assert cluster.of("a-0").ongoing.values == ["0", "1", "2", "last"]


def test_an_empty_branch_sends_no_request(make: Make, cluster: FakeCluster, cause: Cause) -> None:
    with branches_of(make()).branch() as branch:
        with pytest.raises(InvalidTransactionStateError, match="nothing was produced"):
            branch.prepare()
        with pytest.raises(InvalidTransactionStateError, match="nothing is prepared"):
            branch.transfer(cause.sign)
    assert set(cluster.of("a-0").requests) == {"init-keep", "complete", "init"}


def test_an_abort_that_fails_is_finished_in_the_background(make: Make, cluster: FakeCluster) -> None:
    task = make()
    kafka = cluster.of("a-0")
    with branches_of(task).branch() as branch:
        branch.produce(OutgoingRecord("events", "never"))
        kafka.fault = lambda request: Fault.AFTER if request == "abort" else Fault.NONE
    assert task.wait_idle(20)
    assert kafka.ongoing is None
    assert kafka.requests[-3:] == ["init-keep", "complete", "init"]


def test_a_database_that_went_back_before_the_transfer_is_on_record(
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


def test_a_transfer_that_fails_leaves_the_slot_to_recovery(
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


def test_a_fenced_task_transfers_nothing(engine: Engine, make: Make, cluster: FakeCluster, cause: Cause) -> None:
    task, heir = make(), make()

    def pause() -> None:
        expire_leases(engine)
        heir.recover()

    with pytest.raises(FencedError):
        write(task, cause.sign, "never", pause)
    assert (cluster.committed, cluster.ongoing) == ([], [])
    assert "run 1" not in {row.owner for row in slot_rows(engine).values()}


def test_a_slot_whose_lease_was_lost_is_dropped_after_the_branch(
    engine: Engine, make: Make, cluster: FakeCluster
) -> None:
    task, heir = make(), make()
    with branches_of(task).branch() as branch:
        branch.produce(OutgoingRecord("events", "never"))
        expire_leases(engine)
        heir.recover()
        manager_of(task).process.pool.beat()
    assert manager_of(task).process.pool.slots() == []
    assert cluster.ongoing == []


def test_a_transferred_slot_is_not_leased_by_others(make: Make, cause: Cause) -> None:
    task = make(pool_size=2, acquire_timeout=0.1)
    write(task, cause.sign, "one")
    write(task, cause.sign, "two")
    with pytest.raises(NoFreeSlotError, match="a-0 by run, whose lease"), branches_of(task).branch():
        pass


def test_an_error_of_kafka_ends_the_branch(make: Make, cluster: FakeCluster, cause: Cause) -> None:
    cluster.of("a-0").fault = lambda request: Fault.BEFORE if request == "prepare" else Fault.NONE
    with pytest.raises(KafkaUnavailableError):
        write(make(), cause.sign, "never")
    assert (cluster.committed, cluster.ongoing) == ([], [])


def test_a_branch_cannot_begin_inside_a_unit_of_work(make: Make) -> None:
    task = make()
    with (
        task.transaction(),
        pytest.raises(InvalidTransactionStateError, match="a unit of work is open"),
        branches_of(task).branch(),
    ):
        pass


def test_every_step_is_observed_and_may_fail(make: Make, cluster: FakeCluster, cause: Cause) -> None:
    steps: list[str] = []
    write(make(on_step=steps.append), cause.sign, "one")
    assert steps[-3:] == ["BEGIN_KAFKA", "PREPARE_KAFKA", "TRANSFER_LEASE"]

    def fail_at(step: str) -> Callable[[str], None]:
        def observe(name: str) -> None:
            if name == step:
                raise RuntimeError(step)

        return observe

    for step in ("BEGIN_KAFKA", "PREPARE_KAFKA", "TRANSFER_LEASE"):
        with pytest.raises(RuntimeError, match=step):
            write(make(on_step=fail_at(step)), cause.sign, "never")
    assert cluster.ongoing == ["a-0"], "of the first one"


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["native", "librdkafka"])
def test_eight_branches_of_several_processes_commit_together_on_a_broker(
    engine: Engine, cause: Cause, tmp_path: Path, producer: Any
) -> None:
    with ForkedBroker(tmp_path / "broker") as broker:
        create_topic(broker.bootstrap_servers, "events", 3)
        config = {"bootstrap.servers": broker.bootstrap_servers}

        def process() -> DualWrite:
            return DualWrite(engine, config, application="a", pool_size=32, producer=producer)

        with process() as one, process() as two, process() as driver:
            with ThreadPoolExecutor(4) as threads:
                writes = [threads.submit(write, (one, two)[number % 2], cause.sign, str(number)) for number in range(8)]
            decided = [write_one.result(60) for write_one in writes]
            lost = write(one, cause.sign, "loser")
            assert visible(broker.bootstrap_servers, "events") == []
            found, errors = manager_of(driver).sweep(cause.decide(branches_of(driver).owner, decided, "row"))
        assert errors == []
        assert found.pop(lost[0].transactional_id) is Outcome.ABORTED
        assert set(found.values()) == {Outcome.COMMITTED}
        assert sorted(visible(broker.bootstrap_servers, "events")) == [b"%d" % number for number in range(8)]
    assert stored_values(engine) == ["row"]
