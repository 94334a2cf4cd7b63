"""What ``dualwrite transactions list`` foretells is what ``dualwrite recover`` then does, and where it leaves a slot
alone, what the application does that uses the slot."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from dualwrite.client.admin.log_reader import LogReader
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.recovery.forecast import IS_UNKNOWN_TO_KAFKA
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import PreparedTxnState
from dualwrite.operations import listing
from dualwrite.operations.listing import HAS_CHANGED, list_transactions
from tests.support.coordinator.event_table import expire_leases
from tests.support.operations.histories import STATUSES, Case, cases, insert_row, lived
from tests.support.operations.places import OperationsSite

pytestmark = pytest.mark.slow_cases("librdkafka")

both_producers = pytest.mark.parametrize("producer", ["native", "librdkafka"])


def foretold(site: OperationsSite) -> dict[str, Any]:
    listed = site.run("transactions", "list", "--application", site.application, "--json")
    assert listed.err == ""
    return {view["transactional_id"]: view["foretold"] for view in listed.json()["transactions"]}


def terminated(site: OperationsSite) -> None:
    """An operator ends the prepared transaction of slot 0 by Kafka's own tool."""
    site.ask(
        lambda control: control.init_producer_id(
            site.slot(), transaction_timeout_ms=60_000, two_phase_commit=False, keep_prepared_txn=False
        )
    )


@pytest.mark.slow
@both_producers
@pytest.mark.parametrize("partitions", [1, 7], ids=["one log", "several logs"])
def test_recovery_does_what_the_list_foretold_for_every_row_and_history(
    site: OperationsSite, producer: str, partitions: int
) -> None:
    """In one log the open transactions of some slots hide from readers how those of the others ended."""
    site.topic = site.broker.create_topic(partitions=partitions)
    made = cases(site, producer, partitions)
    expected = foretold(site)
    done = site.run("recover", "--application", site.application, "--json").json()
    assert all("where another database has a transaction open under its name" in error for error in done["errors"])
    left = set(made) - set(done["outcomes"])
    assert left == {error.split()[1].rstrip(":") for error in done["errors"]} != set()
    by_application, errors = manager_of(site.dual_write()).sweep(left)  # which uses those slots here
    assert errors == []
    outcomes = done["outcomes"] | {name: outcome.name.lower() for name, outcome in by_application.items()}
    different = [
        (made[name].history, made[name].stored, expected[name], outcome)
        for name, outcome in outcomes.items()
        if expected[name]["outcome"] not in (None, outcome)
    ]
    assert different == []
    assert set(outcomes) == set(expected) == set(made)
    details = {name: told["detail"] for name, told in expected.items() if (told["outcome"] or "").startswith("heur")}
    listed = site.run("transactions", "list", "--application", site.application, "--json").json()["outcomes"]
    on_record: dict[str, list[str]] = {}
    for entry in listed:
        on_record.setdefault(entry["transactional_id"], []).insert(0, entry["detail"])
    assert {name: ". Besides, ".join(found) for name, found in on_record.items()} == details
    found = set(outcomes.values())
    assert found == {"committed", "aborted", "nothing"} | {
        f"heuristic_{kind}" for kind in ("abort", "commit", "hazard")
    }


@pytest.mark.slow
@both_producers
def test_only_a_transactional_id_that_kafka_does_not_know_is_unclear(site: OperationsSite, producer: str) -> None:
    made = cases(site, producer, 1)
    unclear = {name: told["detail"] for name, told in foretold(site).items() if told["outcome"] is None}
    assert {(made[name].history, made[name].stored) for name in unclear} == {("unknown", "another producer's")}
    assert set(unclear.values()) == {IS_UNKNOWN_TO_KAFKA}


def test_a_transactional_id_that_has_expired_is_clear_if_the_log_has_its_records(site: OperationsSite) -> None:
    (state,) = lived(site, f"{site.application}-x", "c", "native", 0)
    insert_row(site, site.slot(), Case("unknown", "committed", state, STATUSES["free"]))
    assert foretold(site)[site.slot()] == {"outcome": "nothing", "detail": ""}
    assert site.run("recover", "--application", site.application).code == 0


def test_a_transaction_that_may_be_the_decided_one_is_foretold_as_a_hazard(site: OperationsSite) -> None:
    """The topic that would show it was deleted, and the row has no start time."""
    (state,) = lived(site, site.slot(), "o", "librdkafka", 0)
    undated = PreparedTxnState(state.producer, state.anchor)
    insert_row(site, site.slot(), Case("open", "undated", undated, STATUSES["expired"]))
    admin = AdminClient(site.broker.client_config)
    admin.delete_topics([site.topic])[site.topic].result()
    assert foretold(site)[site.slot()]["outcome"] == "heuristic_hazard"
    done = site.run("recover", "--application", site.application, "--json").json()
    assert done["outcomes"] == {site.slot(): "heuristic_hazard"}


