"""``dualwrite transactions resolve`` and ``dualwrite recover``: what dead owners left ends as the database decided."""

import pytest
from sqlalchemy import select

from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.sweeper import Sweeper
from dualwrite.coordinator.sql.state_row import is_of
from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import DualWriteError, KafkaUnavailableError
from dualwrite.operations.listing import IS_LOCKED
from dualwrite.operations.resolving import applications, plan, resolve
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import expire_leases
from tests.support.operations.places import OperationsSite
from tests.support.servers.databases import SERVERS

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


def test_without_yes_resolve_is_a_dry_run(any_place: OperationsSite) -> None:
    any_place.leave("one", silent=False)
    any_place.leave("two", step="COMMIT_DATABASE")
    before = any_place.rows(), any_place.described(), any_place.described(any_place.slot(1))
    result = any_place.run("transactions", "resolve", "--application", any_place.application)
    assert (result.code, result.err) == (0, "")
    first, second, summary = result.out.splitlines()
    assert first.startswith(f"{any_place.slot(0)}: would commit ")
    assert first.endswith(", in 1 partition: the database has committed it")
    assert second.startswith(f"{any_place.slot(1)}: would abort ")
    assert second.endswith("the database has not committed it")
    assert summary == "nothing was done; 2 transactions would be ended with --yes"
    assert (any_place.rows(), any_place.described(), any_place.described(any_place.slot(1))) == before


def test_with_yes_resolve_ends_both_sides_alike_and_frees_the_slots(any_place: OperationsSite) -> None:
    any_place.leave("one", silent=False)
    any_place.leave("two", step="COMMIT_DATABASE")
    result = any_place.run("transactions", "resolve", "--application", any_place.application, "--yes")
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{any_place.slot(0)}: committed\n{any_place.slot(1)}: aborted\n"
    assert any_place.visible() == any_place.stored() == ["one"]
    again = any_place.run("transactions", "resolve", any_place.slot(0), "--yes")
    assert (again.code, again.out) == (0, f"{any_place.slot(0)}: nothing was open\n")


def test_json_has_the_plan_and_what_was_done(site: OperationsSite) -> None:
    site.leave("one", silent=False)
    site.leave("two", step="COMMIT_DATABASE")
    words = ("transactions", "resolve", "--application", site.application, "--json")
    planned = site.run(*words)
    assert (planned.code, planned.err) == (0, "")
    plan_json = planned.json()
    assert {key: plan_json[key] for key in ("dry_run", "outcomes", "missed", "errors")} == {
        "dry_run": True,
        "outcomes": {},
        "missed": [],
        "errors": [],
    }
    actions = [(entry["transactional_id"], entry["action"], entry["obstacle"]) for entry in plan_json["transactions"]]
    assert actions == [(site.slot(0), "commit", None), (site.slot(1), "abort", None)]
    listed = site.run("transactions", "list", "--application", site.application, "--json").json()["transactions"]
    assert [entry.keys() - {"action", "obstacle"} for entry in plan_json["transactions"]] == [
        entry.keys() for entry in listed
    ]
    done = site.run(*words, "--yes")
    assert (done.code, done.err) == (0, "")
    assert (done.json()["dry_run"], done.json()["outcomes"]) == (
        False,
        {site.slot(0): "committed", site.slot(1): "aborted"},
    )
    assert site.visible() == site.stored() == ["one"]


def test_json_names_what_is_in_the_way(site: OperationsSite) -> None:
    site.leave("one", silent=False)
    with site.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM kafka_transaction_state")
    result = site.run("transactions", "resolve", site.slot(), "--json", "--yes")
    assert result.code == 1
    (entry,) = result.json()["transactions"]
    assert (entry["action"], entry["database"], result.json()["outcomes"]) == (None, None, {})
    assert entry["obstacle"].startswith("no row names it, so this database has not decided on it")


def test_only_the_named_slots_are_resolved(site: OperationsSite) -> None:
    site.leave("one", silent=False)
    site.leave("two")
    result = site.run("transactions", "resolve", site.slot(1), "--yes")
    assert (result.code, result.out) == (0, f"{site.slot(1)}: committed\n")
    left = site.described()
    assert left is not None
    assert left.state == "Ongoing"


def test_slots_of_several_applications_at_once(site: OperationsSite) -> None:
    site.leave("one", silent=False)
    mine = site.application
    site.application = f"{mine}-x"  # another one, whose slots are called like longer names of the first one's
    site.leave("two")
    assert applications(site.engine) == [mine, f"{mine}-x"]
    done = site.run("transactions", "resolve", f"{mine}-0", f"{mine}-x-0", "--yes")
    assert done.out == f"{mine}-0: committed\n{mine}-x-0: committed\n"
    assert site.visible() == site.stored() == ["one", "two"]


