"""A group as text, and what its numbers mean."""

import json
from dataclasses import replace

import pytest

from dualwrite.admin.views import GroupDetails, MemberDetails, PartitionLag
from dualwrite.cli.kafka.group_output import as_json, paragraphs
from dualwrite.cli.printing import as_json_text
from dualwrite.ids import TopicPartition

T0 = TopicPartition("orders", 0)
MEMBER = MemberDetails("m-1", "worker-1", "rdkafka", "/10.0.0.7", (T0,))
READ = PartitionLag(T0, 9, False, 0, 9, 9, 0, "m-1")
GROUP = GroupDetails("invoices", "Stable", "classic", "range", (MEMBER,), (READ,))


def explanations(*lags: PartitionLag) -> list[str]:
    """The lines below the table."""
    return list(paragraphs(replace(GROUP, lags=lags)))[5 + len(lags) :]


def test_a_group_shows_its_members_and_its_lag() -> None:
    assert list(paragraphs(GROUP)) == [
        "group     invoices",
        "state     Stable, assignor range",
        "members   1",
        "  m-1: client rdkafka, instance worker-1 from 10.0.0.7, 1 partition",
        "TOPIC   PARTITION  COMMITTED  STABLE  END  LAG  UNREAD  MEMBER",
        "orders  0          9          9       9    0    0       m-1",
    ]


def test_what_is_not_known_is_a_question_mark_and_what_is_not_there_a_dash() -> None:
    lag = PartitionLag(T0, None, False, None, None, None, None, None)
    line = list(paragraphs(replace(GROUP, lags=(lag,))))[5]
    assert line.split() == ["orders", "0", "-", "?", "?", "?", "?", "-"]


@pytest.mark.parametrize(
    ("lag", "explanation"),
    [
        (replace(READ, committed=8), "nothing is left to read in orders-0: the lag there is control records"),
        (replace(READ, high_watermark=12), "an open transaction holds back orders-0: read_committed consumers stop at"),
        (replace(READ, is_pending=True), "an open transaction has newer offsets of this group for orders-0"),
        (
            replace(READ, committed=1, earliest=3, unread=6),
            "records behind the committed offset are deleted in orders-0",
        ),
    ],
)
def test_numbers_that_mislead_are_explained(lag: PartitionLag, explanation: str) -> None:
    (line,) = explanations(lag)
    assert line.startswith(explanation)


def test_the_offsets_of_a_group_may_be_in_the_database() -> None:
    none = replace(READ, committed=None, unread=None)
    (line,) = explanations(none, none)
    assert line.startswith("no offset is committed in Kafka: consumers of store_offsets have theirs in the database's ")
    assert explanations(none, READ) == []


@pytest.mark.parametrize("unread", [1, None])
def test_a_lag_with_records_is_not_explained_away(unread: int | None) -> None:
    assert explanations(replace(READ, committed=8, unread=unread)) == []


def test_many_partitions_are_named_in_one_line() -> None:
    lags = [replace(READ, partition=TopicPartition("orders", index), committed=8) for index in range(1000)]
    (line,) = explanations(*lags)
    assert "in orders-0, orders-1, orders-2 and 997 more: " in line


def test_a_group_without_offsets_or_members_says_so() -> None:
    lines = list(paragraphs(GroupDetails("g", "", "consumer", "", None, ())))
    assert lines == [
        "group     g",
        "state     unknown",
        "members   not shown: DESCRIBE is not granted on every topic of the group, or the broker is too old",
        "no offsets are committed, and no partitions are assigned",
    ]


def test_programs_get_every_field() -> None:
    shown = json.loads(as_json_text(as_json(GROUP)))
    assert shown["members"] == [
        {
            "member_id": "m-1",
            "instance_id": "worker-1",
            "client_id": "rdkafka",
            "host": "/10.0.0.7",
            "partitions": [{"topic": "orders", "partition": 0}],
        }
    ]
    assert (shown["partitions"][0]["lag"], shown["partitions"][0]["unread"]) == (0, 0)
    assert json.loads(as_json_text(as_json(replace(GROUP, members=None))))["members"] is None


def test_names_that_a_terminal_would_obey_are_shown_with_escapes() -> None:
    evil = replace(GROUP, group_id="\x1b[2J", assignor="\x07", members=(replace(MEMBER, client_id="\x1b]0;"),))
    assert all(line.isprintable() for line in paragraphs(evil))
