"""``dualwrite move``: what the settings of topics and of the two clusters do to the records."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer

from dualwrite.admin.definitions import set_topic_settings, topic_definitions
from dualwrite.moving.cluster_admin import MoveAdmin
from dualwrite.moving.journal import PREFIX
from dualwrite.moving.move import ClusterMove
from dualwrite.moving.plan import MoveJob
from tests.support.forked import ForkedKafkaBroker
from tests.support.moving.move_site import MoveEnd, MoveSite, create_topic, read, topics_of, write
from tests.support.peer_clients.kafka_helpers import PATIENCE


def config_of(cluster: MoveEnd) -> dict[str, str]:
    return {"bootstrap.servers": cluster.bootstrap_servers}


def own_settings(cluster: MoveEnd, topic: str) -> Mapping[str, str | None]:
    """The topic's settings that are not defaults."""
    (found,) = topic_definitions(config_of(cluster), [topic]).values()
    return {entry.name: entry.value for entry in found.settings if entry.is_own}


def produce(cluster: MoveEnd, topic: str, number: int, size: int, **settings: object) -> None:
    """``number`` records of ``size`` bytes that compress well."""
    producer = Producer({**config_of(cluster), **settings})
    for _ in range(number):
        producer.produce(topic, value=b"x" * size, partition=0)
    assert producer.flush(PATIENCE) == 0


def test_the_settings_of_the_topic_are_moved(site: MoveSite) -> None:
    config = {"cleanup.policy": "compact", "max.message.bytes": "123456", "retention.ms": "-1"}
    topic = create_topic(site.source, config=config)
    assert site.run().code == 0
    assert own_settings(site.target, topic) == config


def test_what_the_source_keeps_by_default_is_kept_at_the_target(tmp_path: Path) -> None:
    kept = {"log.retention.ms": "-1", "log.cleanup.policy": "delete", "log.segment.bytes": "2000000"}
    with ForkedKafkaBroker(tmp_path / "a", config=kept) as source, ForkedKafkaBroker(tmp_path / "b") as target:
        site, topic = MoveSite(source, target), source.create_topic()
        write(source, topic, "from 2023")
        assert "retention.ms=-1" in site.run("--dry-run").out
        result = site.run("--finish", "--verify")
        assert (result.code, result.err) == (0, "")
        assert own_settings(target, topic) == {"retention.ms": "-1"}, "only what decides about records, and differs"
        assert read(target, topic) == read(source, topic)


def test_the_journal_is_kept_whatever_the_target_does_by_default(tmp_path: Path) -> None:
    """Without its records the next run would not know what is at the target."""
    defaults = {"log.cleanup.policy": "compact", "log.retention.ms": "1000", "log.retention.bytes": "1000"}
    with ForkedKafkaBroker(tmp_path / "a") as source, ForkedKafkaBroker(tmp_path / "b", config=defaults) as target:
        site, topic = MoveSite(source, target), create_topic(source)
        write(source, topic, "a")
        assert (site.run().code, site.run("--json").json()["copied"]) == (0, {topic: 0})
        (journal,) = (name for name in topics_of(target) if name.startswith(PREFIX))
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        assert kept.items() <= own_settings(target, journal).items()
        largest = own_settings(target, journal)["max.message.bytes"]
        assert int(largest or 0) >= 16_000_000, "the end of a move is one record, which names all topics"