def test_an_owner_that_may_be_alive_is_not_robbed(site: OperationsSite) -> None:
    site.leave("one", silent=False)
    before = site.rows(), site.described()
    for words in ([site.slot()], ["--application", site.application]):
        result = site.run("transactions", "resolve", *words, "--yes")
        assert result.code == 1
        assert result.out.startswith(f"{site.slot()}: not touched: ")
        assert "has it, and may be alive: its lease has " in result.out
    assert (site.rows(), site.described()) == before


@pytest.mark.parametrize("do_it", [[], ["--yes"]], ids=["dry run", "--yes"])
def test_an_idle_slot_of_a_living_owner_needs_nothing(site: OperationsSite, do_it: list[str]) -> None:
    site.write("one")
    for words in ([site.slot()], ["--application", site.application]):
        result = site.run("transactions", "resolve", *words, *do_it)
        assert (result.code, result.out.splitlines()[0]) == (0, f"{site.slot()}: nothing is open")
    assert "not resolved" not in result.out + result.err


def test_a_slot_that_is_taken_after_the_plan_is_not_touched(site: OperationsSite) -> None:
    site.leave("one")
    intentions = plan(site.engine, site.broker.client_config, application=site.application)
    survivor = site.dual_write()
    assert survivor.recover() == {site.slot(): Outcome.COMMITTED}
    done = resolve(site.engine, site.broker.client_config, intentions)
    assert (done.outcomes, done.missed, done.errors) == ({}, [site.slot()], [])
    with survivor.transaction() as tx:  # and was not fenced
        tx.produce(site.topic, value="two")


def test_the_row_decides_and_not_the_plan(site: OperationsSite) -> None:
    site.leave("one", step="COMMIT_DATABASE")
    intentions = plan(site.engine, site.broker.client_config, application=site.application)
    described = site.described()
    assert described is not None
    site.change_row(prepared_txn_state=str(described.producer))
    done = resolve(site.engine, site.broker.client_config, intentions)
    assert done.outcomes == {site.slot(): Outcome.COMMITTED}


def test_a_transaction_without_a_row_is_left_alone(site: OperationsSite) -> None:
    site.leave("one")
    with site.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM kafka_transaction_state")
    result = site.run("transactions", "resolve", site.slot(), "--yes")
    assert result.code == 1
    assert "not touched: no row names it, so this database has not decided on it" in result.out
    left = site.described()
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
def test_a_usage_error_is_one_line(site: OperationsSite, words: list[str], line: str) -> None:
    result = site.run("transactions", "resolve", *words, "--yes")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"dualwrite: {line}")
    assert result.err.count("\n") == 1


def test_recover_ends_every_unowned_transaction(site: OperationsSite) -> None:
    site.leave("one", silent=False)
    site.leave("two", step="COMMIT_DATABASE")
    result = site.run("recover", "--application", site.application)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        f"{site.slot(0)}: committed",
        f"{site.slot(1)}: aborted",
        "2 slots checked; 2 transactions ended",
    ]
    assert site.visible() == site.stored() == ["one"]
    assert site.run("recover", "--application", site.application, "--json").json() == {
        "outcomes": {site.slot(0): "nothing", site.slot(1): "nothing"},
        "errors": [],
        "in_use": {},
        "missed": [],
    }
    assert {row[4] for row in site.rows().values()} == {""}, "no process holds a slot"


def test_recover_leaves_living_owners_alone(site: OperationsSite) -> None:
    alive = site.dual_write()
    with alive.transaction() as tx:
        tx.produce(site.topic, value="zero")
    result = site.run("recover", "--application", site.application)
    assert (result.code, result.out) == (0, "0 slots checked; 0 transactions ended\n")
    with alive.transaction() as tx:
        tx.produce(site.topic, value="one")


def test_recover_names_a_decided_transaction_whose_owner_may_be_alive(site: OperationsSite) -> None:
    """Whoever replaces the cluster now would leave it behind."""
    site.leave("one", silent=False)
    result = site.run("recover", "--application", site.application)
    assert result.code == 0, "usual beside a living application"
    first, summary = result.out.splitlines()
    assert first.startswith(f"{site.slot()}: not touched: ")
    assert "has it, and may be alive: its lease has " in first
    assert summary == "0 slots checked; 0 transactions ended; 1 slot in use: run it again when the lease is over"
    shown = site.run("recover", "--application", site.application, "--json")
    assert (shown.code, list(shown.json()["in_use"])) == (0, [site.slot()])
    expire_leases(site.engine)
    assert site.run("recover", "--application", site.application).code == 0
    assert site.visible() == site.stored() == ["one"]


