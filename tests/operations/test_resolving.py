"""``dualwrite transactions resolve`` and ``dualwrite recover``: what dead owners left ends as the database decided."""

import pytest

from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.sweeper import Sweeper
from dualwrite.errors import DualWriteError, KafkaUnavailableError
from dualwrite.operations.resolving import applications, plan, resolve
from tests.support.operations.places import Place

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


def test_without_yes_resolve_is_a_dry_run(any_place: Place) -> None:
    any_place.leave("one", silent=False)
    any_place.leave("two", step="COMMIT_DATABASE")
    before = any_place.rows(), any_place.described(), any_place.described(any_place.slot(1))
    said = any_place.run("transactions", "resolve", "--application", any_place.application)
    assert (said.code, said.err) == (0, "")
    first, second, summary = said.out.splitlines()
    assert first.startswith(f"{any_place.slot(0)}: would commit ")
    assert first.endswith(", in 1 partition: the database has committed it")
    assert second.startswith(f"{any_place.slot(1)}: would abort ")
    assert second.endswith("the database has not committed it")
    assert summary == "nothing was done; 2 transactions would be ended with --yes"
    assert (any_place.rows(), any_place.described(), any_place.described(any_place.slot(1))) == before


def test_with_yes_resolve_ends_both_sides_alike_and_frees_the_slots(any_place: Place) -> None:
    any_place.leave("one", silent=False)
    any_place.leave("two", step="COMMIT_DATABASE")
    said = any_place.run("transactions", "resolve", "--application", any_place.application, "--yes")
    assert (said.code, said.err) == (0, "")
    assert said.out == f"{any_place.slot(0)}: committed\n{any_place.slot(1)}: aborted\n"
    assert any_place.visible() == any_place.stored() == ["one"]
    again = any_place.run("transactions", "resolve", any_place.slot(0), "--yes")
    assert (again.code, again.out) == (0, f"{any_place.slot(0)}: nothing was open\n")


def test_only_the_named_slots_are_resolved(place: Place) -> None:
    place.leave("one", silent=False)
    place.leave("two")
    said = place.run("transactions", "resolve", place.slot(1), "--yes")
    assert (said.code, said.out) == (0, f"{place.slot(1)}: committed\n")
    left = place.described()
    assert left is not None
    assert left.state == "Ongoing"


def test_slots_of_several_applications_at_once(place: Place) -> None:
    place.leave("one", silent=False)
    mine = place.application
    place.application = f"{mine}-x"  # another one, whose slots are called like longer names of the first one's
    place.leave("two")
    assert applications(place.engine) == [mine, f"{mine}-x"]
    done = place.run("transactions", "resolve", f"{mine}-0", f"{mine}-x-0", "--yes")
    assert done.out == f"{mine}-0: committed\n{mine}-x-0: committed\n"
    assert place.visible() == place.stored() == ["one", "two"]


def test_an_owner_that_may_be_alive_is_not_robbed(place: Place) -> None:
    place.leave("one", silent=False)
    before = place.rows(), place.described()
    for words in ([place.slot()], ["--application", place.application]):
        said = place.run("transactions", "resolve", *words, "--yes")
        assert said.code == 1
        assert said.out.startswith(f"{place.slot()}: not touched: ")
        assert "has it, and may be alive: its lease has " in said.out
    assert (place.rows(), place.described()) == before


def test_a_slot_that_is_taken_after_the_plan_is_not_touched(place: Place) -> None:
    place.leave("one")
    intentions = plan(place.engine, place.broker.client_config, application=place.application)
    survivor = place.dual_write()
    assert survivor.recover() == {place.slot(): Outcome.COMMITTED}
    done = resolve(place.engine, place.broker.client_config, intentions)
    assert (done.outcomes, done.missed, done.errors) == ({}, [place.slot()], [])
    with survivor.transaction() as tx:  # and was not fenced
        tx.produce(place.topic, value="two")


