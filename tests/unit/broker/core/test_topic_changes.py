"""What may change about a topic, and about the running broker."""

import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest

from dualwrite.broker.core.broker_configs import broker_lists, check_broker_config
from dualwrite.broker.core.cluster import RefusedError, TopicDecision
from dualwrite.broker.core.topic_changes import (
    ConfigChange,
    ConfigOperation,
    changed,
    decide_configs,
    decide_partitions,
    topic_lists,
)
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.settings.broker_settings import MAX_PARTITIONS
from dualwrite.wire.error_codes import ErrorCode

ORDERS = TopicCreated("orders", uuid.UUID(int=7), 3, {"retention.ms": "5"})
SET, DELETE, APPEND, SUBTRACT = ConfigOperation


@pytest.mark.parametrize(("count", "assignments"), [(4, None), (13, None), (5, 2)])
def test_a_topic_may_grow(count: int, assignments: int | None) -> None:
    assert decide_partitions(ORDERS, count, assignments, room=10) == TopicDecision(
        fact=replace(ORDERS, partitions=count)
    )


@pytest.mark.parametrize(
    ("count", "assignments", "error", "words"),
    [
        (3, None, ErrorCode.INVALID_PARTITIONS, "Topic already has 3 partition(s)."),
        (2, None, ErrorCode.INVALID_PARTITIONS, "would not be an increase"),
        (-1, None, ErrorCode.INVALID_PARTITIONS, "would not be an increase"),
        (MAX_PARTITIONS + 1, None, ErrorCode.INVALID_PARTITIONS, f"1 to {MAX_PARTITIONS}"),
        (14, None, ErrorCode.INVALID_PARTITIONS, "may open 10"),
        (5, 1, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "2 additional partition(s), but 1"),
    ],
)
def test_a_refused_growth_has_a_reason(count: int, assignments: int | None, error: ErrorCode, words: str) -> None:
    decision = decide_partitions(ORDERS, count, assignments, room=10)
    assert (decision.error, decision.fact) == (error, None)
    assert words in (decision.message or "")


def test_new_settings_take_the_place_of_the_old() -> None:
    decision = decide_configs(ORDERS, {"segment.ms": "9"}, {})
    assert decision == TopicDecision(fact=replace(ORDERS, configs={"segment.ms": "9"}))


def test_settings_that_a_topic_may_not_have_are_refused_and_none_is_changed() -> None:
    decision = decide_configs(ORDERS, {"segment.ms": "9", "retention.ms": "soon"}, {})
    assert (decision.error, decision.fact) == (ErrorCode.INVALID_CONFIG, None)


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (ConfigChange("k", SET, "v"), {"list": "a,b", "k": "v"}),
        (ConfigChange("list", SET, "c"), {"list": "c"}),
        (ConfigChange("list", DELETE, None), {}),
        (ConfigChange("k", DELETE, None), {"list": "a,b"}),
        (ConfigChange("list", APPEND, "c"), {"list": "a,b,c"}),
        (ConfigChange("list", APPEND, "b,d,d"), {"list": "a,b,d"}),
        (ConfigChange("list", SUBTRACT, "a"), {"list": "b"}),
        (ConfigChange("list", SUBTRACT, "a,b"), {"list": ""}),
        (ConfigChange("other", APPEND, "y"), {"list": "a,b", "other": "x,y"}),
        (ConfigChange("other", SUBTRACT, "x"), {"list": "a,b", "other": ""}),
    ],
)
def test_each_operation_on_a_setting(change: ConfigChange, after: Mapping[str, str]) -> None:
    assert changed({"list": "a,b"}, [change], {"list": "z", "other": "x"}) == after


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_only_lists_can_be_appended_to(operation: ConfigOperation) -> None:
    with pytest.raises(RefusedError, match=f"Can't {operation.name} to key k because its type is not LIST") as refused:
        changed({}, [ConfigChange("k", operation, "v")], {"list": ""})
    assert refused.value.error is ErrorCode.INVALID_CONFIG


def test_an_unset_list_has_the_brokers_value() -> None:
    lists = topic_lists({"cleanup.policy": "compact"})
    assert changed({}, [ConfigChange("cleanup.policy", APPEND, "delete")], lists) == {
        "cleanup.policy": "compact,delete"
    }
    assert broker_lists({}) == {"log.cleanup.policy": "delete"}
    assert broker_lists({"log.cleanup.policy": "compact"}) == {"log.cleanup.policy": "compact"}


def test_the_topics_defaults_and_no_other_setting_can_be_set_on_the_running_broker() -> None:
    configs = {"log.retention.ms": "-1", "message.max.bytes": "5", "log.cleanup.policy": "compact"}
    check_broker_config(configs, {})
    with pytest.raises(RefusedError, match=r"Cannot update these configs dynamically: log\.dirs$"):
        check_broker_config({**configs, "log.dirs": "/elsewhere"}, {})


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"num.partitions": "3"}, "Cannot update these configs dynamically: num.partitions"),
        ({"log.retention.hours": "3"}, "Cannot update these configs dynamically: log.retention.hours"),
        ({"no.such.setting": "3"}, "dynamically: no.such.setting"),
        ({"log.retention.ms": "soon"}, "Invalid value soon for configuration log.retention.ms: Not a number"),
        ({"min.insync.replicas": "2"}, "one replica in sync"),
        ({"log.segment.bytes": "1024"}, "at least 1048576"),
        ({"log.cleaner.max.compaction.lag.ms": "9"}, "conflict"),
    ],
)
def test_a_setting_that_needs_a_restart_is_an_invalid_request(configs: Mapping[str, str], words: str) -> None:
    with pytest.raises(RefusedError, match=words) as refused:
        check_broker_config(configs, {"log.cleaner.min.compaction.lag.ms": "10", **configs})
    assert refused.value.error is ErrorCode.INVALID_REQUEST
