"""What is said of slots that were left in another Kafka cluster: every command names both clusters and what to do."""

import pytest

from dualwrite.cli import db
from dualwrite.coordinator.process.owner import new_owner
from dualwrite.coordinator.rules.recovery_decision import LEFT_ELSEWHERE, UNCLAIMED
from dualwrite.errors import NoFreeSlotError
from dualwrite.operations.doctor import examine
from dualwrite.operations.findings import Finding, Level
from tests.support.operations.places import OperationsSite

THERE = "another-cluster-id"


@pytest.fixture
def here(site: OperationsSite) -> str:
    """A process has died between the two commits, and its transaction is in another cluster. The id of this one."""
    site.leave("one")
    site.change_row(cluster_id=THERE)
    return str(site.ask(lambda control: control.cluster_id()))


def says_it(text: str, site: OperationsSite, here: str) -> bool:
    return (
        f"slot {site.slot()} was left in the Kafka cluster {THERE} without being given back" in text
        and f"this is the cluster {here}" in text
        and "dualwrite db moved" in text
        and "another application name" in text
    )


def transactions(site: OperationsSite, application: str | None) -> Finding:
    result = list(examine(site.engine, site.broker.client_config, application=application))
    return [finding for finding in result if finding.check == "transactions"][-1]


def test_recover_fails_and_names_the_other_cluster(site: OperationsSite, here: str) -> None:
    result = site.run("recover", "--application", site.application)
    assert (result.code, result.out) == (1, "0 slots checked; 0 transactions ended\n")
    assert len(result.err.splitlines()) == 1
    assert says_it(result.err, site, here)


def test_recover_ends_transactions_of_this_cluster_and_exits_with_an_error(site: OperationsSite, here: str) -> None:
    site.leave("two")
    result = site.run("recover", "--application", site.application)
    assert result.code == 1
    assert result.out.splitlines()[0] == f"{site.slot(1)}: committed"
    assert says_it(result.err, site, here)
    as_json = site.run("recover", "--application", site.application, "--json")
    assert as_json.code == 1
    (error,) = as_json.json()["errors"]
    assert says_it(error, site, here)


def test_recover_is_well_once_the_other_cluster_is_given_up(site: OperationsSite, here: str) -> None:
    db.moved(site.url)
    assert site.run("recover", "--application", site.application).code == 0
    assert site.visible() == ["one"]


def test_list_and_describe_name_the_other_cluster(site: OperationsSite, here: str) -> None:
    result = site.run("transactions", "list")
    assert "in another cluster" in next(line for line in result.out.splitlines() if line.startswith(site.slot()))
    assert says_it(result.out, site, here)
    assert "left behind" not in result.out
    (listed,) = site.run("transactions", "list", "--application", site.application, "--json").json()["transactions"]
    assert (listed["cluster_id"], listed["database"]["cluster_id"], listed["verdict"]) == (here, THERE, None)
    assert says_it(site.run("transactions", "describe", site.slot()).out, site, here)


def test_an_owner_that_died_in_another_cluster_is_dead_before_its_lease_has_run_out(site: OperationsSite) -> None:
    site.leave("one", silent=False)
    process, machine, _, number = new_owner().split(" ")
    site.change_row(cluster_id=THERE, owner=f"{process} {machine} 1 {number}")  # a process that began earlier
    listed = site.run("transactions", "list", "--application", site.application)
    assert ", dead " in listed.out
    assert "in another cluster" in listed.out


@pytest.mark.parametrize(
    ("given_back", "recovery"),
    [(False, "in another cluster"), (True, "heuristic hazard")],
    ids=["in use", "given back"],
)
def test_a_slot_that_is_used_in_another_cluster_is_named(site: OperationsSite, given_back: bool, recovery: str) -> None:
    site.write("one")
    if given_back:
        site.made[0].close()
    site.change_row(cluster_id=THERE)
    here = str(site.ask(lambda control: control.cluster_id()))
    listed = site.run("transactions", "list", "--application", site.application).out.splitlines()
    assert listed[1].endswith(recovery)
    assert listed[-1] == (
        f"last used in the Kafka cluster {THERE}, and this is the cluster {here}: {site.slot()}. KAFKA and RECOVERY "
        "say nothing about what is open there"
    )
    described = site.run("transactions", "describe", site.slot()).out
    assert f"  for the cluster  {THERE}, not this one" in described.splitlines()
    leased = "leased by processes that use another Kafka cluster" in transactions(site, site.application).message
    assert leased is not given_back


@pytest.mark.parametrize("by_name", [True, False])
def test_resolve_leaves_slots_of_another_cluster_alone_and_reports_it(
    site: OperationsSite, here: str, by_name: bool
) -> None:
    words = [site.slot()] if by_name else ["--application", site.application]
    before = site.rows(), site.described()
    for yes in ([], ["--yes"]):
        result = site.run("transactions", "resolve", *words, *yes)
        assert result.code == len(yes)
        assert result.out.startswith(f"{site.slot()}: not touched: ")
        assert says_it(result.out, site, here)
    assert (site.rows(), site.described()) == before


