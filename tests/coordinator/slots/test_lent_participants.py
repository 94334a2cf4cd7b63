"""What becomes of a participant that a unit of work or a branch has borrowed, if it cannot be trusted afterwards."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import Producer
from sqlalchemy import Engine

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.coordinator.branch import Branch, Branches
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.lease_transfer import TransferredLeases
from dualwrite.coordinator.steps.observers import no_observer
from dualwrite.coordinator.unit.unit_database import unit_driver
from dualwrite.errors import FencedError, PrepareFailedError
from dualwrite.ids import PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.coordinator.event_table import slot_rows, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka, FakeParticipant
from tests.support.coordinator.searches.unit_search import MappedEvent
from tests.support.coordinator.usual_unit import fail_at, in_both, recovered, run_unit, write, write_unit

Make = Callable[..., DualWrite]


class SpentParticipant(FakeParticipant):
    """As librdkafka after a lost connection: its requests may still be in flight."""

    @property
    def is_reusable(self) -> bool:
        return False


class NamelessParticipant(FakeParticipant):
    """It acknowledges records, and cannot say under which identity."""

    def prepare_transaction(self) -> PreparedTxnState:
        super().prepare_transaction()
        return PreparedTxnState()


class StruckParticipant(FakeParticipant):
    """An interrupt comes as its first transaction has begun, before the caller knows."""

    def begin_transaction(self) -> None:
        super().begin_transaction()
        if len(self.kafka.participants) == 1:
            raise KeyboardInterrupt


class LateParticipant(FakeParticipant):
    """An interrupt comes as the first one is closed."""

    def close(self) -> None:
        is_first = self is self.kafka.participants[0] and not self.closed
        super().close()
        if is_first:
            raise KeyboardInterrupt


class LateAnswer(Producer):
    """librdkafka, if the answer to its first AddPartitionsToTxn comes after the abort has begun: it reports success,
    and leaves the transaction open."""

    def abort_transaction(self, timeout: float) -> None:
        self.flush(timeout)  # until the answers are here: the transaction is open, and no EndTxn follows


def made_as(kind: type[FakeParticipant], kafka: FakeKafka) -> Callable[[object], FakeParticipant]:
    def make(config: object) -> FakeParticipant:
        kafka.participants.append(kind(kafka))
        return kafka.participants[-1]

    return make


def write_branch(dual_write: DualWrite, finish: Callable[[Branch], object] = lambda branch: None) -> PreparedTxnState:
    with Branches(manager_of(dual_write)).branch() as branch:
        branch.produce(OutgoingRecord("events", "branch"))
        prepared = branch.prepare()
        finish(branch)
        return prepared


def write_and_raise(dual_write: DualWrite) -> None:
    """A unit of work that changes its mind."""
    with suppress(KeyError), dual_write.transaction() as tx:
        write(tx, "one")
        raise KeyError


def raising(error: BaseException) -> Callable[[Branch], None]:
    def finish(branch: Branch) -> None:
        raise error

    return finish


def transferring(engine: Engine) -> Callable[[Branch], object]:
    """Sign the lease over to the owner "run 1"."""
    store, leases = SqlDecisionStore(engine), TransferredLeases(engine)

    def sign(lease: Lease) -> Lease:
        with store.transaction(commit=True) as connection:
            return leases.transfer(connection, lease, "run 1", 1000.0)

    return lambda branch: branch.transfer(sign)


def test_a_participant_that_is_not_reusable_serves_one_unit_of_work(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    dual_write = make_dual_write(participant=made_as(SpentParticipant, kafka))
    write_unit(dual_write, "one")
    assert kafka.open_participants() == 0
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "one", "two")
    assert kafka.requests.count("init-keep") == 2, "recovery comes before the next unit of work"


def test_a_participant_that_is_not_reusable_serves_one_branch(make_dual_write: Make, kafka: FakeKafka) -> None:
    dual_write = make_dual_write(participant=made_as(SpentParticipant, kafka))
    write_branch(dual_write)
    assert (kafka.aborted, kafka.open_participants()) == (["branch"], 0)


@pytest.mark.parametrize("writes", [write_and_raise, write_branch])
def test_no_slot_is_given_back_with_a_transaction_that_librdkafka_has_left_open(
    make_dual_write: Make, sqlite_engine: Engine, broker: EmbeddedBroker, writes: Callable[[DualWrite], object]
) -> None:
    """Neither another unit of work nor the next start has to come before it is ended."""
    control = ControlPlane({"bootstrap.servers": broker.bootstrap_servers})
    dual_write = make_dual_write(
        application=f"late-{writes.__name__}",
        participant=lambda config: LibrdkafkaProducer(
            {**config, "bootstrap.servers": broker.bootstrap_servers}, make_producer=LateAnswer
        ),
    )
    writes(dual_write)
    dual_write.close(timeout=60)
    ((name, row),) = slot_rows(sqlite_engine).items()
    described = control.describe_transaction(name)
    control.close()
    assert described is not None
    assert (row.owner, described.state) == ("", "Empty")


def test_a_participant_that_was_found_fenced_in_a_branch_is_not_used_again(
    dual_write: DualWrite, kafka: FakeKafka
) -> None:
    with pytest.raises(FencedError):
        write_branch(dual_write, raising(FencedError("by a late copy")))
    assert (kafka.aborted, kafka.open_participants()) == (["branch"], 0)


def test_a_lost_lease_of_another_slot_does_not_cost_a_branch_its_own(dual_write: DualWrite) -> None:
    with pytest.raises(LeaseLostError):
        write_branch(dual_write, raising(LeaseLostError(Lease("orders-1", 1))))
    assert [slot.transactional_id for slot in manager_of(dual_write).process.pool.slots()] == ["orders-0"]


def test_a_participant_of_a_lost_slot_that_cannot_abort_is_closed(dual_write: DualWrite, kafka: FakeKafka) -> None:
    """Its new owner recovers the slot, so no recovery here closes the participant."""
    fail_at(kafka, "abort")
    with pytest.raises(LeaseLostError):
        write_branch(dual_write, lambda branch: raising(LeaseLostError(branch.lease))(branch))
    assert (kafka.open_participants(), manager_of(dual_write).process.pool.slots()) == (0, [])


def test_an_interrupt_during_the_abort_of_a_branch_reaches_its_caller(dual_write: DualWrite, kafka: FakeKafka) -> None:
    def strike(request: str) -> None:
        if request == "abort":
            kafka.before_effect = lambda request: None
            raise KeyboardInterrupt

    kafka.before_effect = strike
    with pytest.raises(KeyboardInterrupt):
        write_branch(dual_write)
    assert recovered(dual_write)
    assert (kafka.aborted, kafka.ongoing) == (["branch"], None)


def test_a_transferred_branch_leaves_no_participant_and_no_slot(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    write_branch(dual_write, transferring(sqlite_engine))
    assert (kafka.open_participants(), manager_of(dual_write).process.pool.slots()) == (0, [])
    assert slot_rows(sqlite_engine)["orders-0"].owner == "run 1"


def test_a_branch_that_is_interrupted_after_its_transfer_leaves_its_slot_to_recovery(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    """The caller does not learn of the transfer, so no decision includes the branch: it is aborted soon."""
    dual_write = make_dual_write(participant=made_as(LateParticipant, kafka))
    with pytest.raises(KeyboardInterrupt):
        write_branch(dual_write, transferring(sqlite_engine))
    assert manager_of(dual_write).process.pool.slots() == []
    assert dual_write.recover() == {"orders-0": Outcome.ABORTED}
    assert (kafka.aborted, kafka.ongoing, dual_write.outcomes()) == (["branch"], None, [])


def test_a_branch_that_is_interrupted_as_it_begins_leaves_its_participant_to_no_other(
    make_dual_write: Make, kafka: FakeKafka
) -> None:
    """It would refuse to begin each later transaction inside of the one that it has begun."""
    dual_write = make_dual_write(participant=made_as(StruckParticipant, kafka))
    with pytest.raises(KeyboardInterrupt):
        write_branch(dual_write)
    assert kafka.open_participants() == 0
    assert write_branch(dual_write)
    assert (kafka.aborted, kafka.ongoing) == (["branch"], None)


def test_a_unit_whose_transaction_has_no_identity_is_rolled_back(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    """The empty state in the row would let recovery abort what the database has committed."""
    dual_write = make_dual_write(participant=made_as(NamelessParticipant, kafka))
    with pytest.raises(PrepareFailedError, match="without an identity"):
        write_unit(dual_write, "one")
    assert (stored_values(sqlite_engine), kafka.aborted, kafka.ongoing) == ([], ["one"], None)


def test_a_branch_whose_transaction_has_no_identity_is_aborted(make_dual_write: Make, kafka: FakeKafka) -> None:
    dual_write = make_dual_write(participant=made_as(NamelessParticipant, kafka))
    with pytest.raises(PrepareFailedError, match="without an identity"):
        write_branch(dual_write)
    assert (kafka.aborted, kafka.ongoing) == (["branch"], None)


def test_a_participant_that_was_found_fenced_as_it_sent_its_records_is_not_used_again(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    """Sending ahead of the flush is only for speed, but what it finds out counts."""

    def fence(request: str) -> None:
        if request == "send":
            raise FencedError("by a late copy")

    kafka.before_effect = fence
    with pytest.raises(FencedError):
        run_unit(
            dual_write, lambda tx: tx.session.add(MappedEvent("one")), lambda tx: tx.produce("events", value="one")
        )
    assert (kafka.aborted, kafka.open_participants()) == (["one"], 0)
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "two")


def test_a_unit_that_is_released_in_its_middle_gives_no_open_transaction_to_the_next_one(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    """As if an interrupt had come between two steps of its end, and finish() was not called again."""
    manager, user = manager_of(dual_write), object()
    slot = manager.process.pool.acquire(user)
    slot.recover()
    driver = unit_driver(sqlite_engine, manager.store, slot, no_observer)
    driver.begin()
    driver.produce(OutgoingRecord("events", b"one"))
    driver.release()
    manager.process.pool.release(user)
    assert recovered(dual_write)
    assert (kafka.aborted, kafka.ongoing) == (["one"], None)
    write_unit(dual_write, "two")
    assert in_both(sqlite_engine, kafka, "two")
