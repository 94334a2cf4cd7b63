"""``dualwrite transactions terminate``: aborts in any case, and reports if that tears a unit of work."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sqlalchemy import create_engine, update

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.protocol.requests import InitializedProducer
from dualwrite.coordinator.rules.lease import Lease, LeaseLostError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import ENDED, Candidate, SlotStatus
from dualwrite.coordinator.slots.lease_registry import LeaseRegistry
from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import (
    DatabaseBusyError,
    InputError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
)
from dualwrite.ids import PreparedTxnState
from dualwrite.operations import terminating
from dualwrite.operations.heuristics import HeuristicRecords
from dualwrite.operations.rows import state_rows
from dualwrite.operations.terminating import terminate
from tests.support.coordinator.event_table import TakingStore, expire_leases
from tests.support.forked import ForkedKafkaBroker
from tests.support.operations.places import OperationsSite

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


def test_without_yes_it_is_refused_and_nothing_is_done(any_place: OperationsSite) -> None:
    any_place.leave("one")
    before = any_place.rows(), any_place.described()
    result = any_place.run("transactions", "terminate", any_place.slot())
    assert (result.code, result.err) == (2, "dualwrite: nothing was done: terminate needs --yes\n")
    assert result.out.startswith(f"{any_place.slot()}: would ABORT ")
    assert "THE DATABASE HAS COMMITTED IT" in result.out
    assert result.out.endswith("`resolve` would commit it instead.\n")
    assert (any_place.rows(), any_place.described()) == before
    assert any_place.outcomes() == []


def test_terminating_a_committed_transaction_is_a_heuristic_abort(any_place: OperationsSite) -> None:
    any_place.leave("one")
    described = any_place.described()
    assert described is not None
    result = any_place.run("transactions", "terminate", any_place.slot(), "--yes")
    assert (result.code, result.err) == (1, "")
    assert f"aborted {described.producer}, in 1 partition. THE DATABASE HAS COMMITTED IT" in result.out
    assert "resolve" not in result.out, "there is nothing left to resolve"
    assert (any_place.visible(), any_place.stored()) == ([], ["one"])
    assert any_place.outcomes() == [(any_place.slot(), str(described.producer), Outcome.HEURISTIC_ABORT.value)]
    ended = any_place.described()
    assert ended is not None
    assert ended.state == "Empty"
    any_place.write("two")  # the slot is free and usable
    assert any_place.visible() == ["two"]
    assert len(any_place.outcomes()) == 1, "recovery has found it as well"


def test_the_slot_of_a_terminated_transaction_is_given_back(site: OperationsSite) -> None:
    """A slot that is only expired would be left behind: recovery would look for its transaction."""
    site.leave("one")
    terminate(site.engine, site.broker.client_config, site.slot())
    assert state_rows(site.engine)[site.slot()].status is SlotStatus.FREE


def test_the_operators_name_is_in_the_record(site: OperationsSite) -> None:
    for number, words in enumerate(((), ("--by", "Ann O'Hara"))):
        site.leave(f"value {number}")
        result = site.run("transactions", "terminate", site.slot(), "--yes", *words)
        assert result.code == 1
        (outcome,) = outcomes(site.engine)[number:]
        assert outcome.detail.startswith(f"{words[1] if words else 'an operator'} terminated it in Kafka: ")


@pytest.mark.parametrize("by", ["", " ", "a\nb", "x" * 256], ids=["empty", "blank", "two lines", "long"])
def test_what_is_no_name_is_refused_before_anything_is_done(site: OperationsSite, by: str) -> None:
    site.leave("one")
    before = site.rows(), site.described()
    for confirmation in ((), ("--yes",)):
        result = site.run("transactions", "terminate", site.slot(), *confirmation, "--by", by)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("dualwrite: terminated by ")
    with pytest.raises(InputError, match=r"^terminated by "):
        terminate(site.engine, site.broker.client_config, site.slot(), by=by)
    assert (site.rows(), site.described(), site.outcomes()) == (*before, [])


def test_json_tells_whether_the_decision_is_contradicted(site: OperationsSite) -> None:
    site.leave("one")
    words = ("transactions", "terminate", site.slot(), "--json")
    planned = site.run(*words)
    assert (planned.code, planned.err) == (2, "dualwrite: nothing was done: terminate needs --yes\n")
    shown = planned.json()
    assert (shown["dry_run"], shown["contradicts_decision"]) == (True, True)
    assert shown["transaction"]["transactional_id"] == site.slot()
    assert "THE DATABASE HAS COMMITTED IT" in shown["meaning"]
    unknown = site.run(*words, "--no-db", db=False).json()
    assert (unknown["contradicts_decision"], unknown["transaction"]["database"]) == (None, None)
    done = site.run(*words, "--yes")
    assert (done.code, done.err) == (1, "")
    assert done.json() == {**shown, "dry_run": False, "transaction": done.json()["transaction"]}
    assert done.json()["transaction"]["kafka"]["producer"] == shown["transaction"]["kafka"]["producer"]
    assert site.visible() == []


def test_a_cluster_without_two_phase_commit_terminates_a_transaction_too(tmp_path: Path) -> None:
    with ForkedKafkaBroker(tmp_path, config={"transaction.two.phase.commit.enable": "false"}) as broker:
        producer = Producer({**broker.client_config, "transactional.id": "lost"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(broker.create_topic(), b"one")
        assert producer.flush(20) == 0
        terminate(None, broker.client_config, "lost")
        control = ControlPlane(broker.client_config)
        described = control.describe_transaction("lost")
        control.close()
        assert described is not None
        assert described.state == "Empty"


def test_terminating_an_undecided_transaction_does_what_recovery_would_do(site: OperationsSite) -> None:
    site.leave("one", step="COMMIT_DATABASE")
    result = site.run("transactions", "terminate", site.slot(), "--yes")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("The database does not ask for its commit: recovery would abort it, too.\n")
    assert (site.visible(), site.stored(), site.outcomes()) == ([], [], [])


def test_an_owner_that_may_be_alive_is_not_robbed(site: OperationsSite) -> None:
    site.leave("one", silent=False)
    before = site.rows(), site.described()
    for yes in ([], ["--yes"]):
        result = site.run("transactions", "terminate", site.slot(), *yes)
        assert (result.code, result.out) == (2, "")
        assert "has it, and may be alive" in result.err
    assert (site.rows(), site.described()) == before


def test_without_the_database_the_decision_is_unknown(site: OperationsSite) -> None:
    site.leave("one")
    asked = site.run("transactions", "terminate", site.slot(), "--no-db", db=False)
    assert asked.code == 2
    assert "Its database's decision is unknown" in asked.out
    result = site.run("transactions", "terminate", site.slot(), "--no-db", "--yes", db=False)
    assert (result.code, result.err) == (0, "")
    assert site.visible() == []


def test_a_transaction_that_no_row_names_is_terminated_with_a_warning(site: OperationsSite) -> None:
    site.leave("one")
    with site.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM kafka_transaction_state")
    result = site.run("transactions", "terminate", site.slot(), "--yes")
    assert result.code == 0
    assert "No row of this database names it" in result.out
    described = site.described()
    assert described is not None
    assert described.state == "Empty"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nobody-0", "--yes"), "nobody-0: no such transactional id"),
        (("--yes",), "the following arguments are required: ID"),
        (("a-0", "--no-db"), "argument --"),
    ],
)
def test_an_error_is_one_line(site: OperationsSite, words: tuple[str, ...], line: str) -> None:
    result = site.run("transactions", "terminate", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"dualwrite: {line}")
    assert result.err.count("\n") == 1


def test_the_database_or_its_loss_must_be_named(site: OperationsSite) -> None:
    result = site.run("transactions", "terminate", "a-0", db=False)
    assert result.code == 2
    assert result.err.startswith("dualwrite: one of the arguments --db --no-db is required")


def test_terminate_fails_if_no_transaction_is_open(site: OperationsSite) -> None:
    site.write("one")
    result = site.run("transactions", "terminate", site.slot(), "--yes")
    assert (result.code, result.out) == (2, "")
    assert "there is nothing to terminate: Kafka's state of it is CompleteCommit" in result.err


def failing(error: BaseException) -> object:
    def init_producer_id(self: ControlPlane, transactional_id: str, **flags: object) -> InitializedProducer:
        raise error

    return init_producer_id


def test_a_refusal_of_kafkas_leaves_no_heuristic_outcome(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.leave("one")
    refused = KafkaRefusedError("InitProducerId", 53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
    with monkeypatch.context() as patch:
        patch.setattr(ControlPlane, "init_producer_id", failing(refused))
        with pytest.raises(KafkaRefusedError):
            terminate(site.engine, site.broker.client_config, site.slot())
    assert site.outcomes() == []
    assert site.run("recover", "--application", site.application).code == 0
    assert site.visible() == ["one"]


@pytest.mark.parametrize("error", [KafkaUnavailableError("no answer"), KeyboardInterrupt()])
def test_a_transaction_on_record_as_aborted_is_never_committed(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """An operator produces the lost records on record again: there must not be two of each."""
    site.leave("one")
    with monkeypatch.context() as patch:
        patch.setattr(ControlPlane, "init_producer_id", failing(error))
        with pytest.raises(type(error)) as caught:
            terminate(site.engine, site.broker.client_config, site.slot())
    assert len(site.outcomes()) == 1
    said = str(caught.value) or caplog.text
    assert "whether Kafka has aborted it is not known, and if it has not, recovery aborts it" in said
    assert "on record" in said, "else it would seem that nothing was done"
    assert site.run("recover", "--application", site.application).code == 0
    assert (site.visible(), site.stored(), len(site.outcomes())) == ([], ["one"], 1)


def test_after_an_interrupt_a_line_says_where_the_record_is(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.leave("one")
    with monkeypatch.context() as patch:
        patch.setattr(ControlPlane, "init_producer_id", failing(KeyboardInterrupt()))
        result = site.run("transactions", "terminate", site.slot(), "--yes")
    assert (result.code, result.out) == (130, "")
    assert result.err == (
        f"dualwrite: interrupted: {site.slot()} may be aborted all the same; `dualwrite transactions describe` shows "
        "it, and whether a heuristic abort is on record\n"
    )
    assert "on record          heuristic abort 1," in site.run("transactions", "describe", site.slot()).out


def test_a_second_try_after_a_lost_answer_records_nothing_twice(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.leave("one")
    with monkeypatch.context() as patch:
        patch.setattr(ControlPlane, "init_producer_id", failing(KafkaUnavailableError("no answer")))
        with pytest.raises(KafkaUnavailableError):
            terminate(site.engine, site.broker.client_config, site.slot())
    assert state_rows(site.engine)[site.slot()].status in ENDED, "so that recovery looks at it, too"
    result = site.run("transactions", "terminate", site.slot(), "--yes")
    assert "The database does not ask for its commit" in result.out
    assert len(site.outcomes()) == 1
    assert site.visible() == []


def test_no_unit_of_work_begins_before_kafka_has_aborted(
    any_place: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminate that was paused for longer than its lease would abort what the next owner has committed."""
    any_place.leave("one")
    monkeypatch.setattr(terminating, "LEASE_SECONDS", 0.0)
    impatient = create_engine(any_place.url, connect_args={"timeout": 0} if "sqlite" in any_place.url else {})
    init, refused = ControlPlane.init_producer_id, []

    def paused(self: ControlPlane, transactional_id: str, **flags: object) -> InitializedProducer:
        with pytest.raises(DatabaseBusyError):
            TakingStore(impatient, patience=0).take_over(transactional_id, "successor")
        refused.append(transactional_id)
        return init(self, transactional_id, **flags)  # type: ignore[arg-type]

    monkeypatch.setattr(ControlPlane, "init_producer_id", paused)
    terminate(any_place.engine, any_place.broker.client_config, any_place.slot())
    impatient.dispose()
    assert refused == [any_place.slot()]
    assert any_place.visible() == []