@pytest.mark.parametrize("status", ["held", "foreign"])
def test_nothing_is_foretold_of_a_slot_that_recovery_does_not_take(site: OperationsSite, status: str) -> None:
    (state,) = lived(site, site.slot(), "f", "native", 0)
    insert_row(site, site.slot(), Case("aborted by force", "transaction 0", state, STATUSES[status]))
    assert foretold(site) == {site.slot(): None}
    assert site.run("recover", "--application", site.application, "--json").json()["outcomes"] == {}
    assert site.outcomes() == []


def test_nothing_is_foretold_in_a_copy(site: OperationsSite) -> None:
    site.leave("one")
    terminated(site)
    site.change_row(database_id="sqlite:1:2")
    assert foretold(site) == {site.slot(): None}
    listed = site.run("transactions", "list", "--application", site.application)
    assert listed.code == 1
    assert "nothing is recovered here: the state row of " in listed.out


def test_the_list_changes_nothing_on_either_side(site: OperationsSite) -> None:
    site.leave("one", silent=False)
    site.leave("two")
    terminated(site)
    before = site.rows(), site.described(), site.described(site.slot(1))
    assert foretold(site)[site.slot()]["outcome"] == "heuristic_abort"
    assert (site.rows(), site.described(), site.described(site.slot(1))) == before
    assert site.outcomes() == []


@pytest.mark.parametrize("words", [["list"], ["describe"], ["resolve"]], ids=lambda words: words[0])
def test_an_abort_by_force_is_named_before_recovery_finds_it(site: OperationsSite, words: list[str]) -> None:
    site.leave("one")
    terminated(site)
    result = site.run("transactions", *words, *([] if words == ["list"] else [site.slot()]))
    assert "would find a heuristic abort" in result.out
    assert "the database committed, and the transaction was aborted in Kafka" in result.out
    assert result.code == (0 if words == ["describe"] else 1)
    assert result.err == ""


def test_the_summary_counts_foretold_and_recorded_outcomes(site: OperationsSite) -> None:
    site.leave("one")
    terminated(site)
    words = ("transactions", "list", "--application", site.application)
    line = "1 heuristic outcome: 1 that recovery would find, 0 on record and not acknowledged"
    assert line in site.run(*words).out.splitlines()
    recovered = site.run("recover", "--application", site.application)
    assert recovered.out.splitlines()[-1] == (
        "1 slot checked; 0 transactions ended; 1 heuristic outcome: see dualwrite transactions list"
    )
    listed = site.run(*words)
    assert listed.code == 1
    line = "1 heuristic outcome: 0 that recovery would find, 1 on record and not acknowledged"
    assert line in listed.out.splitlines()
    number = site.run(*words, "--json").json()["outcomes"][0]["id"]
    site.run("transactions", "acknowledge", str(number), "--by", "ada", servers=False)
    assert site.run(*words).code == 0


def test_a_unit_of_work_between_the_looks_at_both_sides_is_no_heuristic_outcome(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka shows a commit of which the row that was read before knows nothing."""
    site.write("one")
    site.made.pop().close()
    original: Callable[..., Any] = listing.state_rows
    looks: list[int] = []

    def read_late(*arguments: Any, **options: Any) -> Any:
        rows = original(*arguments, **options)
        if not looks:
            looks.append(1)
            site.write("two")
            site.made.pop().close()
        return rows

    monkeypatch.setattr(listing, "state_rows", read_late)
    (view,) = list_transactions(site.engine, site.broker.client_config, application=site.application)
    assert view.forecast == HAS_CHANGED
    monkeypatch.undo()
    assert foretold(site)[site.slot()]["outcome"] == "nothing"


@pytest.mark.parametrize(
    "changed", [{"fencing_token": 77}, {"owner": "another"}, {"prepared_txn_state": "9:9"}, {"outcome": "unrecovered"}]
)
def test_a_row_of_which_one_thing_has_changed_meanwhile_is_looked_at_again(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    site.leave("one")
    terminated(site)
    original: Callable[..., Any] = listing.locked_rows

    def change_before(*arguments: Any) -> Any:
        site.change_row(**changed)
        return original(*arguments)

    monkeypatch.setattr(listing, "locked_rows", change_before)
    (view,) = list_transactions(site.engine, site.broker.client_config, application=site.application)
    assert view.forecast == HAS_CHANGED


def test_a_leader_that_does_not_answer_is_asked_once(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("one", "two"):
        site.leave(value, silent=False)
    for name in (site.slot(0), site.slot(1)):
        site.ask(lambda control, name=name: control.end_txn(name, control.describe_transaction(name).producer, True))
    expire_leases(site.engine)
    asked: list[int] = []

    def silent(*_: Any) -> Any:
        asked.append(1)
        raise KafkaUnavailableError("the leader is silent")

    monkeypatch.setattr(LogReader, "topic_id", silent)
    told = foretold(site)
    assert [each["outcome"] for each in told.values()] == [None, None]
    assert {each["detail"] for each in told.values()} == {"the leader is silent"}
    assert len(asked) == 1
    listed = site.run("transactions", "list", "--application", site.application)
    assert listed.code == 0
    line = f"what recovery would find is unclear in {site.slot(0)}, {site.slot(1)}: the leader is silent"
    assert line in listed.out.splitlines()
    assert [line.split()[-1] for line in listed.out.splitlines()[1:3]] == ["unclear", "unclear"]
