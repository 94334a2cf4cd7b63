"""Which database and which cluster a state row belongs to: tables of what is stored and what is here."""

import pytest

from dualwrite.coordinator.rules.identities import (
    ClusterIdentity,
    DatabaseIdentity,
    RowIdentity,
    require_original,
)
from dualwrite.coordinator.rules.slot_rules import (
    SlotObserver,
    SlotRow,
    SlotStatus,
    choose,
    left_in_another_cluster,
    slots_to_recover,
)
from dualwrite.coordinator.slots.usage import PoolSettings, no_free_slot
from dualwrite.coordinator.sql.dialects.supported import DATABASES
from dualwrite.errors import CopiedDatabaseError

CLUSTER = ClusterIdentity("c1", "1:7")


def identity(here: str | None) -> DatabaseIdentity:
    """The identity ``here``, with the form that the dialect of such a database gives it."""
    forms = [database.halved_identity for database in DATABASES if database.halved_identity is not None]
    kind = (here or "").partition(":")[0]
    return DatabaseIdentity(here, form=next((form for form in forms if form.kind == kind), None))


HERE = identity("sqlite:1:100:aa")


@pytest.mark.parametrize(
    ("stored", "here", "same"),
    [
        ("postgresql:77:5", "postgresql:77:5", True),
        ("postgresql:77:5", "postgresql:77:6", False),
        ("postgresql:77:5", "postgresql:78:5", False),
        ("mysql:u:orders", "mysql:u:staging", False),
        ("sqlite:1:100:aa", "sqlite:1:100:bb", True),  # renamed
        ("sqlite:1:100:aa", "sqlite:2:100:aa", True),  # mounted anew
        ("sqlite:1:100:aa", "sqlite:2:100:bb", False),  # elsewhere
        ("sqlite:1:100:aa", "sqlite:1:101:aa", False),  # another file in its place
        ("sqlite:1:100:aa", "postgresql:1:100", False),
        ("mariadb:s1:1-70:orders", "mariadb:s2:1-70:orders", True),  # a container that was made anew
        ("mariadb:s1:1-70:orders", "mariadb:s1:1-71:orders", True),  # a table that was altered
        ("mariadb:s1:1-70:orders", "mariadb:s2:1-71:orders", False),  # a dump in another server
        ("mariadb:s1:1-70:orders", "mariadb:s1:1-70:staging", False),  # or in another schema
        ("mariadb:s1:1-70:orders", "mariadb:s2:2-70:orders", False),  # a replica
        ("mariadb:s1::orders", "mariadb:s2::orders", False),  # two that have no moment
        ("mariadb:s1:1-70:a:b", "mariadb:s2:1-70:a:c", False),
        ("mariadb:s1:1-70:a:b", "mariadb:s2:1-70:a:b", True),  # a schema may have any name
        ("galera:u:orders", "mariadb:s1:1-70:orders", False),
    ],
)
def test_identities_distinguish_databases(stored: str, here: str, same: bool) -> None:
    assert identity(here).is_same_as(stored) is same


def test_a_database_without_an_identity_is_not_known_to_be_the_same() -> None:
    assert not DatabaseIdentity().is_same_as("sqlite:1:100:aa")


@pytest.mark.parametrize(
    ("stored", "here", "outdated"),
    [
        ("mariadb:s1:1-70:orders", "mariadb:s2:1-70:orders", True),
        ("sqlite:1:100:aa", "sqlite:1:100:bb", True),
        ("mariadb:s1:1-70:orders", "mariadb:s1:1-70:orders", False),
        ("mariadb:s1:1-70:orders", "mariadb:s1::orders", False),  # it would lose a half
        ("mariadb:s1:1-70:orders", "mariadb:s2:1-71:orders", False),  # another database
        ("mariadb:s1:1-70::a", "mariadb:s2:1-70::a", True),  # a schema may have any name
        (None, "sqlite:1:100:bb", False),
        ("sqlite:1:100:aa", None, False),
    ],
)
def test_an_identity_follows_a_change_of_one_half(stored: str | None, here: str | None, outdated: bool) -> None:
    assert identity(here).outdates(stored) is outdated


def row(database_id: str | None, cluster: ClusterIdentity = CLUSTER) -> RowIdentity:
    return RowIdentity("orders-0", database_id, cluster)


def test_rows_of_this_database_or_of_an_earlier_release_are_the_originals() -> None:
    require_original([row("sqlite:1:100:aa"), row(None)], HERE, CLUSTER)
    require_original([row("sqlite:9:9:zz")], DatabaseIdentity(), CLUSTER)
    with pytest.raises(CopiedDatabaseError, match="was written by the database sqlite:9:9:zz"):
        require_original([row("sqlite:1:100:aa"), row(None), row("sqlite:9:9:zz")], HERE, CLUSTER)


