"""``dualwrite move``: records are at the target once, as they are at the source."""

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from kafka import KafkaProducer

from dualwrite.cli import move as command_line
from tests.support.moving.move_site import (
    MoveSite,
    abort,
    create_topic,
    delete_topic,
    fill,
    open_transaction,
    read,
    topics_of,
    write,
)
from tests.support.peer_clients.kafka_helpers import PATIENCE, quick


def test_records_arrive_once_with_keys_headers_timestamps_and_partitions(site: MoveSite) -> None:
    topic = create_topic(site.source, partitions=3)
    fill(site.source, topic, 3)
    result = site.run()
    assert (result.code, result.err) == (0, "")
    assert f"{topic}: 36 records copied" in result.out
    assert "not finished: applications still use the source" in result.out
    moved = read(site.target, topic, 3)
    assert len(moved) == 36
    assert moved == read(site.source, topic, 3)


def test_a_second_run_copies_only_what_has_come_since(site: MoveSite) -> None:
    topic = create_topic(site.source)
    fill(site.source, topic, 1)
    assert site.run().code == 0
    again = site.run("--json").json()
    assert again["copied"] == {topic: 0}
    write(site.source, topic, "late")
    assert site.run("--json").json()["copied"] == {topic: 1}
    assert read(site.target, topic) == read(site.source, topic)


def test_a_dry_run_shows_the_topics_and_changes_nothing(site: MoveSite) -> None:
    topic = create_topic(site.source, partitions=2, config={"retention.ms": "-1"})
    write(site.source, topic, "a")
    result = site.run("--dry-run")
    assert result.code == 0
    assert result.out.splitlines()[1].split() == [topic, "2", "to", "be", "created", "retention.ms=-1"]
    assert "nothing was changed" in result.out
    assert [name for name in topics_of(site.target) if not name.startswith("__")] == []
    as_json = site.run("--dry-run", "--json").json()
    assert as_json["topics"][topic]["preparation"] == "create"
    assert as_json["finished"] is False


def test_only_named_topics_are_moved(site: MoveSite) -> None:
    first, second = create_topic(site.source), create_topic(site.source)
    write(site.source, first, "a")
    write(site.source, second, "b")
    assert site.run("--topics", first, "--json").json()["copied"] == {first: 1}
    assert second not in topics_of(site.target)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--topics", "missing"), "the source cluster has no topic 'missing'"),
        (("--topics", "a,,b"), "--topics: name one"),
        (("--topics", "__consumer_offsets"), "is internal"),
        (("--finish", "--groups", "missing"), "--groups: group 'missing' has no offsets in these topics"),
        (("--dry-run", "--finish"), "--dry-run and --finish: use one of them"),
        (("--dry-run", "--verify"), "--dry-run and --verify: use one of them"),
        (("--db", "sqlite:///x.db"), "--db: only --finish"),
        (
            ("--finish", "--no-db", "--db", "sqlite:///x.db"),
            "--finish: give --db for each database with units of work, or",
        ),
        (("--no-db",), "--no-db: only --finish"),
        (("--groups", "a"), "--groups: only --finish"),
        (("--replication-factor", "0"), "--replication-factor 0"),
        (("--from-config", "/nowhere/file"), "--from-config /nowhere/file: No such file"),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(site: MoveSite, words: tuple[str, ...], message: str) -> None:
    create_topic(site.source)
    result = site.run(*words)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_progress_is_one_line_for_many_records(site: MoveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "PROGRESS_EVERY", 10)
    first, second = sorted(create_topic(site.source) for _ in range(2))
    write(site.source, first, *("x" for _ in range(25)))
    write(site.source, second, *("x" for _ in range(9)))
    result = site.run()
    assert result.code == 0
    assert result.err.splitlines()[-1] == f"{first}: 25 records"
    assert second not in result.err


@pytest.mark.slow
@pytest.mark.parametrize("side", ["--from", "--to"])
def test_a_cluster_that_does_not_answer_is_named_in_one_line(site: MoveSite, side: str) -> None:
    result = site.run(side, "127.0.0.1:1")
    assert (result.code, result.out) == (2, "")
    assert "127.0.0.1:1" in result.err
    assert len(result.err.splitlines()) == 1


def test_a_cluster_is_not_moved_to_itself(site: MoveSite) -> None:
    result = MoveSite(site.source, site.source).run()
    assert result.code == 2
    assert "are the same cluster" in result.err


