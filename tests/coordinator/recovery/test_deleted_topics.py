"""Topics that are deleted, or deleted and made anew, around the commit of a unit of work, on the bundled broker."""

from pathlib import Path

import pytest
from sqlalchemy import Engine

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.operations.listing import describe_transaction
from tests.support.coordinator.two_topics import TwoTopics, write_into
from tests.support.peer_clients.kafka_helpers import create_topic


@pytest.fixture(params=["native", "librdkafka"])
def place(request: pytest.FixtureRequest, sqlite_engine: Engine, broker: EmbeddedBroker, tmp_path: Path) -> TwoTopics:
    return TwoTopics(sqlite_engine, broker, request.param)


anew_or_not = pytest.mark.parametrize("anew", [False, True], ids=["deleted", "made anew"])
which_topics = pytest.mark.parametrize("which", ["the first", "the second", "both"])


def assert_all_is_well(place: TwoTopics, dual_write: DualWrite, gone: list[str]) -> None:
    """What is left of the unit is visible, the next one succeeds, and nothing is on record."""
    for topic in {place.topic, place.other} - set(gone):
        assert place.visible(topic) == [b"decided"]
    assert dual_write.outcomes() == []


@pytest.mark.slow_cases
@which_topics
@anew_or_not
def test_a_decided_unit_is_committed_in_the_topics_that_are_left(place: TwoTopics, which: str, anew: bool) -> None:
    place.leave("decided")
    gone = place.doomed(which)
    for topic in gone:
        place.delete(topic, anew=anew)
    with place.dual_write() as dual_write:
        assert dual_write.recover() == {place.slot: Outcome.COMMITTED}
        assert_all_is_well(place, dual_write, gone)
        for topic in () if anew else gone:
            create_topic(place.broker.bootstrap_servers, topic, 2)
        place.write(dual_write, "next")
        assert_all_is_on_both_sides(place, dual_write)


def assert_all_is_on_both_sides(place: TwoTopics, dual_write: DualWrite) -> None:
    assert b"next" in place.visible(place.topic)
    assert b"next" in place.visible(place.other)
    assert dual_write.outcomes() == []


@pytest.mark.slow_cases
@which_topics
@anew_or_not
def test_a_topic_deleted_under_a_living_unit_blocks_no_other_topic(place: TwoTopics, which: str, anew: bool) -> None:
    begun: list[str] = []
    gone: list[str] = []

    def delete(step: str) -> None:
        begun.append(step)
        if step == "COMMIT_KAFKA" and begun.count(step) == 1:
            gone.extend(place.doomed(which))
            for topic in gone:
                place.delete(topic, anew=anew)

    with place.dual_write(on_step=delete) as dual_write:
        place.write(dual_write, "decided")
        dual_write.recover()
        assert_all_is_well(place, dual_write, gone)
        for topic in () if anew else gone:
            create_topic(place.broker.bootstrap_servers, topic, 2)
        # librdkafka does not know that a topic was made anew: its first record there fails, and then it begins anew.
        dual_write.transactional(retries=3)(lambda tx: write_into(place, tx))()
        assert_all_is_on_both_sides(place, dual_write)


@pytest.mark.slow_cases
@pytest.mark.parametrize("at", ["PREPARE_KAFKA", "COMMIT_DATABASE"])
def test_the_next_unit_of_a_session_is_not_taken_for_the_decided_one(place: TwoTopics, at: str) -> None:
    """Its first record has the offset of the decided one's, in a topic that was made anew under the name."""
    with_one_topic(place)

    def both_units(dual_write: DualWrite) -> None:
        place.write(dual_write, "decided")
        place.delete(place.topic, anew=True)
        place.write(dual_write, "not decided")

    place.dying(both_units, at, unit=2)
    with place.dual_write() as dual_write:
        assert dual_write.recover()[place.slot] in (Outcome.ABORTED, Outcome.NOTHING)
        assert dual_write.outcomes() == [], "the decided unit went well"
    assert place.visible(place.topic) == []


def with_one_topic(place: TwoTopics) -> None:
    place.delete(place.other)
    place.other = place.topic


@pytest.mark.slow_cases
@anew_or_not
def test_deleting_a_topic_long_after_a_unit_reports_no_outcome(place: TwoTopics, anew: bool) -> None:
    with place.dual_write() as dual_write:
        for number in range(3):
            place.write(dual_write, f"number {number}")
    for topic in (place.topic, place.other):
        place.delete(topic, anew=anew)
    for _ in range(2):
        with place.dual_write() as dual_write:
            assert dual_write.recover() == {place.slot: Outcome.NOTHING}
            assert dual_write.outcomes() == []


def test_an_open_transaction_can_be_described_though_a_topic_of_it_is_gone(place: TwoTopics) -> None:
    place.leave("decided")
    gone = place.doomed("the first")
    place.delete(gone[0])
    view, ends = describe_transaction(place.engine, {"bootstrap.servers": place.broker.bootstrap_servers}, place.slot)
    assert view.verdict is not None
    assert view.verdict.value == "commit"
    assert {partition.topic for partition in ends} == {place.topic, place.other} - set(gone)


@pytest.mark.slow_cases
@which_topics
@pytest.mark.parametrize("two_phase", ["keep-prepared", "resume"])
def test_a_sweep_commits_a_decided_unit_in_the_topics_that_are_left(
    place: TwoTopics, which: str, two_phase: str
) -> None:
    """Of a slot that is nobody's any more, without a producer."""
    place.options = {"two_phase": two_phase}
    place.leave("decided")
    gone = place.doomed(which)
    for topic in gone:
        place.delete(topic)
    with place.dual_write() as dual_write:
        found, errors = dual_write.sweep()
        assert (found, errors) == ({place.slot: Outcome.COMMITTED}, [])
        assert_all_is_well(place, dual_write, gone)
