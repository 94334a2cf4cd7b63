"""FencedError: the database's word is final, Kafka's is looked into, and a delivery callback's is of something else."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.errors import FencedError
from tests.support.coordinator.event_table import expire_leases, slot_rows
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import in_both, recovered, run_unit, write, write_unit

Make = Callable[..., DualWrite]


def copy_of_init(kafka: FakeKafka) -> None:
    """A copy of the producer's own request that the network delivers late: nobody has taken over."""
    kafka.init_producer_id(keep_prepared_txn=True)


def late_copy_at(step: str, kafka: FakeKafka) -> Callable[[str], None]:
    """An ``on_step`` that lets such a copy arrive right before the first ``step``."""
    seen: list[str] = []

    def observe(name: str) -> None:
        seen.append(name)
        if name == step and seen.count(step) == 1:
            copy_of_init(kafka)

    return observe


@pytest.mark.parametrize("step", ["COMMIT_DATABASE", "COMMIT_KAFKA"])
def test_a_unit_fenced_in_kafka_after_its_commit_is_finished_in_the_background(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, step: str
) -> None:
    dual_write = make_dual_write(on_step=late_copy_at(step, kafka))
    write_unit(dual_write, "one")
    assert recovered(dual_write)
    assert in_both(sqlite_engine, kafka, "one")
    assert dual_write.counters.finished_later == 1
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one", "two")
    assert slot_rows(sqlite_engine)["orders-0"].fencing_token == 1, "the lease was valid all the time"


@pytest.mark.parametrize("step", ["BEGIN_KAFKA", "PREPARE_KAFKA"])
def test_a_unit_fenced_in_kafka_before_its_commit_does_not_affect_the_next(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, step: str
) -> None:
    dual_write = make_dual_write(on_step=late_copy_at(step, kafka))
    with pytest.raises(FencedError) as raised:
        write_unit(dual_write, "one")
    assert raised.value.retriable
    assert recovered(dual_write)
    assert kafka.ongoing is None, "it would hold up every consumer until the next unit of work"
    write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka, "one")
    assert slot_rows(sqlite_engine)["orders-0"].fencing_token == 1


def test_a_fenced_participant_is_not_used_again_although_it_could_abort(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fenced = [FencedError("by a late copy")]

    def observe(name: str) -> None:
        if name == "PREPARE_KAFKA" and fenced:
            raise fenced.pop()

    dual_write = make_dual_write(on_step=observe)
    with pytest.raises(FencedError):
        write_unit(dual_write, "one")
    assert kafka.aborted == ["one"]
    assert kafka.open_participants() == 0
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "two")
    assert kafka.requests.count("init-keep") == 2, "recovery comes before the next unit of work"


def test_a_copy_that_comes_during_recovery_makes_it_begin_again(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    late = [copy_of_init]
    kafka.before_effect = lambda request: late.pop()(kafka) if request == "complete" and late else None
    with pytest.raises(FencedError):
        dual_write.recover()
    write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka, "one")


def test_a_unit_that_the_database_calls_fenced_after_its_commit_is_left_to_the_successor(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    successor = make_dual_write()

    def observe(name: str) -> None:
        if name == "COMMIT_KAFKA":
            expire_leases(sqlite_engine)
            successor.recover()

    earlier = make_dual_write(on_step=observe)
    write_unit(earlier, "one")
    assert recovered(earlier)
    assert in_both(sqlite_engine, kafka, "one")
    assert kafka.requests.count("init-keep") == 2, "the earlier one fenced its successor"


@pytest.mark.parametrize("error", [FencedError("of a producer"), LeaseLostError(Lease("invoices-0", 1))])
@pytest.mark.parametrize("is_caught", [True, False])
def test_a_callbacks_own_fenced_error_does_not_fence_the_slot(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, error: FencedError, is_caught: bool
) -> None:
    def on_delivery(*arguments: Any) -> None:
        raise error

    def produce(tx: Any) -> None:
        try:
            tx.produce("events", "zero", on_delivery=on_delivery)
        except FencedError:
            if not is_caught:
                raise

    dual_write = make_dual_write()
    if is_caught:
        run_unit(dual_write, lambda tx: write(tx, "one"), produce)
        assert kafka.committed == ["one", "zero"]
    else:
        with pytest.raises(FencedError):
            run_unit(dual_write, lambda tx: write(tx, "one"), produce)
        assert in_both(sqlite_engine, kafka)
    write_unit(dual_write, "two")
    assert dual_write.counters.finished_later == 0
    assert slot_rows(sqlite_engine)["orders-0"].fencing_token == 1
