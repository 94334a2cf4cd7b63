"""What is to be done with each topic, and what is refused."""

import pytest

from dualwrite.errors import InputError
from dualwrite.moving.journal import TopicPair, journal_topic
from dualwrite.moving.plan import (
    APPEND_TIME,
    CREATE_TIME,
    TIMESTAMP_TYPE,
    MoveJob,
    Preparation,
    TopicDescription,
    TopicPlan,
    is_movable,
    plan_topics,
)


def topics(*described: TopicDescription) -> dict[str, TopicDescription]:
    return {topic.name: topic for topic in described}


def topic(name: str, partitions: int = 1, topic_id: str = "id") -> TopicDescription:
    return TopicDescription(name, topic_id, partitions)


def test_all_topics_are_moved_but_internal_ones() -> None:
    source = topics(topic("b"), topic("a"), topic("__consumer_offsets"), topic(journal_topic("x")))
    assert [plan.source.name for plan in plan_topics(MoveJob(), source, {})] == ["a", "b"]


def test_named_topics_are_moved_once() -> None:
    source = topics(topic("b"), topic("a"))
    assert [plan.source.name for plan in plan_topics(MoveJob(topics=("b", "b")), source, {})] == ["b"]


@pytest.mark.parametrize(
    ("target", "preparation"),
    [
        (None, Preparation.CREATE),
        (topic("a", 2), Preparation.ADD_PARTITIONS),
        (topic("a", 3), Preparation.NOTHING),
    ],
)
def test_a_topic_is_prepared_as_the_target_needs_it(target: TopicDescription | None, preparation: Preparation) -> None:
    assert TopicPlan(topic("a", 3), target).preparation is preparation


def test_a_pair_has_both_ids() -> None:
    assert TopicPlan(topic("a", topic_id="here"), topic("a", topic_id="there")).pair == TopicPair("a", "here", "there")


def test_records_keep_their_times_until_the_end() -> None:
    settings = {"retention.ms": "1", TIMESTAMP_TYPE: APPEND_TIME}
    stamped = TopicDescription("a", "id", 1, settings, APPEND_TIME)
    assert TopicPlan(stamped, None).settings == {"retention.ms": "1", TIMESTAMP_TYPE: CREATE_TIME}
    by_default = TopicDescription("a", "id", 1, {}, APPEND_TIME)
    assert TopicPlan(by_default, None).settings == {TIMESTAMP_TYPE: CREATE_TIME}
    assert TopicPlan(topic("a"), None).settings == {}


@pytest.mark.parametrize(
    ("policy", "is_compacted"), [("delete", False), ("compact", True), ("compact,delete", True), (None, False)]
)
def test_compacted_topics_are_known_by_their_policy(policy: str | None, is_compacted: bool) -> None:
    settings = {} if policy is None else {"cleanup.policy": policy}
    assert TopicDescription("a", "id", 1, settings).is_compacted is is_compacted


@pytest.mark.parametrize(
    ("job", "source", "target", "message"),
    [
        (MoveJob(), {}, {}, "no topic to move"),
        (MoveJob(topics=("b",)), topics(topic("a")), {}, "the source cluster has no topic 'b'"),
        (MoveJob(topics=("__x",)), topics(topic("__x")), {}, "'__x' is internal"),
        (MoveJob(), topics(topic("a")), topics(topic("a", 2)), "has 2 partitions at the target and 1 at the source"),
    ],
)
def test_a_job_that_cannot_be_done_is_refused(
    job: MoveJob, source: dict[str, TopicDescription], target: dict[str, TopicDescription], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        plan_topics(job, source, target)


@pytest.mark.parametrize(("name", "movable"), [("orders", True), ("x_orders", True), ("__x", False)])
def test_internal_topics_begin_with_two_underscores(name: str, movable: bool) -> None:
    assert is_movable(name) is movable
