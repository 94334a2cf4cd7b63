"""``dualwrite move`` is not alone: programs that write to the target too early, topics that are created again, other
movers, and clusters that have lost records."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.protocol.requests import VersionedRequest
from dualwrite.errors import FencedError, InputError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import ProducerIdentity
from dualwrite.moving import group_commits, target_writer
from dualwrite.moving.journal import TopicPair, journal_topic
from dualwrite.moving.move import ClusterMove
from dualwrite.moving.plan import MoveJob
from dualwrite.moving.records import MovedRecord
from dualwrite.moving.target_writer import MoverProducer
from dualwrite.testing.kafka import KafkaBroker
from tests.support.forked import ForkedKafkaBroker
from tests.support.moving.move_site import (
    MoveEnd,
    MoveSite,
    abort,
    commit_offset,
    create_topic,
    delete_topic,
    offset_of,
    open_transaction,
    read,
    write,
)
from tests.support.peer_clients.kafka_helpers import PATIENCE, quick


def move_of(site: MoveSite) -> ClusterMove:
    return ClusterMove(*(quick(each.bootstrap_servers) for each in (site.source, site.target)), MoveJob())


@pytest.fixture
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Kafka transaction of the mover has two records of those below."""
    monkeypatch.setattr("dualwrite.moving.copying.MOST_BYTES", 60)


def numbered(site: MoveSite, count: int = 6) -> str:
    topic = create_topic(site.source)
    write(site.source, topic, *(f"record {number}" for number in range(count)), key=None)
    return topic


def plain(cluster: MoveEnd, topic: str, value: str) -> None:
    """A record outside of a transaction."""
    producer = Producer(quick(cluster.bootstrap_servers))
    producer.produce(topic, value=value, partition=0)
    assert producer.flush(PATIENCE) == 0


def at_the(moment: int, act: Callable[[], object]) -> Callable[[str, int], None]:
    """An observer that calls ``act`` after the mover's ``moment``-th transaction."""
    seen: list[int] = []

    def observe(_: str, records: int) -> None:
        seen.append(records)
        if len(seen) == moment:
            act()

    return observe


@pytest.mark.slow_cases
@pytest.mark.usefixtures("small_transactions")
@pytest.mark.parametrize("write_foreign", [plain, write])
def test_a_record_of_another_program_never_gets_between_the_moved_ones(
    site: MoveSite, write_foreign: Callable[[MoveEnd, str, str], None]
) -> None:
    topic = numbered(site)
    with pytest.raises(KafkaUnavailableError, match=r"partition 0 has something there that this move has not written"):
        move_of(site).copy(at_the(1, lambda: write_foreign(site.target, topic, "too early")))
    assert [record.value for record in read(site.target, topic)][-1] == b"too early"
    for words in ((), ("--dry-run",), ("--finish",)):
        result = site.run(*words)
        assert result.code == 2
        assert "which this move has not written: a program writes there already" in result.err
    delete_topic(site.target, topic)
    assert site.run("--finish", "--verify").code == 0
    assert read(site.target, topic) == read(site.source, topic)


@pytest.mark.usefixtures("small_transactions")
def test_what_no_reader_sees_is_in_the_way_until_the_next_run(site: MoveSite) -> None:
    topic = numbered(site)
    commit_offset(site.source, "group", topic, 3)
    with pytest.raises(KafkaUnavailableError, match="Run the command again"):
        move_of(site).copy(at_the(2, lambda: abort(site.target, topic, "never seen")))
    assert site.run("--finish", "--verify").code == 0
    assert read(site.target, topic) == read(site.source, topic)


def in_the_air(cluster: MoveEnd, topic: str, value: str) -> Producer:
    """A record in a transaction that is still open."""
    return open_transaction(cluster, topic, [value])


@pytest.mark.slow_cases
@pytest.mark.parametrize(("act", "seen"), [(plain, "1 record"), (write, "1 record"), (in_the_air, "open transaction")])
def test_what_a_forgotten_application_writes_during_the_last_copy_prevents_the_end(
    site: MoveSite, act: Callable[[MoveEnd, str, str], Producer | None], seen: str
) -> None:
    topic = numbered(site)
    commit_offset(site.source, "group", topic, 3)
    left: list[Producer | None] = []
    with pytest.raises(InputError, match=seen):
        move_of(site).finish(observe=at_the(1, lambda: left.append(act(site.source, topic, "late"))))
    assert offset_of(site.target, "group", topic) is None
    assert not move_of(site).is_finished
    for producer in filter(None, left):
        producer.commit_transaction(PATIENCE)
    assert site.run("--finish", "--verify").code == 0
    assert read(site.target, topic)[-1].value == b"late"


