"""Heuristic outcomes of a living application, on the bundled broker: an operator ends its prepared transaction."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, insert

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import InvalidTransactionStateError
from dualwrite.wire.error_codes import ErrorCode
from tests.support.coordinator.broker_application import Place
from tests.support.coordinator.event_table import events, ready_engine, slot_rows, stored_values
from tests.support.requests.marker_calls import marker
from tests.support.requests.marker_calls import write as write_markers
from tests.support.requests.raw_client import RawClient

Meddle = Callable[["Place"], None]


@pytest.fixture(params=["native", "librdkafka"])
def place(request: pytest.FixtureRequest, sqlite_engine: Engine, broker: EmbeddedBroker, tmp_path: Path) -> Place:
    return Place(sqlite_engine, broker, request.param)


def terminate(place: Place) -> None:
    """KIP-939's forceTerminateTransaction."""
    control = place.control()
    control.init_producer_id(f"{place.application}-0", two_phase_commit=True, keep_prepared_txn=False)
    control.close()


def end(place: Place, *, committed: bool, version: int) -> None:
    """An EndTxn of somebody's who knows the identity."""
    control = place.control()
    described = control.describe_transaction(f"{place.application}-0")
    assert described is not None
    control.end_txn(f"{place.application}-0", described.producer, committed, bumps_epoch=version == 5)
    control.close()


ABORTS = {
    "terminated": terminate,
    "EndTxn v4": partial(end, committed=False, version=4),
    "EndTxn v5": partial(end, committed=False, version=5),
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("how", ABORTS)
def test_an_abort_between_the_two_commits_of_a_living_application(place: Place, how: str) -> None:
    begun: list[str] = []

    def observe(step: str) -> None:
        begun.append(step)
        if step == "COMMIT_KAFKA" and begun.count(step) == 1:
            ABORTS[how](place)

    with place.dual_write(on_step=observe) as dual_write:
        place.write(dual_write, "one")  # the database has committed: its caller is told of success
        place.write(dual_write, "two")
        (found,) = dual_write.outcomes()
        assert found.outcome is Outcome.HEURISTIC_ABORT
        assert f":{place.topic}:0:0" in found.state
        assert dual_write.counters.heuristic == 1
    assert place.visible() == [b"two"]


@pytest.mark.slow_cases
@pytest.mark.parametrize("version", [4, 5])
def test_a_commit_by_another_client_matches_the_decision(place: Place, version: int) -> None:
    place.leave("one")
    end(place, committed=True, version=version)
    with place.dual_write() as dual_write:
        assert dual_write.recover() == {f"{place.application}-0": Outcome.NOTHING}
        assert dual_write.outcomes() == []
    assert place.visible() == [b"one"]


def test_an_abort_by_hand_in_one_partition_is_refused_and_recovery_commits_all(place: Place) -> None:
    """The bundled broker lets nobody tear a partition out of a prepared transaction."""
    place.leave("in 0", "in 1")
    row = slot_rows(place.engine)[f"{place.application}-0"]
    partition = int((row.anchor or row.first_record).split(":")[-2])
    control = place.control()
    described = control.describe_transaction(f"{place.application}-0")
    assert described is not None
    with RawClient(place.broker.bootstrap_servers) as client:
        refused = write_markers(client, marker(described.producer, (place.topic, partition)), version=1)
    assert set(refused.values()) == {ErrorCode.INVALID_TXN_STATE}
    control.close()
    with place.dual_write() as dual_write:
        dual_write.recover()
        outcomes = [each.outcome for each in dual_write.outcomes()]
    assert (outcomes, place.visible()) == ([], [b"in 0", b"in 1"])


@pytest.mark.slow_cases
@pytest.mark.parametrize("error", [None, ValueError("no")])
def test_a_commit_past_the_library_is_on_record_with_its_producers_identity(
    place: Place, error: Exception | None
) -> None:
    def unit(dual_write: DualWrite) -> None:
        with dual_write.transaction() as tx:
            tx.execute(insert(events).values(value="one"))
            tx.produce(place.topic, "one", partition=0)
            tx.connection.connection.cursor().execute("COMMIT")
            if error is not None:
                raise error

    with place.dual_write() as dual_write:
        place.write(dual_write, "before")
        with pytest.raises(type(error or InvalidTransactionStateError())):
            unit(dual_write)
        place.write(dual_write, "after")
        [found] = dual_write.outcomes()
        control = place.control()
        described = control.describe_transaction(f"{place.application}-0")
        control.close()
    assert described is not None
    assert found.state.split(":")[0] == str(described.producer.producer_id)
    assert (found.transactional_id, found.outcome) == (f"{place.application}-0", Outcome.HEURISTIC_HAZARD)
    assert stored_values(place.engine) == ["one"]
    assert place.visible() == [b"after", b"before"]


@pytest.mark.slow_cases
@pytest.mark.parametrize("two_phase", ["keep-prepared", "resume"])
def test_another_databases_decision_is_on_record_before_its_transaction_is_aborted(
    place: Place, tmp_path: Path, two_phase: str
) -> None:
    """Another database under the same application name begins with a row of its own."""
    place.options = {"two_phase": two_phase}
    place.leave("in 0", "in 1")
    row = slot_rows(place.engine)[f"{place.application}-0"]
    place.engine = ready_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with place.dual_write() as dual_write:
        place.write(dual_write, "two")
        [found] = dual_write.outcomes()
        place.write(dual_write, "three")
        assert len(dual_write.outcomes()) == 1
    place.engine.dispose()
    assert (found.outcome, found.state.split(":")[:2]) == (
        Outcome.HEURISTIC_HAZARD,
        row.prepared_txn_state.split(":"),
    )
    assert f":{place.topic}:0:0" in found.state
    assert place.visible() == [b"three", b"two"]


@pytest.mark.slow_cases
@pytest.mark.parametrize("two_phase", ["keep-prepared", "resume"])
def test_a_first_start_has_nothing_to_record(place: Place, two_phase: str) -> None:
    place.options = {"two_phase": two_phase}
    place.dying(lambda dual_write: place.write(dual_write, "dead"), at="STORE_STATE")
    with place.dual_write() as dual_write:
        assert dual_write.recover() == {f"{place.application}-0": Outcome.ABORTED}
        place.write(dual_write, "one")
        assert dual_write.outcomes() == []
    assert place.visible() == [b"one"]