def test_a_topic_that_keeps_other_records_at_the_target_is_named(site: MoveSite) -> None:
    topic = create_topic(site.source)
    create_topic(site.target, topic, config={"retention.ms": "1000000000000", "retention.bytes": "-1"})
    message = f"topic {topic}: retention.ms is -1 at the source and 1000000000000 at the target"
    for words in (("--dry-run",), (), ("--finish",)):
        result = site.run(*words)
        assert result.code == 0
        assert message in result.err
    back = site.back().run("--dry-run", "--json").json()
    assert back["topics"][topic]["differing"] == {"retention.ms": ["1000000000000", "-1"]}


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_topic_that_one_cluster_compacts_is_compared_by_the_last_record_of_each_key(
    site: MoveSite, side: str
) -> None:
    compacted, plain = {"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}
    topic = create_topic(site.source, config=compacted if side == "source" else plain)
    create_topic(site.target, topic, config=compacted if side == "target" else plain)
    write(site.source, topic, "a", "b", key="k")
    assert site.run().code == 0
    (found,) = ClusterMove(config_of(site.source), config_of(site.target), MoveJob()).compare()
    assert (found.is_equal, found.source[0]) == (True, 1)


def test_times_of_the_broker_are_kept_and_the_setting_follows_at_the_end(site: MoveSite) -> None:
    setting = {"message.timestamp.type": "LogAppendTime"}
    topic = create_topic(site.source, config=setting)
    write(site.source, topic, "a", "b")
    assert site.run().code == 0
    assert own_settings(site.target, topic)["message.timestamp.type"] == "CreateTime"
    assert read(site.target, topic) == read(site.source, topic)
    assert site.run("--finish").code == 0
    assert own_settings(site.target, topic)["message.timestamp.type"] == "LogAppendTime"
    assert read(site.target, topic) == read(site.source, topic)


def test_a_broker_that_still_gives_records_its_own_time_gets_none(
    site: MoveSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a")
    create_topic(site.target, topic, config={"message.timestamp.type": "LogAppendTime"})
    with monkeypatch.context() as slow:
        slow.setattr(MoveAdmin, "set_timestamp_type", lambda *_: None)
        result = site.run()
        assert result.code == 2
        assert "it does not know yet that the topic's message.timestamp.type is CreateTime" in result.err
    assert read(site.target, topic) == []
    assert site.run().code == 0
    assert read(site.target, topic) == read(site.source, topic)


def test_batches_are_as_small_as_the_topic_wants_them(site: MoveSite) -> None:
    topic = create_topic(site.source, config={"max.message.bytes": "10000"})
    produce(site.source, topic, 200, 1_000, **{"batch.size": 5_000})
    assert site.run("--json").json()["copied"] == {topic: 200}
    assert read(site.target, topic) == read(site.source, topic)


def test_a_record_that_is_too_large_without_compression_is_one_line(site: MoveSite, tmp_path: Path) -> None:
    topic = create_topic(site.source)
    produce(site.source, topic, 1, 3_000_000, **{"compression.type": "gzip", "message.max.bytes": 4_000_000})
    result = site.run()
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert f"topic {topic!r}: a record is larger than the target allows" in result.err
    settings = tmp_path / "to.properties"
    settings.write_text("compression.type=zstd\n")
    assert site.run("--to-config", str(settings)).code == 0
    assert read(site.target, topic) == read(site.source, topic)


def test_a_record_without_a_key_in_a_compacted_topic_is_one_line(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "a", key=None)
    create_topic(site.target, topic, config={"cleanup.policy": "compact"})
    result = site.run()
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert f"topic {topic!r}: the target refuses a record without a key" in result.err
    set_topic_settings(config_of(site.target), topic, {"cleanup.policy": "delete"})
    assert site.run().code == 0
    assert read(site.target, topic) == read(site.source, topic)


def test_a_time_that_the_target_refuses_is_one_line(site: MoveSite) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, "from 2023")
    create_topic(site.target, topic, config={"message.timestamp.before.max.ms": "1000"})
    result = site.run()
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert "the target refuses the time of a record. Raise message.timestamp.before.max.ms" in result.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("batch.size=many", "batch.size"),
        ("acks=1", "acks"),
        ("transaction.timeout.ms=900000000", "transaction.timeout.ms"),
        ("nonsense=1", "nonsense: there is no such setting"),
        ("no value", "'no' is not followed by =VALUE"),
    ],
)
def test_a_setting_that_a_mover_cannot_have_is_one_line(
    site: MoveSite, tmp_path: Path, line: str, message: str
) -> None:
    write(site.source, create_topic(site.source), "a")
    settings = tmp_path / "to.properties"
    settings.write_text(f"{line}\n")
    result = site.run("--to-config", str(settings))
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert message in result.err


@pytest.mark.slow
def test_topics_with_two_underscores_are_named_and_moved_on_request(site: MoveSite) -> None:
    create_topic(site.source)
    heartbeat = create_topic(site.source, "__debezium-heartbeat.shop")
    write(site.source, heartbeat, "a")
    for words in (("--dry-run",), (), ("--finish",)):
        result = site.run(*words)
        assert result.code == 0
        assert f"not moved, because they begin with two underscores: {heartbeat}; --topics moves them" in result.err
    assert heartbeat not in topics_of(site.target)
    result = site.run("--finish", "--topics", heartbeat)
    assert (result.code, result.err) == (0, "")
    assert read(site.target, heartbeat) == read(site.source, heartbeat)


def test_the_records_of_one_transaction_have_few_bytes(site: MoveSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.moving.copying.MOST_BYTES", 5_000)
    topic = create_topic(site.source)
    produce(site.source, topic, 12, 1_000)
    seen: list[int] = []
    move = ClusterMove(config_of(site.source), config_of(site.target), MoveJob())
    move.copy(lambda _, records: seen.append(records))
    assert seen == [5, 5, 2]
    assert read(site.target, topic) == read(site.source, topic)


def test_a_queue_that_is_full_is_waited_for(site: MoveSite, tmp_path: Path) -> None:
    topic = create_topic(site.source)
    write(site.source, topic, *map(str, range(20)))
    settings = tmp_path / "to.properties"
    settings.write_text("queue.buffering.max.messages=2\n")
    result = site.run("--finish", "--verify", "--to-config", str(settings))
    assert (result.code, result.err) == (0, "")
    assert read(site.target, topic) == read(site.source, topic)