def test_the_row_decides_and_not_the_plan(place: Place) -> None:
    place.leave("one", step="COMMIT_DATABASE")
    intentions = plan(place.engine, place.broker.client_config, application=place.application)
    described = place.described()
    assert described is not None
    place.change_row(prepared_txn_state=str(described.producer))
    done = resolve(place.engine, place.broker.client_config, intentions)
    assert done.outcomes == {place.slot(): Outcome.COMMITTED}


def test_a_transaction_without_a_row_is_left_alone(place: Place) -> None:
    place.leave("one")
    with place.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM kafka_transaction_state")
    said = place.run("transactions", "resolve", place.slot(), "--yes")
    assert said.code == 1
    assert "not touched: no row names it, so this database has not decided on it" in said.out
    left = place.described()
    assert left is not None
    assert left.state == "Ongoing"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nobody-0"], "nobody-0: no such transactional id, neither in the database nor in Kafka"),
        ([], "one of the arguments ID --application is required"),
        (["a-0", "--application", "a"], "argument --application: not allowed with argument ID"),
    ],
)
def test_a_usage_error_is_one_line(place: Place, words: list[str], line: str) -> None:
    said = place.run("transactions", "resolve", *words, "--yes")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"dualwrite: {line}")
    assert said.err.count("\n") == 1


def test_recover_ends_every_unowned_transaction(place: Place) -> None:
    place.leave("one", silent=False)
    place.leave("two", step="COMMIT_DATABASE")
    said = place.run("recover", "--application", place.application)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        f"{place.slot(0)}: committed",
        f"{place.slot(1)}: aborted",
        "2 slots checked; 2 transactions had been left open",
    ]
    assert place.visible() == place.stored() == ["one"]
    assert place.run("recover", "--application", place.application, "--json").json() == {
        "outcomes": {place.slot(0): "nothing", place.slot(1): "nothing"},
        "errors": [],
    }
    assert {row[4] for row in place.rows().values()} == {""}, "no process holds a slot"


def test_recover_leaves_living_owners_alone(place: Place) -> None:
    alive = place.dual_write()
    with alive.transaction() as tx:
        tx.produce(place.topic, value="zero")
    said = place.run("recover", "--application", place.application)
    assert (said.code, said.out) == (0, "0 slots checked; 0 transactions had been left open\n")
    with alive.transaction() as tx:
        tx.produce(place.topic, value="one")


def test_an_application_that_is_misspelled_is_named_and_no_slot_is_made_for_it(place: Place) -> None:
    nobody = place.run("recover", "--application", "ordres")
    assert nobody.err == ("dualwrite: application 'ordres' has no slot in this database; no application has\n")
    place.write("one")
    said = place.run("recover", "--application", "ordres")
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        f"dualwrite: application 'ordres' has no slot in this database; those that have: {place.application}\n"
    )
    assert list(place.rows()) == [place.slot()]


def failing(errors: list[Exception], found: dict[str, Outcome]) -> object:
    def attempt(self: Sweeper, only: object = None) -> tuple[dict[str, Outcome], list[Exception]]:
        return found, errors

    return attempt


def test_failed_recoveries_are_reported_beside_successful_ones(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.leave("one")
    refused = DualWriteError(f"{place.slot(1)}: refused")
    monkeypatch.setattr(Sweeper, "attempt", failing([refused], {place.slot(): Outcome.COMMITTED}))
    for words in (["recover"], ["transactions", "resolve", "--yes"]):
        said = place.run(*words, "--application", place.application)
        assert (said.code, said.err) == (1, f"dualwrite: {place.slot(1)}: refused\n")
        assert said.out.startswith(f"{place.slot()}: committed\n")
    as_json = place.run("recover", "--application", place.application, "--json")
    assert as_json.json() == {"outcomes": {place.slot(): "committed"}, "errors": [f"{place.slot(1)}: refused"]}


def test_recovering_nothing_is_a_failure(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.leave("one")
    monkeypatch.setattr(Sweeper, "attempt", failing([KafkaUnavailableError("nobody answers")], {}))
    said = place.run("recover", "--application", place.application)
    assert (said.code, said.out, said.err) == (2, "", "dualwrite: nobody answers\n")