@pytest.mark.parametrize("words", [("recover",), ("transactions", "resolve", "--yes")])
def test_an_application_whose_name_leaves_room_for_its_own_slots_only_is_recovered(
    site: OperationsSite, words: tuple[str, ...]
) -> None:
    site.application = "n" * 253  # slot 63 of the default pool would have 256 characters
    site.leave("one", pool_size=10)
    result = site.run(*words, "--application", site.application)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{site.slot()}: committed\n")
    assert site.visible() == site.stored() == ["one"]
    assert f"ok       two-phase commit: enabled and permitted (asked as {site.application}-doctor)" in (
        site.run("doctor", "--application", site.application).out
    )


def test_an_application_that_is_misspelled_is_named_and_no_slot_is_made_for_it(site: OperationsSite) -> None:
    nobody = site.run("recover", "--application", "ordres")
    assert nobody.err == ("dualwrite: application 'ordres' has no slot in this database; no application has\n")
    site.write("one")
    result = site.run("recover", "--application", "ordres")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"dualwrite: application 'ordres' has no slot in this database; those that have: {site.application}\n"
    )
    assert list(site.rows()) == [site.slot()]


def failing(errors: list[Exception], found: dict[str, Outcome]) -> object:
    def attempt(self: Sweeper, only: object = None) -> tuple[dict[str, Outcome], list[Exception]]:
        return found, errors

    return attempt


def test_failed_recoveries_are_reported_beside_successful_ones(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.leave("one")
    refused = DualWriteError(f"{site.slot(1)}: refused")
    monkeypatch.setattr(Sweeper, "attempt", failing([refused], {site.slot(): Outcome.COMMITTED}))
    for words in (["recover"], ["transactions", "resolve", "--yes"]):
        result = site.run(*words, "--application", site.application)
        assert (result.code, result.err) == (1, f"dualwrite: {site.slot(1)}: refused\n")
        assert result.out.startswith(f"{site.slot()}: committed\n")
    as_json = site.run("recover", "--application", site.application, "--json")
    assert as_json.json() == {
        "outcomes": {site.slot(): "committed"},
        "errors": [f"{site.slot(1)}: refused"],
        "in_use": {},
        "missed": [],
    }


def test_recovering_nothing_is_a_failure(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.leave("one")
    monkeypatch.setattr(Sweeper, "attempt", failing([KafkaUnavailableError("nobody answers")], {}))
    result = site.run("recover", "--application", site.application)
    assert (result.code, result.out, result.err) == (2, "", "dualwrite: nobody answers\n")


@pytest.mark.parametrize("kind", SERVERS)
def test_a_commit_that_the_database_has_not_finished_is_not_foretold_as_an_abort(
    kind: str, request: pytest.FixtureRequest, broker: KafkaBroker
) -> None:
    """The owner was killed in its COMMIT, which the server finishes later."""
    site = OperationsSite(request.getfixturevalue(f"{kind}_url"), broker)
    site.leave("one", step="COMMIT_DATABASE")
    name, said = site.slot(), f"{IS_LOCKED.detail}\n"
    with site.engine.connect() as session:
        session.execute(select(table.c.owner).where(is_of(name)).with_for_update())
        listed = site.run("transactions", "list")
        assert f"what recovery would find is unclear in {name}: {said}" in listed.out
        assert f"recovery           unclear: {said}" in site.run("transactions", "describe", name).out
        dry = site.run("transactions", "resolve", name)
        assert dry.out.startswith(f"{name}: not touched: {said}nothing was done; 0 transactions")
        for words in ([], ["--yes"]):
            result = site.run("transactions", "terminate", name, *words)
            assert (result.code, result.err) == (2, f"dualwrite: {name}: {said}")
        left = site.run("recover", "--application", site.application)
        assert left.code == 1
        assert left.out.startswith(f"{name}: not recovered: {said}")
        assert left.out.endswith("; 1 transaction left open: run it again later\n")
        assert site.run("recover", "--application", site.application, "--json").json()["missed"] == [name]
    result = site.run("recover", "--application", site.application)
    assert (result.code, result.out.splitlines()[0]) == (0, f"{name}: aborted")
    site.close()
