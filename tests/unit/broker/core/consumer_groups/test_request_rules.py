"""Requests that are refused before the group is looked at, and in which order; and the patterns that are accepted."""

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.core.cluster import RefusedError
from dualwrite.broker.core.consumer_groups.commands import ConsumerGroupSettings, ConsumerHeartbeat
from dualwrite.broker.core.consumer_groups.patterns import compiled, matching
from dualwrite.broker.core.consumer_groups.request_rules import check_request
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.group_worlds.consumer import join, partitions

SETTINGS = ConsumerGroupSettings()
FIRST = join("m", "t")
LATER = replace(FIRST, epoch=3, rebalance_timeout_ms=-1, topics=None, owned=None)
SOME = partitions(TopicCreated("t", uuid.UUID(int=1), 1))


def refusal(command: ConsumerHeartbeat) -> tuple[ErrorCode, str] | None:
    """The error of ``command``, and its message; None if it passes."""
    try:
        check_request(command, SETTINGS)
    except RefusedError as error:
        return error.error, str(error)
    return None


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (replace(FIRST, member_id=""), "MemberId can't be empty."),
        (replace(FIRST, member_id="  "), "MemberId can't be empty."),
        (replace(LATER, member_id="", names_itself=False), "MemberId can't be empty."),
        (replace(LATER, member_id="", epoch=-1, names_itself=False), "MemberId can't be empty."),
        (replace(FIRST, group=""), "GroupId can't be empty."),
        (replace(FIRST, instance_id=""), "InstanceId can't be empty."),
        (replace(LATER, rack_id=" "), "RackId can't be empty."),
        (replace(FIRST, rebalance_timeout_ms=-1), "RebalanceTimeoutMs must be provided in first request."),
        (replace(FIRST, owned=None), "TopicPartitions must be empty when (re-)joining."),
        (replace(FIRST, owned=SOME), "TopicPartitions must be empty when (re-)joining."),
        (
            replace(FIRST, topics=None),
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (replace(LATER, epoch=-2), "InstanceId can't be null."),
        (replace(LATER, epoch=-3), "MemberEpoch is invalid."),
        (replace(FIRST, member_id="", group=""), "MemberId can't be empty."),
        (replace(FIRST, group="", rebalance_timeout_ms=-1), "GroupId can't be empty."),
    ],
)
def test_an_invalid_request_is_refused_in_kafkas_words(command: ConsumerHeartbeat, message: str) -> None:
    assert refusal(command) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize(
    "command",
    [
        FIRST,
        LATER,
        replace(FIRST, member_id="", names_itself=False),
        replace(FIRST, topics=None, pattern=""),
        replace(FIRST, topics=()),
        replace(FIRST, assignor="range"),
        replace(LATER, epoch=-1),
        replace(LATER, epoch=-2, instance_id="i"),
        replace(LATER, owned=SOME),
        replace(FIRST, member_id="m" * 32_767),
    ],
)
def test_a_valid_request_passes(command: ConsumerHeartbeat) -> None:
    assert refusal(command) is None


@given(assignor=st.text(max_size=9).filter(lambda name: name not in SETTINGS.assignors))
def test_an_unknown_assignor_is_refused_with_those_that_are_known(assignor: str) -> None:
    message = f"ServerAssignor {assignor} is not supported. Supported assignors: uniform, range."
    assert refusal(replace(LATER, assignor=assignor)) == (ErrorCode.UNSUPPORTED_ASSIGNOR, message)


# --- patterns


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("orders", {"orders"}),
        ("order", set()),
        ("order.*", {"orders", "orders.eu", "orders-us"}),
        (r"orders\..*", {"orders.eu"}),
        ("(?i)ORDERS", {"orders"}),
        ("^orders$", {"orders"}),
        ("[a-o]+", {"admin"}),
        ("orders|admin", {"orders", "admin"}),
        (r"\w+", {"orders", "admin"}),
        (r"[[:alpha:]]+-us", {"orders-us"}),
        (".*", {"orders", "orders.eu", "orders-us", "admin"}),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, matches: set[str]) -> None:
    assert matching(pattern, ["orders", "orders.eu", "orders-us", "admin"]) == matches


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a{2,1}", "(?<=a)b", "(?!a)", r"\1", r"\Zx\y"])
def test_a_pattern_that_is_none_in_re2_is_refused(pattern: str) -> None:
    assert compiled(pattern) is None


def test_no_pattern_keeps_the_broker_busy() -> None:
    """With Python's own expressions this one would run for years."""
    assert matching("(a*)*(a*)*(a*)*b", ["a" * 249]) == frozenset()


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_none(text: str) -> None:
    if compiled(text) is not None:
        assert matching(text, ["orders", "t-1"]) <= {"orders", "t-1"}
