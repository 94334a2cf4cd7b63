"""``dualwrite move --finish``: groups go on where they were, what still runs is refused, and the way back."""

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from dualwrite.admin.connecting import connected
from dualwrite.admin.groups import stable_offsets
from dualwrite.client.admin.control_plane import ControlPlane, TransactionDescription
from dualwrite.client.protocol.group_requests import commit_offsets
from dualwrite.client.protocol.requests import CommittedOffset
from dualwrite.errors import InputError
from dualwrite.ids import TopicPartition as DualwritePartition
from dualwrite.moving import move as move_module
from dualwrite.moving.copying import PartitionComparison
from dualwrite.moving.move import ClusterMove
from dualwrite.moving.plan import MoveJob
from tests.support.moving.move_site import (
    MoveEnd,
    MoveSite,
    add_records,
    commit_offset,
    create_topic,
    fill,
    offset_of,
    open_transaction,
    producer_of,
    read,
    rest_of,
    write,
)
from tests.support.operations.places import command
from tests.support.peer_clients.kafka_helpers import PATIENCE, quick


def gaps(site: MoveSite) -> str:
    """A topic whose offsets have gaps: markers, and an aborted transaction."""
    topic, producer = create_topic(site.source), producer_of(site.source)
    for number in range(4):
        add_records(producer, topic, [f"{number}a", f"{number}b"])
        producer.commit_transaction(PATIENCE)
        add_records(producer, topic, ["x"])
        producer.abort_transaction(PATIENCE)
    return topic


VALUES = [[b"0a", b"0b", b"1a", b"1b"], [b"2a", b"2b", b"3a", b"3b"]]


def configs(site: MoveSite) -> list[dict[str, str]]:
    return [quick(cluster.bootstrap_servers) for cluster in (site.source, site.target)]


