"""On Apache Kafka as it is released: topics that are deleted between the database's COMMIT and Kafka's."""

from pathlib import Path

import pytest
from sqlalchemy import Engine

from dualwrite.coordinator.rules.recovery_decision import Outcome
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.coordinator.event_table import ready_engine
from tests.support.coordinator.two_topics import TwoTopics, write_into
from tests.support.peer_clients.kafka_helpers import create_topic

pytestmark = [pytest.mark.slow, pytest.mark.jvm]


@pytest.fixture(params=["native", "librdkafka"])
def place(request: pytest.FixtureRequest, engine: Engine, apache_kafka: ApacheKafka) -> TwoTopics:
    made = TwoTopics(engine, apache_kafka, request.param)
    made.options = {"two_phase": "resume"}
    return made


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return ready_engine(f"sqlite:///{tmp_path / 'app.db'}")


@pytest.mark.parametrize("anew", [False, True], ids=["deleted", "made anew"])
@pytest.mark.parametrize("which", ["the first", "the second"])
def test_recovery_commits_a_decided_unit_in_the_topic_that_is_left(place: TwoTopics, which: str, anew: bool) -> None:
    place.leave("decided")
    (gone,) = place.doomed(which)
    (left,) = {place.topic, place.other} - {gone}
    place.delete(gone, anew=anew)
    with place.dual_write() as dual_write:
        assert dual_write.recover() == {place.slot: Outcome.COMMITTED}
        assert dual_write.outcomes() == []
    assert place.visible(left) == [b"decided"]


def test_a_topic_that_vanishes_from_a_living_unit_holds_nothing_up(place: TwoTopics) -> None:
    gone: list[str] = []

    def delete(step: str) -> None:
        if step == "COMMIT_KAFKA" and not gone:
            gone.extend(place.doomed("the first"))
            place.delete(gone[0])

    with place.dual_write(on_step=delete) as dual_write:
        place.write(dual_write, "decided")
        (left,) = {place.topic, place.other} - set(gone)
        create_topic(place.broker.bootstrap_servers, gone[0], 2)
        dual_write.transactional(retries=5)(lambda tx: write_into(place, tx))()
        assert dual_write.outcomes() == []
    assert place.visible(left) == [b"decided", b"next"]
