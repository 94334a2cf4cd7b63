"""From the bundled broker to Apache Kafka 4.4.0 and back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert

from dualwrite.admin.connecting import connected
from dualwrite.admin.definitions import topic_definitions
from dualwrite.client.protocol.group_requests import commit_offsets
from dualwrite.client.protocol.requests import CommittedOffset
from dualwrite.coordinator.dual_write import DualWrite
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.coordinator.event_table import events, ready_engine, stored_values
from tests.support.forked import ForkedKafkaBroker
from tests.support.moving.dying_mover import COPY_STEPS, FINISH_STEPS
from tests.support.moving.killed_moves import kill_while_copying, kill_while_finishing
from tests.support.moving.move_site import MoveSite, commit_offset, create_topic, fill, offset_of, read, rest_of

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

# The records are years old: without the lag Apache Kafka may compact them before the test compares them.
COMPACTED = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(100 * 365 * 24 * 3600 * 1000)}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def outward(tmp_path: Path, kafka: ApacheKafka) -> Iterator[MoveSite]:
    """From a bundled broker of the test's own to Apache Kafka."""
    with ForkedKafkaBroker(tmp_path / "source") as source:
        yield MoveSite(source, kafka)


@pytest.mark.parametrize("step", COPY_STEPS)
@pytest.mark.crash
def test_a_mover_to_apache_kafka_that_was_killed_goes_on(outward: MoveSite, step: str) -> None:
    kill_while_copying(outward, step, 1)


@pytest.mark.parametrize("step", ["before commit", "after commit", *FINISH_STEPS])
@pytest.mark.crash
def test_the_end_of_a_move_to_apache_kafka_that_was_killed_is_finished_later(
    outward: MoveSite, tmp_path: Path, step: str
) -> None:
    kill_while_finishing(outward, f"sqlite:///{tmp_path / 'app.db'}", step, two_phase="resume")


@pytest.mark.parametrize("step", COPY_STEPS[1:])
@pytest.mark.crash
def test_a_mover_from_apache_kafka_that_was_killed_goes_on(kafka: ApacheKafka, tmp_path: Path, step: str) -> None:
    with ForkedKafkaBroker(tmp_path / "target") as target:
        kill_while_copying(MoveSite(kafka, target), step, 1, names_topics=True)


def test_an_application_moves_to_apache_kafka_and_back(outward: MoveSite, tmp_path: Path) -> None:
    topic = create_topic(outward.source, partitions=2)
    stamped = create_topic(outward.source, config={"message.timestamp.type": "LogAppendTime"})
    compacted = create_topic(outward.source, config=COMPACTED)
    fill(outward.source, topic, 2)
    fill(outward.source, stamped, 1)
    fill(outward.source, compacted, 1)
    for offset in (0, 3, 4, 15):
        commit_offset(outward.source, f"group-{offset}", topic, offset)
    url = f"sqlite:///{tmp_path / 'app.db'}"
    engine = ready_engine(url)
    bundled, apache = ({"bootstrap.servers": each.bootstrap_servers} for each in (outward.source, outward.target))

    def work(dw: DualWrite, *values: str) -> None:
        for value in values:
            with dw.transaction() as tx:
                tx.execute(insert(events), {"value": value})
                tx.produce(topic, value=value, partition=1)

    with DualWrite(engine, bundled, application="app") as dw:
        work(dw, "first", "second")
    assert outward.run().code == 0, "while applications run"
    result = outward.run("--finish", "--verify", "--db", url)
    assert (result.code, result.err) == (0, "")
    for name, partitions in ((topic, 2), (stamped, 1), (compacted, 1)):
        assert read(outward.target, name, partitions) == read(outward.source, name, partitions)
    for offset in (0, 3, 4, 15):
        group = f"group-{offset}"
        assert rest_of(outward.target, group, topic) == rest_of(outward.source, group, topic)
        committed = offset_of(outward.target, group, topic)
        assert committed is not None
        assert committed[1] == f"at {offset}"
    with DualWrite(engine, apache, application="app", two_phase="resume", replay=True) as dw:
        work(dw, "third", "fourth")
        assert list(dw.outcomes()) == []
    assert outward.run("--check").code == 0
    names = ("--topics", f"{topic},{stamped},{compacted}")
    back = outward.back().run("--finish", "--verify", "--db", url, *names)
    assert (back.code, back.err) == (0, "")
    assert f"{topic}: 2 records copied" in back.out
    with DualWrite(engine, bundled, application="app") as dw:
        work(dw, "fifth")
        assert list(dw.outcomes()) == []
    values = ["first", "second", "third", "fourth", "fifth"]
    assert [str(record.value, "utf-8") for record in read(outward.source, topic, 2)[-5:] if record.value] == values
    assert sorted(stored_values(engine)) == sorted(values)
    assert read(outward.source, stamped) == read(outward.target, stamped)
    engine.dispose()


def test_what_the_bundled_broker_keeps_by_default_is_kept_by_apache_kafka(kafka: ApacheKafka, tmp_path: Path) -> None:
    with ForkedKafkaBroker(
        tmp_path / "source", config={"log.retention.ms": "-1", "message.max.bytes": "2000000"}
    ) as source:
        site, topic = MoveSite(source, kafka), source.create_topic()
        fill(source, topic, 1)
        result = site.run("--finish", "--verify")
        assert (result.code, result.err) == (0, "")
        (made,) = topic_definitions({"bootstrap.servers": kafka.bootstrap_servers}, [topic]).values()
        own = {entry.name: entry.value for entry in made.settings if entry.is_own}
        assert own == {"retention.ms": "-1", "max.message.bytes": "2000000"}
        assert read(kafka, topic) == read(source, topic)


@pytest.mark.parametrize("version", [1, 2])
def test_groups_move_with_either_transaction_version(tmp_path: Path, version: int) -> None:
    with (
        ForkedKafkaBroker(tmp_path / "source") as source,
        ApacheKafka(tmp_path / "kafka", features={"transaction.version": version}) as target,
    ):
        site, topic, metadata = MoveSite(source, target), create_topic(source), "AQAAAYvP5hVA"
        fill(source, topic, 1)
        with connected({"bootstrap.servers": source.bootstrap_servers}) as cluster:
            call = commit_offsets("group", [CommittedOffset(topic, 0, 3, -1, metadata)])
            cluster.ask_group_coordinator("group", call, lambda answer: answer.topics[0].partitions[0].error_code)
        result = site.run("--finish", "--verify")
        assert (result.code, result.err) == (0, "")
        assert rest_of(target, "group", topic) == rest_of(source, "group", topic)
        committed = offset_of(target, "group", topic)
        assert committed is not None
        assert committed[1] == metadata