def end_of(site: MoveSite, topic: str) -> int:
    consumer = Consumer({**quick(site.source.bootstrap_servers), "group.id": "ends"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE)
    consumer.close()
    return end


def test_the_target_is_compared_after_it_has_written_the_markers(
    site: MoveSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka answers EndTxn before."""
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    did = list[str]()
    describe, compare = ControlPlane.describe_transaction, ClusterMove.compare

    def describe_as_ending(control: ControlPlane, transactional_id: str) -> TransactionDescription | None:
        found = describe(control, transactional_id)
        assert found is not None
        state = "PrepareCommit" if len(did) < 2 else found.state
        did.append(state)
        return replace(found, state=state)

    def note_and_compare(move: ClusterMove) -> Iterator[PartitionComparison]:
        did.append("compare")
        return compare(move)

    monkeypatch.setattr(ControlPlane, "describe_transaction", describe_as_ending)
    monkeypatch.setattr(ClusterMove, "compare", note_and_compare)
    result = site.run("--finish", "--verify")
    assert (result.code, result.err) == (0, "")
    assert did[:4] == ["PrepareCommit", "PrepareCommit", "CompleteCommit", "compare"]


def test_markers_that_the_target_never_writes_do_not_keep_the_mover_for_ever(
    site: MoveSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(site.source, create_topic(site.source), "a")
    describe, asked = ControlPlane.describe_transaction, count()

    def describe_as_ending(control: ControlPlane, transactional_id: str) -> TransactionDescription | None:
        found = describe(control, transactional_id)
        assert found is not None
        assert next(asked) < 9, "it would ask for ever"
        return replace(found, state="PrepareCommit")

    monkeypatch.setattr(ControlPlane, "describe_transaction", describe_as_ending)
    seconds = SimpleNamespace(monotonic=count(step=20).__next__, sleep=lambda _: None)
    monkeypatch.setattr("dualwrite.moving.target_writer.time", seconds)
    result = site.run()
    assert result.code == 2
    assert "the target has not written the markers of the last transaction" in result.err


@pytest.mark.slow
def test_every_position_of_a_group_is_translated_exactly(site: MoveSite) -> None:
    topic = gaps(site)
    end = end_of(site, topic)
    for offset in range(end + 1):
        commit_offset(site.source, f"group-{offset}", topic, offset)
    result = site.run("--finish", "--verify")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1].startswith("finished: use the target")
    lengths = set()
    for offset in range(end + 1):
        group = f"group-{offset}"
        left = rest_of(site.source, group, topic)
        assert rest_of(site.target, group, topic) == left
        committed = offset_of(site.target, group, topic)
        assert committed is not None
        assert committed[1] == f"at {offset}"
        lengths.add(len(left))
    assert lengths == set(range(9))


def test_the_end_asks_for_the_databases(site: MoveSite) -> None:
    """A forgotten ``--db`` leaves its slots at the source, and the application records a loss that there was not."""
    write(site.source, create_topic(site.source), "a")
    result = command("move", *site.places, "--finish")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("dualwrite: --finish: give --db for each database with units of work, or --no-db if ")
    assert len(result.err.splitlines()) == 1
    assert site.run("--dry-run", "--json").json()["finished"] is False


def test_a_group_that_is_not_named_stays(site: MoveSite) -> None:
    topic = gaps(site)
    commit_offset(site.source, "one", topic, 3)
    commit_offset(site.source, "two", topic, 3)
    assert site.run("--finish", "--groups", "one").code == 0
    assert offset_of(site.target, "one", topic) is not None
    assert offset_of(site.target, "two", topic) is None
    assert site.run("--check").code == 0
    commit_offset(site.source, "three", topic, 3)
    assert "other offsets of group 'three'" in site.run("--check").err


def test_a_finished_move_is_not_made_again(site: MoveSite) -> None:
    topic = gaps(site)
    commit_offset(site.source, "group", topic, 3)
    assert site.run("--finish").code == 0
    commit_offset(site.target, "group", topic, 7)
    write(site.target, topic, "new")
    again = site.run("--finish")
    assert again.code == 0
    assert "finished: use the target" in again.out
    assert offset_of(site.target, "group", topic) == (7, "at 7"), "it is not set back"
    copying = site.run()
    assert copying.code == 2
    assert "this move is finished" in copying.err
    assert "exchange --from and --to" in copying.err
    assert site.run("--verify").code == 0, "records that came later do not count"


def test_an_open_transaction_is_refused(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    in_flight = open_transaction(site.source, topic, ["b"])
    result = site.run("--finish")
    assert result.code == 2
    assert f"topic {topic!r} has an open transaction at the source, so the move is not finished" in result.err
    in_flight.commit_transaction(PATIENCE)
    assert site.run("--finish").code == 0
    assert read(site.target, topic) == read(site.source, topic)


def member(cluster: MoveEnd, topic: str, protocol: str = "classic") -> Consumer:
    """A consumer that has joined the group ``group``."""
    config = {**quick(cluster.bootstrap_servers), "group.id": "group", "group.protocol": protocol}
    consumer = Consumer({**config, "enable.auto.commit": False})
    assigned: list[object] = []
    consumer.subscribe([topic], on_assign=lambda _, places: assigned.append(places))
    deadline = time.monotonic() + PATIENCE
    while not assigned:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    return consumer


@pytest.mark.slow_cases
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_group_with_members_is_refused(site: MoveSite, side: str, protocol: str) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    commit_offset(site.source, "group", topic, 0)
    assert site.run().code == 0
    write(site.source, topic, "b")
    consumer = member(site.source if side == "source" else site.target, topic, protocol)
    result = site.run("--finish")
    assert result.code == 2
    assert f"group 'group' has members at the {side}" in result.err
    assert len(read(site.target, topic)) == 1, "it says so before it copies what may take long"
    consumer.close()
    assert site.run("--finish").code == 0


def test_a_consumer_that_begins_during_the_last_copy_is_refused(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    commit_offset(site.source, "group", topic, 0)
    begun: list[Consumer] = []
    move = ClusterMove(*configs(site), MoveJob())
    with pytest.raises(InputError, match="group 'group' has members at the source"):
        move.finish(observe=lambda *_: begun.append(member(site.source, topic)))
    assert not move.is_finished
    begun[0].close()
    assert site.run("--finish").code == 0


def test_a_group_of_the_consumer_protocol_goes_on_at_the_target(site: MoveSite) -> None:
    topic = gaps(site)
    for cluster in (site.source, site.target):
        if cluster is site.target:
            assert site.run("--finish").code == 0
        config = {"group.id": "group", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
        consumer = Consumer({**quick(cluster.bootstrap_servers), "enable.auto.commit": False, **config})
        consumer.subscribe([topic])
        messages = consumer.consume(4, PATIENCE)
        consumer.commit(message=messages[-1], asynchronous=False)
        consumer.close()
        assert [message.value() for message in messages] == VALUES[cluster is site.target]


@pytest.mark.slow_cases
@pytest.mark.parametrize("metadata", ["", "AQAAAYvP5hVA", "with\0zero\0", "ünicode ☃"])
def test_the_metadata_of_an_offset_is_the_same(site: MoveSite, metadata: str) -> None:
    topic = gaps(site)
    place = DualwritePartition(topic, 0)
    with connected(configs(site)[0]) as cluster:
        call = commit_offsets("group", [CommittedOffset(topic, 0, 3, -1, metadata)])
        cluster.ask_group_coordinator("group", call, lambda answer: answer.topics[0].partitions[0].error_code)
    assert site.run("--finish").code == 0
    before, after = (stable_offsets(config, ["group"], [place])["group"][place] for config in configs(site))
    assert before is not None
    assert after is not None
    assert (before.metadata, after.metadata) == (metadata, metadata)


def test_many_groups_are_moved_in_several_transactions(site: MoveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.moving.target_writer.GROUPS_AT_ONCE", 2)
    topic = gaps(site)
    for number in range(5):
        commit_offset(site.source, f"group-{number}", topic, number)
    assert site.run("--finish", "--groups", "group-0,group-1,group-2,group-4").code == 0
    for number in range(5):
        if number == 3:
            assert offset_of(site.target, "group-3", topic) is None
        else:
            assert rest_of(site.target, f"group-{number}", topic) == rest_of(site.source, f"group-{number}", topic)
    assert site.run("--check").code == 0


def test_offsets_that_have_expired_at_the_source_are_no_change(site: MoveSite) -> None:
    topic = gaps(site)
    commit_offset(site.source, "group", topic, 3)
    assert site.run("--finish").code == 0
    admin = AdminClient(configs(site)[0])
    (deleted,) = admin.delete_consumer_groups(["group"]).values()
    deleted.result(PATIENCE)
    assert site.run("--check").code == 0
    commit_offset(site.source, "group", topic, 4)
    assert site.run("--check").code == 1


def test_offsets_of_an_open_transaction_are_refused(site: MoveSite) -> None:
    topic, other = create_topic(site.source), create_topic(site.source)
    write(site.source, topic, "a")
    in_flight = open_transaction(site.source, other, ["b"])
    consumer = Consumer({**quick(site.source.bootstrap_servers), "group.id": "group"})
    in_flight.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), PATIENCE)
    consumer.close()
    result = site.run("--finish", "--topics", topic)
    assert result.code == 2
    assert f"group 'group': an open transaction has offsets of {topic}-0" in result.err
    in_flight.commit_transaction(PATIENCE)
    assert site.run("--finish", "--topics", topic).code == 0
    assert rest_of(site.target, "group", topic) == []


def test_a_check_before_the_end_says_that_the_move_is_not_finished(site: MoveSite) -> None:
    gaps(site)
    assert site.run().code == 0
    checked = site.run("--check")
    assert (checked.code, checked.out.splitlines()[0]) == (0, "every record is copied")
    assert checked.out.splitlines()[1].startswith("not finished: applications still use the source, cluster ")


def test_a_forgotten_application_is_noticed_by_the_check(site: MoveSite) -> None:
    topic = gaps(site)
    commit_offset(site.source, "group", topic, 3)
    assert site.run("--finish").code == 0
    checked = site.run("--check")
    assert (checked.code, checked.out.splitlines()[0]) == (0, "the source has not changed since the move")
    write(site.source, topic, "late", "later")
    commit_offset(site.source, "group", topic, 4)
    checked = site.run("--check")
    assert (checked.code, checked.out) == (1, ""), "it does not say that the move is finished"
    assert (
        f"an application still uses the source: 2 records in {topic}-0, other offsets of group 'group'" in checked.err
    )
    as_json = site.run("--check", "--json")
    assert as_json.json()["changes"] == {"records": {f"{topic}-0": 2}, "groups": ["group"]}


def test_the_check_sees_an_open_transaction(site: MoveSite) -> None:
    topic = gaps(site)
    assert site.run("--finish").code == 0
    in_flight = open_transaction(site.source, topic, ["x"])
    checked = site.run("--check")
    assert checked.code == 1
    assert f"an open transaction in {topic}-0" in checked.err
    in_flight.abort_transaction(PATIENCE)
    assert site.run("--check").code == 0


@pytest.mark.slow
def test_topics_can_be_moved_one_after_the_other(site: MoveSite) -> None:
    first, second = gaps(site), gaps(site)
    for topic in (first, second):
        commit_offset(site.source, "group", topic, 3)
    assert site.run("--finish", "--topics", first).code == 0
    assert offset_of(site.target, "group", second) is None
    write(site.target, first, "new")
    write(site.source, second, "more")
    result = site.run("--finish", "--json").json()
    assert (result["copied"], result["groups"]) == ({second: 9}, ["group"])
    assert read(site.target, second) == read(site.source, second)
    assert rest_of(site.target, "group", second) == rest_of(site.source, "group", second)


@pytest.mark.slow
def test_the_way_back_copies_only_what_is_new(site: MoveSite) -> None:
    topic = gaps(site)
    commit_offset(site.source, "behind", topic, 4)
    assert site.run("--finish").code == 0
    fill(site.target, topic, 1)
    commit_offset(site.target, "ahead", topic, 15)
    result = site.back().run("--finish", "--verify", "--json")
    assert result.json()["copied"] == {topic: 12}
    assert result.code == 0
    assert read(site.source, topic) == read(site.target, topic)
    for group in ("behind", "ahead"):
        assert rest_of(site.source, group, topic) == rest_of(site.target, group, topic)
    assert site.back().run("--check").code == 0


@pytest.mark.slow
def test_a_move_there_and_back_and_there_again(site: MoveSite) -> None:
    topic = gaps(site)
    commit_offset(site.source, "group", topic, 4)
    assert site.run("--finish").code == 0
    write(site.target, topic, "second")
    assert site.back().run("--finish").code == 0
    write(site.source, topic, "third")
    commit_offset(site.source, "group", topic, 5)
    result = site.run("--finish", "--verify")
    assert (result.code, result.err) == (0, "")
    assert f"{topic}: 1 record copied" in result.out
    assert read(site.target, topic) == read(site.source, topic)
    assert rest_of(site.target, "group", topic) == rest_of(site.source, "group", topic)


def test_the_way_back_is_refused_if_the_source_has_changed(site: MoveSite) -> None:
    topic = gaps(site)
    assert site.run("--finish").code == 0
    write(site.source, topic, "forgotten")
    result = site.back().run()
    assert result.code == 2
    assert "a program writes there already" in result.err


def test_another_record_at_the_target_is_found_by_the_comparison(site: MoveSite) -> None:
    topic = gaps(site)
    assert site.run().code == 0
    admin = AdminClient(quick(site.target.bootstrap_servers))
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 3)]).values()
    deleted.result(PATIENCE)
    assert site.run("--verify").code == 0, "records that retention has deleted do not count"
    move = ClusterMove(*configs(site), MoveJob())
    (equal,) = move.compare()
    assert equal.is_equal
    assert equal.source[0] == len(read(site.target, topic)) < 8


def test_a_topic_from_which_records_are_deleted_meanwhile_is_compared_again(
    site: MoveSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = gaps(site)
    assert site.run().code == 0
    admin, left = AdminClient(configs(site)[1]), [1, 2]
    compare = move_module.compare_topic

    def after_a_deletion(*arguments: Any, **options: Any) -> Any:
        if left:
            (deleted,) = admin.delete_records([TopicPartition(topic, 0, left.pop(0))]).values()
            deleted.result(PATIENCE)
        return compare(*arguments, **options)

    monkeypatch.setattr(move_module, "compare_topic", after_a_deletion)
    (compared,) = ClusterMove(*configs(site), MoveJob()).compare()
    assert compared.is_equal
    assert (left, compared.source[0]) == ([], 6)


def test_a_difference_prevents_the_end(site: MoveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = gaps(site)
    assert site.run().code == 0
    move = ClusterMove(*configs(site), MoveJob())
    (comparison,) = move.compare()
    differing = type(comparison)(topic, 0, comparison.source, (7, "other"))
    monkeypatch.setattr(ClusterMove, "compare", lambda _: iter([differing]))
    with pytest.raises(InputError, match="the target has other records than the source"):
        move.finish(compares=True)
    assert not move.is_finished
    result = site.run("--verify")
    assert result.code == 1
    assert f"{topic}-0 DIFFERS: 8 records at the source" in result.out


def test_a_database_that_stays_silent_prevents_the_end(site: MoveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.cli.database.CONNECT_SECONDS", 0.3)
    topic = gaps(site)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"mysql+pymysql://me@127.0.0.1:{silent.getsockname()[1]}/x"
        code, out, err = site.run("--finish", "--db", url)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the database accepted no connection within 0.3 s (connect_timeout)" in err
    assert topic not in AdminClient(quick(site.target.bootstrap_servers)).list_topics(timeout=PATIENCE).topics
