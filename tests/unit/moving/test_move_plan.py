"""What is to be done with each topic, and what is refused."""

import pytest

from dualwrite.errors import InputError
from dualwrite.moving.journal import TopicPair, journal_topic
from dualwrite.moving.plan import (
    APPEND_TIME,
    CREATE_TIME,
    TIMESTAMP_TYPE,
    CreationDefaults,
    MoveJob,
    Preparation,
    TopicDescription,
    TopicPlan,
    is_movable,
    left_out,
    plan_topics,
)


def topics(*described: TopicDescription) -> dict[str, TopicDescription]:
    return {topic.name: topic for topic in described}


def topic(name: str, partitions: int = 1, topic_id: str = "id") -> TopicDescription:
    return TopicDescription(name, topic_id, partitions)


def test_all_topics_are_moved_but_internal_ones() -> None:
    internal = TopicDescription("__consumer_offsets", "id", 1, is_internal=True)
    source = topics(topic("b"), topic("a"), internal, topic("__remote_log_metadata"), topic(journal_topic("x")))
    assert left_out(MoveJob(), source) == []
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


def test_topics_with_two_underscores_are_moved_if_they_are_named() -> None:
    source = topics(topic("__heartbeat"), topic("a"))
    assert [plan.source.name for plan in plan_topics(MoveJob(), source, {})] == ["a"]
    assert left_out(MoveJob(), source) == ["__heartbeat"]
    named = MoveJob(topics=("__heartbeat",))
    assert [plan.source.name for plan in plan_topics(named, source, {})] == ["__heartbeat"]
    assert left_out(named, source) == []


def test_a_new_topic_gets_what_the_clusters_have_other_defaults_for() -> None:
    defaults = {"retention.ms": "-1", "cleanup.policy": "delete", "segment.bytes": "1", "max.message.bytes": "9"}
    source = TopicDescription("a", "id", 1, {"delete.retention.ms": "5"}, defaults)
    there = {"retention.ms": "7", "cleanup.policy": "delete", "segment.bytes": "2", "delete.retention.ms": "5"}
    assert TopicPlan(source, None).settings == {"delete.retention.ms": "5"}, "before the target was asked"
    assert TopicPlan(source, None, CreationDefaults(there)).settings == {
        "delete.retention.ms": "5",
        "retention.ms": "-1",
    }


@pytest.mark.parametrize(
    ("replicas", "nodes", "expected"), [(1, 3, True), (1, 1, False), (3, 3, False), (None, 3, False)]
)
def test_a_single_replica_is_named_where_there_could_be_more(replicas: int | None, nodes: int, expected: bool) -> None:
    assert TopicPlan(topic("a"), None, CreationDefaults({}, replicas, nodes)).is_on_one_node is expected


def test_settings_that_decide_about_records_are_compared_once_both_sides_have_the_topic() -> None:
    source = TopicDescription("a", "id", 1, {"cleanup.policy": "compact,delete"}, {"retention.ms": "-1"})
    assert TopicPlan(source, None).differences == {}
    other = TopicDescription(
        "a", "id", 1, {"cleanup.policy": "delete, compact"}, {"retention.ms": "7", "flush.ms": "1"}
    )
    assert TopicPlan(source, other).differences == {"retention.ms": ("-1", "7")}


def test_records_keep_their_times_until_the_end() -> None:
    settings = {"retention.ms": "1", TIMESTAMP_TYPE: APPEND_TIME}
    stamped = TopicDescription("a", "id", 1, settings)
    assert TopicPlan(stamped, None).settings == {"retention.ms": "1", TIMESTAMP_TYPE: CREATE_TIME}
    by_default = TopicDescription("a", "id", 1, {}, {TIMESTAMP_TYPE: APPEND_TIME})
    assert TopicPlan(by_default, None).settings == {TIMESTAMP_TYPE: CREATE_TIME}
    assert TopicPlan(topic("a"), None).settings == {}


@pytest.mark.parametrize(
    ("policy", "is_compacted"), [("delete", False), ("compact", True), ("compact,delete", True), (None, False)]
)
def test_compacted_topics_are_known_by_their_policy(policy: str | None, is_compacted: bool) -> None:
    settings = {} if policy is None else {"cleanup.policy": policy}
    assert TopicDescription("a", "id", 1, settings).is_compacted is is_compacted
    assert TopicDescription("a", "id", 1, {}, settings).is_compacted is is_compacted, "by the cluster's default"


@pytest.mark.parametrize(
    ("job", "source", "target", "message"),
    [
        (MoveJob(), {}, {}, "no topic to move"),
        (MoveJob(topics=("b",)), topics(topic("a")), {}, "the source cluster has no topic 'b'"),
        (MoveJob(topics=("__x",)), topics(TopicDescription("__x", "", 1, is_internal=True)), {}, "'__x' is internal"),
        (MoveJob(), topics(topic("a")), topics(topic("a", 2)), "has 2 partitions at the target and 1 at the source"),
    ],
)
def test_a_job_that_cannot_be_done_is_refused(
    job: MoveJob, source: dict[str, TopicDescription], target: dict[str, TopicDescription], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        plan_topics(job, source, target)


def test_kafka_says_which_topics_are_internal() -> None:
    assert is_movable(topic("__x"))
    assert not is_movable(TopicDescription("x", "id", 1, is_internal=True))


@pytest.mark.parametrize(("value", "expected"), [("1000", 1000), (None, None)])
def test_the_largest_batch_is_the_topics_or_the_clusters(value: str | None, expected: int | None) -> None:
    settings = {} if value is None else {"max.message.bytes": value}
    assert TopicDescription("a", "id", 1, settings).largest_batch == expected
    assert TopicDescription("a", "id", 1, {}, settings).largest_batch == expected