@pytest.fixture
def arrived(site: OperationsSite) -> OperationsSite:
    """A slot that was given back in another cluster; here a transaction is open under its name, and is called the same
    as the one that the row's state names."""
    site.leave("one")
    site.change_row(cluster_id=THERE, owner="", lease_expires_at=None)
    return site


def test_the_forecast_of_a_slot_from_another_cluster_names_both_transactions(arrived: OperationsSite) -> None:
    for text in (
        arrived.run("transactions", "describe", arrived.slot()).out,
        transactions(arrived, arrived.application).message,
    ):
        assert f"{LEFT_ELSEWHERE}. Besides, {UNCLAIMED}" in text


@pytest.mark.parametrize(
    "words", [("recover",), ("transactions", "resolve", "--yes")], ids=["recover", "transactions resolve"]
)
def test_another_databases_transaction_is_not_aborted_at_a_wrong_address(
    arrived: OperationsSite, words: tuple[str, ...]
) -> None:
    """An operator names production's database and staging's cluster, where the application has the same name: a
    process is at work there, and its database may have decided."""
    here = str(arrived.ask(lambda control: control.cluster_id()))
    before = arrived.rows(), arrived.described()
    result = arrived.run(*words, "--application", arrived.application)
    assert result.code == 1
    said = result.out + result.err
    assert f"it was last used in the Kafka cluster {THERE}, and this is the cluster {here}, where another" in said
    assert "abort that transaction with `dualwrite transactions terminate`, and try again" in said
    assert (arrived.rows(), arrived.described(), arrived.outcomes()) == (*before, [])


def test_recover_ends_the_others_beside_a_slot_that_it_leaves_alone(site: OperationsSite, here: str) -> None:
    site.leave("two")
    site.change_row(owner="", lease_expires_at=None)
    result = site.run("recover", "--application", site.application, "--json")
    assert result.code == 1
    assert result.json()["outcomes"] == {site.slot(1): "committed"}
    (error,) = result.json()["errors"]
    assert error.startswith(f"slot {site.slot()}: it was last used in the Kafka cluster {THERE}, and this is the ")


def test_terminate_aborts_a_transaction_that_another_database_may_have_committed_and_says_so(
    arrived: OperationsSite,
) -> None:
    state = arrived.rows()[arrived.slot()][1:3]
    meaning = "No unit of work of this database has left it open: if another database committed it"
    assert meaning in arrived.run("transactions", "terminate", arrived.slot()).out
    result = arrived.run("transactions", "terminate", arrived.slot(), "--yes")
    assert (result.code, meaning in result.out) == (0, True)
    assert (arrived.rows()[arrived.slot()][1:3], arrived.outcomes()) == (state, [])
    assert arrived.run("recover", "--application", arrived.application).code == 1
    assert [detail for *_, detail in arrived.outcomes()] == ["heuristic hazard"], "of the row's own state"
    assert arrived.visible() == []


def test_terminate_does_not_take_away_another_clusters_decision(site: OperationsSite, here: str) -> None:
    """What is open here under that name is not what the row has decided on."""
    before = site.rows(), site.described()
    result = site.run("transactions", "terminate", site.slot(), "--yes")
    assert result.code == 2
    assert says_it(result.err, site, here)
    assert "--no-db" in result.err
    assert (site.rows(), site.described()) == before


def test_terminate_names_the_other_cluster_if_nothing_is_open_here(site: OperationsSite, here: str) -> None:
    site.run("transactions", "terminate", site.slot(), "--no-db", "--yes", db=False)
    before = site.rows(), site.described()
    result = site.run("transactions", "terminate", site.slot(), "--yes")
    assert result.code == 2
    assert says_it(result.err, site, here)
    assert "--no-db" not in result.err, "it would find nothing"
    assert (site.rows(), site.described()) == before


def test_the_doctor_finds_slots_of_another_cluster(site: OperationsSite, here: str) -> None:
    for application in (site.application, None):
        finding = transactions(site, application)
        assert finding.level is Level.FAILURE
        assert says_it(finding.message, site, here)


def test_the_doctor_reports_another_applications_slots_in_another_cluster(site: OperationsSite, here: str) -> None:
    result = list(examine(site.engine, site.broker.client_config, application="renamed"))
    finding = next(finding for finding in result if finding.check == "other applications")
    assert says_it(finding.message, site, here)


def test_no_free_slot_error_has_the_reason(site: OperationsSite, here: str) -> None:
    with pytest.raises(NoFreeSlotError) as raised:
        site.write("two", pool_size=1, acquire_timeout=0.2)
    assert says_it(str(raised.value), site, here)
    assert "pool_size is 1, slot " in str(raised.value)
    assert "Raise" not in str(raised.value)


def test_no_free_slot_error_has_both_reasons(site: OperationsSite, here: str) -> None:
    dual_write = site.dual_write(pool_size=2, acquire_timeout=0.2)
    with (
        dual_write.transaction() as tx,
        pytest.raises(NoFreeSlotError) as raised,
        site.dual_write(pool_size=2, acquire_timeout=0.2).transaction(),
    ):
        tx.produce(site.topic, value="two")
    assert says_it(str(raised.value), site, here)
    assert f"in use are {site.slot(1)} by " in str(raised.value)
    assert "Raise pool_size" in str(raised.value)
