"""What is said of slots that were left in another Kafka cluster: every command names both clusters and what to do."""

import pytest

from dualwrite.cli import db
from dualwrite.errors import NoFreeSlotError
from dualwrite.operations.doctor import examine
from dualwrite.operations.findings import Finding, Level
from tests.support.operations.places import Place

THERE = "another-cluster-id"


@pytest.fixture
def here(place: Place) -> str:
    """A process has died between the two commits, and its transaction is in another cluster. The id of this one."""
    place.leave("one")
    place.change_row(cluster_id=THERE)
    return str(place.ask(lambda control: control.cluster_id()))


def says_it(text: str, place: Place, here: str) -> bool:
    return (
        f"slot {place.slot()} was left in the Kafka cluster {THERE} without being given back" in text
        and f"this is the cluster {here}" in text
        and "dualwrite db moved" in text
        and "another application name" in text
    )


def transactions(place: Place, application: str | None) -> Finding:
    said = list(examine(place.engine, place.broker.client_config, application=application))
    return [finding for finding in said if finding.check == "transactions"][-1]


def test_recover_fails_and_names_the_other_cluster(place: Place, here: str) -> None:
    said = place.run("recover", "--application", place.application)
    assert (said.code, said.out) == (1, "0 slots checked; 0 transactions had been left open\n")
    assert len(said.err.splitlines()) == 1
    assert says_it(said.err, place, here)


def test_recover_ends_transactions_of_this_cluster_and_exits_with_an_error(place: Place, here: str) -> None:
    place.leave("two")
    said = place.run("recover", "--application", place.application)
    assert said.code == 1
    assert said.out.splitlines()[0] == f"{place.slot(1)}: committed"
    assert says_it(said.err, place, here)
    as_json = place.run("recover", "--application", place.application, "--json")
    assert as_json.code == 1
    (error,) = as_json.json()["errors"]
    assert says_it(error, place, here)


def test_recover_is_well_once_the_other_cluster_is_given_up(place: Place, here: str) -> None:
    db.moved(place.url)
    assert place.run("recover", "--application", place.application).code == 0
    assert place.visible() == ["one"]


def test_list_and_describe_name_the_other_cluster(place: Place, here: str) -> None:
    said = place.run("transactions", "list")
    assert "in another cluster" in next(each for each in said.out.splitlines() if each.startswith(place.slot()))
    assert says_it(said.out, place, here)
    assert "left behind" not in said.out
    (listed,) = place.run("transactions", "list", "--application", place.application, "--json").json()["transactions"]
    assert (listed["cluster_id"], listed["database"]["cluster_id"], listed["verdict"]) == (here, THERE, None)
    assert says_it(place.run("transactions", "describe", place.slot()).out, place, here)


@pytest.mark.parametrize("by_name", [True, False])
def test_resolve_leaves_slots_of_another_cluster_alone_and_reports_it(place: Place, here: str, by_name: bool) -> None:
    words = [place.slot()] if by_name else ["--application", place.application]
    before = place.rows(), place.described()
    for yes in ([], ["--yes"]):
        said = place.run("transactions", "resolve", *words, *yes)
        assert said.code == len(yes)
        assert said.out.startswith(f"{place.slot()}: not touched: ")
        assert says_it(said.out, place, here)
    assert (place.rows(), place.described()) == before


def test_terminate_does_not_take_away_another_clusters_decision(place: Place, here: str) -> None:
    """What is open here under that name is not what the row has decided on."""
    before = place.rows(), place.described()
    said = place.run("transactions", "terminate", place.slot(), "--yes")
    assert said.code == 2
    assert says_it(said.err, place, here)
    assert "--no-db" in said.err
    assert (place.rows(), place.described()) == before


def test_terminate_names_the_other_cluster_if_nothing_is_open_here(place: Place, here: str) -> None:
    place.run("transactions", "terminate", place.slot(), "--no-db", "--yes", db=False)
    before = place.rows(), place.described()
    said = place.run("transactions", "terminate", place.slot(), "--yes")
    assert said.code == 2
    assert says_it(said.err, place, here)
    assert "--no-db" not in said.err, "it would find nothing"
    assert (place.rows(), place.described()) == before


def test_the_doctor_finds_slots_of_another_cluster(place: Place, here: str) -> None:
    for application in (place.application, None):
        finding = transactions(place, application)
        assert finding.level is Level.FAILURE
        assert says_it(finding.message, place, here)


def test_the_doctor_reports_another_applications_slots_in_another_cluster(place: Place, here: str) -> None:
    said = list(examine(place.engine, place.broker.client_config, application="renamed"))
    finding = next(finding for finding in said if finding.check == "other applications")
    assert says_it(finding.message, place, here)


def test_no_free_slot_error_has_the_reason(place: Place, here: str) -> None:
    with pytest.raises(NoFreeSlotError) as raised:
        place.write("two", pool_size=1, acquire_timeout=0.2)
    assert says_it(str(raised.value), place, here)
    assert "pool_size is 1, slot " in str(raised.value)
    assert "Raise" not in str(raised.value)


def test_no_free_slot_error_has_both_reasons(place: Place, here: str) -> None:
    dual_write = place.dual_write(pool_size=2, acquire_timeout=0.2)
    with (
        dual_write.transaction() as tx,
        pytest.raises(NoFreeSlotError) as raised,
        place.dual_write(pool_size=2, acquire_timeout=0.2).transaction(),
    ):
        tx.produce(place.topic, value="two")
    assert says_it(str(raised.value), place, here)
    assert f"in use are {place.slot(1)} by " in str(raised.value)
    assert "Raise pool_size" in str(raised.value)
