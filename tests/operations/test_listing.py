"""``dualwrite transactions list`` and ``describe``: what the database and Kafka say of each transactional id."""

import pytest

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.admin.inspector import Inspector, PartitionEnds
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.ids import TopicPartition
from dualwrite.operations.listing import list_transactions
from dualwrite.operations.rows import state_rows
from dualwrite.operations.views import Situation
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import expire_leases
from tests.support.operations.places import OperationsSite


def situations(site: OperationsSite) -> dict[str, Situation]:
    views = list_transactions(site.engine, site.broker.client_config, application=site.application)
    return {view.transactional_id: view.situation for view in views}


@pytest.mark.slow_cases
def test_transactions_left_behind_are_listed_with_the_action_of_recovery(any_place: OperationsSite) -> None:
    any_place.leave("one", silent=False)
    any_place.leave("two", step="COMMIT_DATABASE")
    listed = any_place.run("transactions", "list", "--application", any_place.application)
    assert (listed.code, listed.err) == (0, "")
    heads, first, second, summary = listed.out.splitlines()
    assert heads.split() == ["TRANSACTIONAL", "ID", "DATABASE", "OWNER", "KAFKA", "OPEN", "PARTITIONS", "RECOVERY"]
    assert first.split()[0] == any_place.slot(0)
    assert first.endswith("commit")
    assert second.split()[0] == any_place.slot(1)
    assert second.endswith("abort")
    assert ", silent" in first
    assert "Ongoing" in second
    assert summary == "2 transactions left behind: see dualwrite transactions resolve"


def test_list_prints_all_details_as_json(site: OperationsSite) -> None:
    site.leave("one")
    (view,) = site.run("transactions", "list", "--application", site.application, "--json").json()["transactions"]
    described = site.described()
    assert described is not None
    assert (view["transactional_id"], view["application"]) == (site.slot(), site.application)
    assert (view["situation"], view["verdict"]) == ("left_behind", "commit")
    assert view["database"]["prepared_txn_state"] == view["kafka"]["producer"] == str(described.producer)
    assert view["database"]["standing"] == "expired"
    assert view["kafka"]["started_at"].endswith("+00:00")
    assert [partition["topic"] for partition in view["kafka"]["partitions"]] == [site.topic]


def test_a_slot_whose_owner_may_be_alive_is_not_listed_as_left_behind(site: OperationsSite) -> None:
    site.leave("one", silent=False)
    listed = site.run("transactions", "list", "--application", site.application).out
    assert listed.splitlines()[1].endswith("its owner's")
    assert "left behind" not in listed


def test_a_slot_with_nothing_open_is_quiet(site: OperationsSite) -> None:
    site.write("one")
    listed = site.run("transactions", "list", "--application", site.application).out
    assert "CompleteCommit" in listed
    assert listed.splitlines()[1].endswith("nothing to do")
    assert situations(site) == {site.slot(): Situation.QUIET}


def test_librdkafkas_transactions_are_distinguished_by_their_anchor(site: OperationsSite) -> None:
    """One epoch for a session: what is open has the pair that the row has, and is another transaction."""
    with site.dual_write(producer="librdkafka").transaction() as tx:
        tx.produce(site.topic, value="zero")
    site.made.pop().close()
    site.leave("one", producer="librdkafka")
    (view,) = list_transactions(site.engine, site.broker.client_config, application=site.application)
    assert view.row is not None
    assert view.row.state.anchor is not None
    assert view.verdict is not None
    assert view.verdict.value == "commit"
    site.change_row(anchor=f"{site.topic}:0:0")  # of the unit before it
    (view,) = list_transactions(site.engine, site.broker.client_config, application=site.application)
    assert view.verdict is not None
    assert view.verdict.value == "abort"


def test_an_application_whose_name_another_one_begins_with_has_no_slot_of_it(site: OperationsSite) -> None:
    other = f"{site.application}-more"
    with (
        DualWrite(site.engine, site.broker.client_config, application=other) as dual_write,
        dual_write.transaction() as tx,
    ):
        tx.produce(site.topic, value="one")
    assert list(state_rows(site.engine)) == [f"{other}-0"]
    assert state_rows(site.engine, application=site.application) == {}
    recovered = site.run("recover", "--application", site.application)
    assert (recovered.code, f"those that have: {other}" in recovered.err) == (2, True)