@pytest.mark.parametrize(
    "cluster",
    [
        CLUSTER,  # the broker has not moved
        ClusterIdentity("c2", "1:8"),  # another broker
        ClusterIdentity("c1"),  # a broker whose directory is not here
        ClusterIdentity(),
    ],
)
def test_a_row_of_another_database_is_refused(cluster: ClusterIdentity) -> None:
    with pytest.raises(CopiedDatabaseError, match=r"'orders-0' was written by the database .*db moved.*db copied"):
        require_original([row("sqlite:1:200:bb")], HERE, cluster)


def test_rows_of_another_database_are_refused_in_one_line_that_names_a_few() -> None:
    rows = [RowIdentity(f"orders-{number}", f"sqlite:9:{9 - number // 4}:zz", CLUSTER) for number in range(5)]
    with pytest.raises(CopiedDatabaseError) as raised:
        require_original([row(None), *rows], HERE, CLUSTER)
    assert str(raised.value).startswith(
        "the state rows of 5 slots (orders-0, orders-1, orders-2 and 2 more) were written by the database "
        "sqlite:9:9:zz, sqlite:9:8:zz, and this is "
    )


def test_a_file_moved_together_with_its_brokers_directory_is_not_a_copy() -> None:
    require_original([row("sqlite:1:200:bb")], HERE, ClusterIdentity("c1", "1:8"))
    with pytest.raises(CopiedDatabaseError):
        require_original([row("sqlite:1:200:bb", ClusterIdentity("c1"))], HERE, ClusterIdentity("c1", "1:8"))


@pytest.mark.parametrize("cluster", [ClusterIdentity(), ClusterIdentity("c1"), CLUSTER])
def test_a_cluster_identity_is_read_as_it_was_written(cluster: ClusterIdentity) -> None:
    assert ClusterIdentity.of(str(cluster)) == cluster
    assert ClusterIdentity.of(None) == ClusterIdentity()


def test_a_copys_transactional_ids_have_its_suffix_once() -> None:
    copy = DatabaseIdentity("sqlite:1:2:aa", "ab12cd34")
    assert copy.name_of("orders") == "orders-ab12cd34"
    assert copy.name_of("orders-ab12cd34") == "orders-ab12cd34", "as an operator reads it in a list"
    assert HERE.name_of("orders") == "orders"


def slot(number: int, owner: str, cluster_id: str | None, remaining: float | None = -1.0) -> SlotRow:
    return SlotRow(f"orders-{number}", number, 5, owner, remaining, cluster_id)


OBSERVER = SlotObserver("me", (), lambda owner: owner == "dead", "c1")


@pytest.mark.parametrize(
    ("row", "status"),
    [
        (slot(0, "gone", "c2"), SlotStatus.FOREIGN),
        (slot(0, "dead", "c2", 30.0), SlotStatus.FOREIGN),
        (slot(0, "alive", "c2", 30.0), SlotStatus.HELD),
        (slot(0, "", "c2", None), SlotStatus.FREE),
        (slot(0, "gone", "c1"), SlotStatus.EXPIRED),
        (slot(0, "gone", None), SlotStatus.EXPIRED),
    ],
)
def test_slots_left_in_another_cluster_are_foreign(row: SlotRow, status: SlotStatus) -> None:
    assert OBSERVER.status(row) is status


def test_a_foreign_slot_is_neither_used_nor_recovered() -> None:
    rows = [slot(0, "gone", "c2"), slot(1, "gone", "c1")]
    chosen = [
        (candidate.row.number, candidate.row.transactional_id) for candidate in choose("orders", 3, rows, OBSERVER)
    ]
    assert chosen == [(1, "orders-1"), (2, "orders-2")]
    assert [candidate.row.number for candidate in slots_to_recover(rows, OBSERVER, free_too=True)] == [1]


def test_nothing_is_foreign_to_an_observer_without_a_cluster_id() -> None:
    observer = SlotObserver("me", (), lambda _: False)
    assert observer.status(slot(0, "gone", "c2")) is SlotStatus.EXPIRED


def test_slots_left_in_other_clusters_are_named_with_the_remedy() -> None:
    one = left_in_another_cluster([slot(0, "gone", "c2")], "c1")
    assert one.startswith("slot orders-0 was left in the Kafka cluster c2 without ")
    assert "this is the cluster c1" in one
    assert "`dualwrite db moved --db URL --yes`" in one
    many = left_in_another_cluster([slot(number, "gone", f"c{2 + number % 2}") for number in range(5)], "c1")
    assert many.startswith("slots orders-0, orders-1, orders-2 and 2 more were left in the Kafka cluster c2 and c3 ")


@pytest.mark.parametrize(("pool_size", "is_told"), [(2, False), (3, True)])
def test_only_a_slot_of_the_pool_is_missing(pool_size: int, is_told: bool) -> None:
    rows = [slot(0, "alive", "c1", 9.0), slot(1, "alive", "c1", 9.0), slot(2, "gone", "c2")]
    settings = PoolSettings("orders", pool_size, 1.0, 30.0)
    said = no_free_slot(settings, {}, rows, one_writer=False, foreign=rows[2:], cluster_id="c1")
    assert ("slot orders-2 was left in the Kafka cluster c2" in said) is is_told
    assert "Raise pool_size" in said