def test_a_topic_with_records_at_the_target_is_refused(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    create_topic(site.target, topic)
    write(site.target, topic, "other")
    before = read(site.target, topic)
    for words in ((), ("--dry-run",), ("--finish",)):
        result = site.run(*words)
        assert result.code == 2
        assert f"topic {topic!r} is at the target already, with records that this move has not written" in result.err
    assert read(site.target, topic) == before


def test_every_topic_is_looked_at_before_the_first_one_is_created(site: MoveSite) -> None:
    first, second = create_topic(site.source, "a-new-one"), create_topic(site.source, "b-not-mine")
    create_topic(site.target, second)
    write(site.target, second, "other")
    assert site.run().code == 2
    assert first not in topics_of(site.target)


def test_an_empty_topic_at_the_target_is_used(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    create_topic(site.target, topic)
    abort(site.target, topic, "aborted")
    assert site.run().code == 0
    assert read(site.target, topic) == read(site.source, topic)


def test_a_program_that_writes_to_the_target_before_the_end_is_noticed(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    assert site.run().code == 0
    write(site.target, topic, "too early")
    write(site.source, topic, "b")
    result = site.run()
    assert result.code == 2
    assert "a program writes there already" in result.err


def test_a_topic_with_more_partitions_at_the_target_is_refused(site: MoveSite) -> None:
    topic = create_topic(site.source)
    create_topic(site.target, topic, partitions=2)
    result = site.run()
    assert result.code == 2
    assert "has 2 partitions at the target and 1 at the source" in result.err


def test_partitions_that_are_added_at_the_source_are_added_at_the_target(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    assert site.run().code == 0
    admin = AdminClient(quick(site.source.bootstrap_servers))
    (added,) = admin.create_partitions([NewPartitions(topic, 3)]).values()
    added.result(PATIENCE)
    write(site.source, topic, "b", partition=2)
    assert "needs more partitions" in site.run("--dry-run").out
    assert site.run().code == 0
    assert read(site.target, topic, 3) == read(site.source, topic, 3)


def test_a_topic_that_is_created_again_at_the_target_is_copied_again(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a", "b")
    assert site.run().code == 0
    delete_topic(site.target, topic)
    assert site.run("--json").json()["copied"] == {topic: 2}
    assert read(site.target, topic) == read(site.source, topic)


def test_a_topic_that_is_created_again_at_the_source_is_another_topic(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    assert site.run().code == 0
    delete_topic(site.source, topic)
    create_topic(site.source, topic)
    write(site.source, topic, "another")
    result = site.run()
    assert result.code == 2
    assert "is at the target already" in result.err


def test_the_records_of_an_open_transaction_wait_until_it_has_ended(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    in_flight = open_transaction(site.source, topic, ["b"])
    write(site.source, topic, "c")
    result = site.run()
    assert result.code == 0
    assert f"{topic}: 1 record copied" in result.out
    assert f"topic {topic} has an open transaction at the source" in result.err
    in_flight.commit_transaction(PATIENCE)
    assert site.run("--json").json()["copied"] == {topic: 2}
    assert read(site.target, topic) == read(site.source, topic)


def test_records_that_were_deleted_are_not_needed(site: MoveSite) -> None:
    topic = create_topic(site.source)
    fill(site.source, topic, 1)
    assert site.run().code == 0
    write(site.source, topic, "b", "c", "d")
    admin = AdminClient(quick(site.source.bootstrap_servers))
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 24)]).values()
    deleted.result(PATIENCE)
    assert site.run("--verify").code == 0
    kept = read(site.source, topic)
    assert 0 < len(kept) < 6
    assert read(site.target, topic)[-len(kept) :] == kept


def test_a_cluster_without_topics_is_named(site: MoveSite) -> None:
    result = site.run()
    assert result.code == 2
    assert "the source cluster has no topic to move" in result.err


def test_a_record_that_librdkafka_cannot_write_is_named(site: MoveSite) -> None:
    topic = create_topic(site.source)
    producer = KafkaProducer(bootstrap_servers=site.source.bootstrap_servers)
    producer.send(topic, b"from 1970", timestamp_ms=0)
    producer.close()
    assert [record.timestamp for record in read(site.source, topic)] == [0]
    result = site.run()
    assert result.code == 2
    assert f"topic {topic!r}, partition 0, offset 0: the record has the timestamp 0" in result.err