def test_listing_an_unknown_application_reports_nothing_found(site: OperationsSite) -> None:
    site.write("one")
    for words in (["list"], ["resolve"], ["resolve", "--yes"]):
        result = site.run("transactions", *words, "--application", "nobody-is-called-that")
        assert (result.code, result.out) == (2, "")
        assert result.err == (
            "dualwrite: application 'nobody-is-called-that' has no slot in this database; those that have: "
            f"{site.application}\n"
        )


def test_a_database_without_a_slot_and_a_cluster_without_a_transaction_list_nothing(site: OperationsSite) -> None:
    listed = site.run("transactions", "list")
    assert listed.code == 0


def test_open_transactions_without_a_row_are_listed_too(site: OperationsSite) -> None:
    site.leave("one")
    with site.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM kafka_transaction_state")
    assert situations(site) == {site.slot(): Situation.UNKNOWN}
    listed = site.run("transactions", "list").out
    (line,) = [line for line in listed.splitlines() if line.startswith(site.slot())]
    assert "no row" in line
    assert line.endswith("not this database's")


def test_describe_says_how_far_readers_get(site: OperationsSite) -> None:
    site.write("zero")
    site.made.pop().close()
    site.leave("one", silent=False)
    with site.dual_write().transaction() as tx:  # behind it: committed, and held up
        tx.produce(site.topic, value="two")
    expire_leases(site.engine)
    result = site.run("transactions", "describe", site.slot())
    assert (result.code, result.err) == (0, "")
    assert f"application        {site.application}" in result.out
    assert "owner " in result.out
    assert "its owner has not renewed the lease in time" in result.out
    assert "timeout          none: two-phase commit" in result.out
    # zero and its marker, one; two and its marker behind it
    assert f"{site.topic}-0: from offset 2 on; held up for read_committed, by it: 3 records from 2 on" in result.out
    assert "recovery           would commit it" in result.out


def test_describe_prints_json(site: OperationsSite) -> None:
    site.leave("one")
    (partition,) = site.run("transactions", "describe", site.slot(), "--json").json()["kafka"]["partitions"]
    assert partition == {
        "topic": site.topic,
        "partition": 0,
        "start_offset": 0,
        "last_stable_offset": 0,
        "high_watermark": 1,
    }


def test_describing_an_unknown_id_is_one_line(site: OperationsSite) -> None:
    result = site.run("transactions", "describe", "nobody-0")
    assert (result.code, result.out) == (2, "")
    assert result.err == "dualwrite: nobody-0: no such transactional id, neither in the database nor in Kafka\n"


@pytest.mark.parametrize("verb", ["describe", "resolve"])
def test_an_empty_transactional_id_is_one_line(site: OperationsSite, verb: str) -> None:
    site.write("one")
    result = site.run("transactions", verb, "")
    assert (result.code, result.err) == (2, "dualwrite: a transactional id is empty: give its name\n")


def test_the_ends_of_partitions_are_of_each_one(broker: KafkaBroker, site: OperationsSite) -> None:
    wide = broker.create_topic(partitions=2)
    site.write("zero")
    inspector = Inspector(broker.client_config)
    try:
        ends = inspector.partition_ends([TopicPartition(wide, 1), TopicPartition(site.topic, 0)])
        assert ends == {
            TopicPartition(wide, 1): PartitionEnds(0, 0),
            TopicPartition(site.topic, 0): PartitionEnds(2, 2),
        }
        assert inspector.partition_ends([]) == {}
        settings = inspector.broker_settings(["transaction.max.timeout.ms", "no.such.setting"])
        assert settings == {0: {"transaction.max.timeout.ms": "900000"}}
    finally:
        inspector.close()


def test_the_control_plane_is_closed(site: OperationsSite, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ControlPlane] = []
    original = ControlPlane.close

    def close(self: ControlPlane) -> None:
        closed.append(self)
        original(self)

    monkeypatch.setattr(ControlPlane, "close", close)
    list_transactions(site.engine, site.broker.client_config, application=site.application)
    assert len(closed) == 1


def test_a_row_with_an_invalid_state_is_named(site: OperationsSite) -> None:
    site.leave("one")
    site.change_row(prepared_txn_state="scribble")
    result = site.run("transactions", "list")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"dualwrite: row '{site.slot()}' of kafka_transaction_state: ")