def test_a_decision_that_came_after_the_look_is_contradicted_on_record(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's own transaction was about to commit, as one of a client that is gone may be for a while."""
    site.leave("one", step="COMMIT_DATABASE")
    described = site.described()
    assert described is not None
    state, take = str(described.producer), LeaseRegistry.take

    def decided_before(self: LeaseRegistry, candidates: Sequence[Candidate]) -> list[Lease]:
        with site.engine.begin() as connection:
            connection.execute(update(table).values(prepared_txn_state=state))
        return take(self, candidates)

    monkeypatch.setattr(LeaseRegistry, "take", decided_before)
    terminate(site.engine, site.broker.client_config, site.slot())
    assert site.outcomes() == [(site.slot(), state, Outcome.HEURISTIC_ABORT.value)]


def test_a_slot_that_was_taken_before_kafka_is_asked_is_left_to_its_taker(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.leave("one")
    add_abort = HeuristicRecords.add_abort

    def taken_afterwards(self: HeuristicRecords, lease: Lease, state: PreparedTxnState) -> int:
        number = add_abort(self, lease, state)
        expire_leases(site.engine)
        site.write("two")
        return number

    monkeypatch.setattr(HeuristicRecords, "add_abort", taken_afterwards)
    with pytest.raises(LeaseLostError):
        terminate(site.engine, site.broker.client_config, site.slot())
    assert (site.visible(), site.stored()) == (["two"], ["one", "two"])
    assert len(site.outcomes()) == 1


def test_the_owners_commit_is_shut_out_before_the_decision_is_read(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is taken first: a state that the owner stores later matches no row."""
    site.leave("one")
    token = site.rows()[site.slot()][3]
    with monkeypatch.context() as patch:
        patch.setattr(ControlPlane, "init_producer_id", failing(KafkaUnavailableError("no answer")))
        with pytest.raises(KafkaUnavailableError):
            terminate(site.engine, site.broker.client_config, site.slot())
    assert site.rows()[site.slot()][3] > token


def test_a_slot_that_another_process_takes_meanwhile_is_left_to_it(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.leave("one")
    original = ControlPlane.describe_transaction

    def describe(self: ControlPlane, transactional_id: str) -> object:
        described = original(self, transactional_id)
        monkeypatch.setattr(ControlPlane, "describe_transaction", original)
        site.dual_write().recover()
        return described

    monkeypatch.setattr(ControlPlane, "describe_transaction", describe)
    with pytest.raises(InvalidTransactionStateError, match="another process has just taken it"):
        terminate(site.engine, site.broker.client_config, site.slot())
    assert site.visible() == site.stored() == ["one"]