def test_an_offset_whose_group_is_not_in_the_transaction_is_no_end(
    site: MoveSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that ends would not end it, and no consumer would see it."""
    topic, add_offsets = numbered(site), group_commits.add_offsets_to_txn
    commit_offset(site.source, "group", topic, 3)

    def with_an_epoch_before(transactional_id: str, producer: ProducerIdentity, group: str) -> VersionedRequest:
        return add_offsets(transactional_id, ProducerIdentity(producer.producer_id, producer.epoch - 1), group)

    with monkeypatch.context() as patch:
        patch.setattr(group_commits, "add_offsets_to_txn", with_an_epoch_before)
        with pytest.raises(FencedError):
            move_of(site).finish()
    assert not move_of(site).is_finished
    assert site.run("--finish").code == 0
    assert offset_of(site.target, "group", topic) == (3, "at 3")


def test_an_offset_that_the_group_refuses_is_no_end(site: MoveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that has begun at the target is the group's only member that may commit there."""
    topic, commit = numbered(site), group_commits.txn_offset_commit
    commit_offset(site.source, "group", topic, 3)

    def as_a_member_that_has_left(*arguments: Any, **options: Any) -> VersionedRequest:
        *others, member = arguments
        return commit(*others, member._replace(generation_id=7, member_id="left"), **options)

    with monkeypatch.context() as patch:
        patch.setattr(group_commits, "txn_offset_commit", as_a_member_that_has_left)
        with pytest.raises(KafkaRefusedError, match=f"TxnOffsetCommit of group group .*{topic}-0.*ILLEGAL_GENERATION"):
            move_of(site).finish()
    assert not move_of(site).is_finished
    assert site.run("--finish").code == 0
    assert offset_of(site.target, "group", topic) == (3, "at 3")


class HastyProducer(Producer):
    """Its time is up before anything is acknowledged."""

    def poll(self, *_: Any, **__: Any) -> int:
        return 0

    def flush(self, *_: Any, **__: Any) -> int:
        return len(self)


def test_records_that_are_not_acknowledged_in_time_are_not_taken_for_copied(
    site: MoveSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = numbered(site)
    with monkeypatch.context() as patch:
        patch.setattr(target_writer, "Producer", HastyProducer)
        with pytest.raises(KafkaUnavailableError, match="6 records were not acknowledged in 60 s"):
            move_of(site).copy()
    assert site.run("--json").json()["copied"] == {topic: 6}
    assert read(site.target, topic) == read(site.source, topic)


def test_a_mover_reads_the_journal_anew_before_it_copies(site: MoveSite) -> None:
    """Another one may have copied something since it was asked for its plan."""
    topic, move = numbered(site), move_of(site)
    assert site.run().code == 0
    assert not move.is_finished
    write(site.source, topic, "late")
    assert site.run().code == 0
    assert move.copy().copied == {topic: 0}
    assert read(site.target, topic) == read(site.source, topic)


@pytest.mark.usefixtures("small_transactions")
def test_a_record_of_another_program_behind_the_last_one_prevents_the_end(site: MoveSite) -> None:
    topic = numbered(site)
    commit_offset(site.source, "group", topic, 3)
    with pytest.raises(InputError, match="a program writes there already"):
        move_of(site).finish(observe=at_the(3, lambda: write(site.target, topic, "too early")))
    assert offset_of(site.target, "group", topic) is None
    assert not move_of(site).is_finished


def test_an_open_transaction_of_another_program_is_named(site: MoveSite) -> None:
    topic = numbered(site)
    create_topic(site.target, topic)
    other = open_transaction(site.target, topic, ["undecided"])
    result = site.run()
    assert result.code == 2
    assert f"topic {topic!r} has an open transaction at the target" in result.err
    other.abort_transaction(PATIENCE)
    assert site.run().code == 0


def test_a_second_mover_fences_the_first_one(site: MoveSite) -> None:
    topic = numbered(site, 1)
    create_topic(site.target, topic)
    move = move_of(site)
    first = MoverProducer(quick(site.target.bootstrap_servers), move.source_id)
    assert site.run("--json").json()["copied"] == {topic: 1}
    record = MovedRecord(0, 1, 1_700_000_000_000, None, b"again", ())
    with pytest.raises(FencedError):
        first.write(TopicPair(topic, "", ""), [record], {0: 2})
    first.close()
    assert read(site.target, topic) == read(site.source, topic)


@pytest.mark.usefixtures("small_transactions")
def test_two_movers_at_once_move_each_record_once(site: MoveSite) -> None:
    topic = numbered(site)
    with pytest.raises(FencedError, match="another `dualwrite move` from the same source has begun"):
        move_of(site).copy(at_the(1, lambda: site.run()))
    assert read(site.target, topic) == read(site.source, topic)


@pytest.mark.usefixtures("small_transactions")
def test_a_mover_that_was_overtaken_does_not_set_back_the_groups(site: MoveSite) -> None:
    topic = numbered(site)
    commit_offset(site.source, "group", topic, 1)

    def overtake() -> None:
        assert site.run("--finish").code == 0
        commit_offset(site.target, "group", topic, 5)

    with pytest.raises(FencedError):
        move_of(site).finish(observe=at_the(3, overtake))
    assert offset_of(site.target, "group", topic) == (5, "at 5")


def test_a_mover_that_is_overtaken_at_the_groups_adds_nothing_to_the_transaction_of_the_other(
    site: MoveSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, move, others = numbered(site), move_of(site), list[MoverProducer]()
    commit_offset(site.source, "group", topic, 1)
    identity_of = target_writer.identity_of

    def overtaken(kafka: Mapping[str, Any], transactional_id: str) -> ProducerIdentity:
        others.append(MoverProducer(quick(site.target.bootstrap_servers), move.source_id))
        return identity_of(kafka, transactional_id)

    monkeypatch.setattr(target_writer, "identity_of", overtaken)
    with pytest.raises(FencedError):
        move.finish()
    (other,) = others
    record = MovedRecord(0, 7, 1_700_000_000_000, None, b"other", ())
    other.write(TopicPair(topic, "", ""), [record], {0: 7})
    other.close()
    assert offset_of(site.target, "group", topic) is None


def test_a_copy_that_fails_leaves_no_transaction_open(site: MoveSite) -> None:
    topic = numbered(site, 1)
    create_topic(site.target, topic, config={"cleanup.policy": "compact"})
    assert site.run().code == 2, "it refuses records without a key"
    with closing(ControlPlane(quick(site.target.bootstrap_servers))) as control:
        found = control.describe_transaction(journal_topic(move_of(site).source_id))
    assert found is not None
    assert found.state in ("PrepareAbort", "CompleteAbort")


@pytest.mark.usefixtures("small_transactions")
def test_movers_of_both_directions_do_not_copy_the_same_records_back_and_forth(site: MoveSite) -> None:
    topic = numbered(site)
    assert site.run().code == 0
    write(site.source, topic, "late 1", "late 2", "late 3", "late 4", key=None)
    said: list[str] = []
    move_of(site).copy(at_the(1, lambda: said.append(site.back().run().err)))
    assert "which this move has not written" in said[0]
    assert read(site.target, topic) == read(site.source, topic)
    assert len(read(site.target, topic)) == 10


def test_a_topic_that_was_created_again_in_both_clusters_is_moved_again(site: MoveSite) -> None:
    topic = numbered(site)
    assert site.run("--finish").code == 0
    delete_topic(site.target, topic)
    delete_topic(site.source, topic)
    create_topic(site.source, topic)
    write(site.source, topic, "another")
    commit_offset(site.source, "group", topic, 1)
    result = site.run("--finish", "--verify")
    assert (result.code, result.err) == (0, "")
    assert read(site.target, topic) == read(site.source, topic)
    assert offset_of(site.target, "group", topic) == (1, "at 1")


def test_a_topic_that_the_target_has_lost_after_the_end_is_moved_again(site: MoveSite) -> None:
    topic = numbered(site)
    assert site.run("--finish").code == 0
    delete_topic(site.target, topic)
    assert site.run("--finish").code == 0
    assert read(site.target, topic) == read(site.source, topic)


@pytest.mark.slow_cases
@pytest.mark.parametrize("lost", ["source", "target"])
def test_a_cluster_that_has_lost_moved_records_is_named(tmp_path: Path, lost: str) -> None:
    """A backup is restored: what is written since gets the offsets that the journal knows already."""
    with ForkedKafkaBroker(tmp_path / "source") as source, ForkedKafkaBroker(tmp_path / "target") as target:
        site = MoveSite(source, target)
        topic = numbered(site)
        assert site.run().code == 0
        broker, directory = (source, tmp_path / "source") if lost == "source" else (target, tmp_path / "target")
        broker.stop()
        shutil.copytree(directory, tmp_path / "backup")
        broker.start()
        write(source, topic, "late")
        assert site.run().code == 0
        journal = read(target, journal_topic(move_of(site).source_id))
        broker.stop()
        shutil.rmtree(directory)
        (tmp_path / "backup").rename(directory)
        broker.start()
        if lost == "target":  # its journal was elsewhere, as the leader of another partition is
            restore(target, site, journal[-1].value)
        result = site.run("--finish")
        assert result.code == 2
        assert (
            f"topic {topic!r}, partition 0: the {lost} ends at offset 7, and had records up to offset 8" in result.err
        )


def restore(target: KafkaBroker, site: MoveSite, value: bytes | None) -> None:
    producer = Producer(quick(target.bootstrap_servers))
    producer.produce(journal_topic(move_of(site).source_id), value=value)
    assert producer.flush(PATIENCE) == 0
