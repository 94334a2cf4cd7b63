"""Consumer groups by function and by command: their lag, members and offsets, on a real broker."""

import io
from typing import Any

import pytest

from dualwrite.admin import records
from dualwrite.admin.groups import apply_reset, delete_group, describe_group, list_groups, reset_offsets
from dualwrite.admin.topics import delete_topic
from dualwrite.admin.views import OffsetChange
from dualwrite.errors import InputError, KafkaRefusedError
from dualwrite.ids import TopicPartition
from tests.support.admin.admin_site import AdminSite
from tests.support.peer_clients.kafka_helpers import PATIENCE, fresh_name


@pytest.fixture
def group() -> str:
    return fresh_name()


def test_a_group_lists_with_its_state(site: AdminSite, group: str) -> None:
    topic = site.topic()
    site.plain(topic, "a")
    consumer = site.consume(group, topic, 1)
    assert [group, "Stable", "classic", "consumer"] in site.rows("groups", "list")
    consumer.close()
    (listed,) = [each for each in list_groups(site.config) if each.group_id == group]
    assert (listed.state, listed.kind, listed.protocol_type) == ("Empty", "classic", "consumer")
    assert {"group_id": group, "state": "Empty", "kind": "classic", "protocol_type": "consumer"} in site.run(
        "groups", "list", "--json"
    ).json()


def test_members_and_their_partitions_are_described(site: AdminSite, group: str) -> None:
    topic = site.topic(partitions=2)
    site.plain(topic, "a")
    consumer = site.consume(group, topic, 1)
    described = describe_group(site.config, group)
    assert described.members is not None
    (member,) = described.members
    assert (described.state, described.assignor) == ("Stable", "range")
    assert (member.client_id, member.instance_id) == ("rdkafka", None)
    assert member.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 1))
    assert [(lag.committed, lag.lag, lag.unread, lag.member_id) for lag in described.lags] == [
        (1, 0, 0, member.member_id),
        (None, None, None, member.member_id),
    ]
    code, out, _ = site.run("groups", "describe", group)
    lines = out.splitlines()
    assert (code, lines[:3]) == (0, [f"group     {group}", "state     Stable, assignor range", "members   1"])
    assert lines[3].startswith(f"  {member.member_id}: client rdkafka from 127.0.0.1, 2 partitions")
    assert lines[5].split() == [topic, "0", "1", "1", "1", "0", "0", member.member_id]
    assert lines[6].split() == [topic, "1", "-", "0", "0", "?", "?", member.member_id]
    consumer.close()


def test_members_of_a_consumer_group_are_described_and_no_other_group_is_listed(site: AdminSite, group: str) -> None:
    topic = site.topic(partitions=2)
    site.plain(topic, "a")
    site.config["group.protocol"] = "consumer"
    consumer = site.consume(group, topic, 1)
    del site.config["group.protocol"]
    described = describe_group(site.config, group)
    assert described.members is not None
    (member,) = described.members
    assert (described.kind, described.state, described.assignor) == ("consumer", "Stable", "uniform")
    assert (member.client_id, member.instance_id) == ("rdkafka", None)
    assert member.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 1))
    assert [lag.member_id for lag in described.lags] == [member.member_id] * 2
    lines = site.run("groups", "describe", group).out.splitlines()
    assert lines[:3] == [f"group     {group}", "state     Stable, assignor uniform", "members   1"]
    assert lines[3].startswith(f"  {member.member_id}: client rdkafka from 127.0.0.1, 2 partitions")
    consumer.close()


def test_a_lag_of_markers_alone_is_explained(site: AdminSite, group: str) -> None:
    topic = site.topic()
    writer = site.producer().write(topic, "a").commit()
    site.consume(group, topic, 1).close()
    reset_offsets(site.config, group, topic, 1)  # as a consumer that commits the offset after its last record
    writer.write(topic, "b", "c").abort()
    (lag,) = describe_group(site.config, group).lags
    assert (lag.committed, lag.last_stable_offset, lag.lag, lag.unread) == (1, 5, 4, 0)
    out = site.run("groups", "describe", group).out
    assert f"nothing is left to read in {topic}-0: the lag there is control records" in out
    writer.write(topic, "d").commit()
    (lag,) = describe_group(site.config, group).lags
    assert (lag.lag, lag.unread) == (6, 1)
    assert "nothing is left to read" not in site.run("groups", "describe", group).out


def test_records_behind_an_open_transaction_are_no_part_of_the_lag(site: AdminSite, group: str) -> None:
    topic = site.topic()
    site.plain(topic, "a")
    site.consume(group, topic, 1).close()
    writer = site.producer().write(topic, "b", "c")
    (lag,) = describe_group(site.config, group).lags
    assert (lag.lag, lag.unread, lag.held_back, lag.high_watermark) == (0, 0, 2, 3)
    out = site.run("groups", "describe", group).out
    assert f"an open transaction holds back {topic}-0: read_committed consumers stop at STABLE" in out
    writer.commit()
    (lag,) = describe_group(site.config, group).lags
    assert (lag.lag, lag.unread, lag.held_back) == (3, 2, 0)


def test_offsets_in_an_open_transaction_are_pending(site: AdminSite, group: str) -> None:
    topic, other = site.topic(), site.topic()
    site.plain(topic, "a", "b")
    consumer = site.consume(group, topic, 1)
    writer = site.producer().write(other, "x")
    writer.producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), PATIENCE
    )
    (lag,) = describe_group(site.config, group).lags
    assert (lag.is_pending, lag.committed) == (True, 1)
    assert (
        f"an open transaction has newer offsets of this group for {topic}-0"
        in site.run("groups", "describe", group).out
    )
    writer.commit()
    (lag,) = describe_group(site.config, group).lags
    assert not lag.is_pending
    consumer.close()


def test_too_many_records_are_not_counted(site: AdminSite, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = site.topic()
    site.plain(topic, "a")
    site.plain(topic, "b")
    reset_offsets(site.config, group, topic, "beginning")
    monkeypatch.setattr(records, "PIECE_BYTES", 1)
    (lag,) = describe_group(site.config, group).lags
    assert (lag.lag, lag.unread) == (2, None)
    (uncounted,) = describe_group(site.config, group, counts=False).lags
    assert uncounted.unread is None


def test_offsets_of_a_deleted_topic_have_no_ends(site: AdminSite, group: str) -> None:
    kept, deleted = site.topic(), site.topic()
    for topic in (kept, deleted):
        reset_offsets(site.config, group, topic, "end")
    delete_topic(site.config, deleted)
    lags = describe_group(site.config, group).lags
    assert [lag.partition.topic for lag in lags if lag.high_watermark is not None] == [kept]
    assert site.run("groups", "describe", group).code == 0


def test_a_reset_is_shown_before_it_is_done(site: AdminSite, group: str) -> None:
    topic = site.topic(partitions=2)
    site.plain(topic, "a", "b")
    site.plain(topic, "c", partition=1)
    site.consume(group, topic, 3).close()
    words = ("groups", "reset-offsets", group, "--topic", topic, "--to")
    shown = site.run(*words, "beginning", "--dry-run")
    assert [line.split() for line in shown.out.splitlines()[1:3]] == [[topic, "0", "2", "0"], [topic, "1", "1", "0"]]
    assert shown.out.splitlines()[3] == "nothing was changed: a dry run"
    assert [lag.committed for lag in describe_group(site.config, group).lags] == [2, 1]

    refused = site.run(*words, "beginning")
    assert (refused.code, refused.out) == (2, "\n".join(shown.out.splitlines()[:3]) + "\n")
    assert refused.err == f"dualwrite: not confirmed: add --yes to move 2 offsets of group {group}\n"
    assert site.run(*words, "beginning", "--json").out == ""
    assert [lag.committed for lag in describe_group(site.config, group).lags] == [2, 1]

    done = site.run(*words, "1", "--partition", "0", "--yes", "--json").json()
    assert done == {"dry_run": False, "partitions": [{"topic": topic, "partition": 0, "before": 2, "after": 1}]}
    assert [lag.committed for lag in describe_group(site.config, group).lags] == [1, 1]
    consumer = site.consumer(group, topic)
    assert [message.key() for message in consumer.consume(1, PATIENCE)] == [b"b"]
    consumer.close()


def test_a_reset_skips_nothing_that_is_written_before_the_answer(
    site: AdminSite, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = site.topic()
    site.plain(topic, "shown")

    class SlowPerson(io.StringIO):
        def isatty(self) -> bool:
            return True

        def readline(self, *_: Any) -> str:
            site.plain(topic, "later")
            return "y\n"

    monkeypatch.setattr("sys.stdin", SlowPerson())
    done = site.run("groups", "reset-offsets", group, "--topic", topic, "--to", "end")
    assert (done.code, done.out.splitlines()[1].split()) == (0, [topic, "0", "-", "1"])
    (lag,) = describe_group(site.config, group).lags
    assert (lag.committed, lag.unread) == (1, 1)


def test_no_offsets_are_moved_of_a_group_without_a_name(site: AdminSite) -> None:
    with pytest.raises(InputError, match="the group's id is empty"):
        apply_reset(site.config, "", [OffsetChange(TopicPartition("t", 0), None, 0)])


def test_a_reset_to_an_offset_that_there_is_not_says_where_it_goes(site: AdminSite, group: str) -> None:
    """As 20261127, which is an offset, and no date."""
    topic = site.topic()
    site.plain(topic, "a", "b")
    words = ("groups", "reset-offsets", group, "--topic", topic, "--dry-run", "--to")
    assert site.run(*words, "20261127").err == (
        f"dualwrite: partition {topic}-0: offset 20261127 is behind the end, so it is 2\n"
    )
    assert site.run(*words, "1").err == site.run(*words, "end").err == ""


def test_the_question_before_a_reset_says_if_the_group_has_no_offset_there(site: AdminSite, group: str) -> None:
    topic = site.topic(partitions=2)
    refused = site.run("groups", "reset-offsets", group, "--topic", topic, "--to", "end")
    said = f"not confirmed: add --yes to move 2 offsets of group {group}, which has none in this topic yet"
    assert (refused.code, refused.err) == (2, f"dualwrite: {said}\n")


def test_the_end_of_a_reset_is_the_last_stable_offset(site: AdminSite, group: str) -> None:
    topic = site.topic()
    site.plain(topic, "a")
    site.producer().write(topic, "open")
    changes = reset_offsets(site.config, group, topic, "end", dry_run=True)
    assert changes == [OffsetChange(TopicPartition(topic, 0), None, 1)]


def test_the_offsets_of_a_group_with_members_stay(site: AdminSite, group: str) -> None:
    topic = site.topic()
    site.plain(topic, "a")
    consumer = site.consume(group, topic, 1)
    with pytest.raises(InputError, match=f"group '{group}' has members: stop its consumers first"):
        reset_offsets(site.config, group, topic, "beginning")
    refused = site.run("groups", "delete", group, "--yes")
    assert (refused.code, refused.err) == (2, f"dualwrite: group '{group}': NON_EMPTY_GROUP (68)\n")
    assert [lag.committed for lag in describe_group(site.config, group).lags] == [1]
    consumer.close()


def test_a_deleted_group_is_gone_with_its_offsets(site: AdminSite, group: str) -> None:
    topic = site.topic()
    reset_offsets(site.config, group, topic, "end")
    refused = site.run("groups", "delete", group)
    assert refused.err == f"dualwrite: not confirmed: add --yes to delete group {group} with 1 committed offset\n"
    assert site.run("groups", "delete", group, "--yes") == (0, f"group {group}: deleted\n", "")
    assert group not in [each.group_id for each in list_groups(site.config)]
    for act in (describe_group, delete_group):
        with pytest.raises(KafkaRefusedError, match=rf"the cluster has no group '{group}': GROUP_ID_NOT_FOUND \(69\)"):
            act(site.config, group)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ("describe", "g-missing"),
            "the cluster has no group 'g-missing': GROUP_ID_NOT_FOUND (69); `dualwrite groups list` shows which there",
        ),
        (("delete", "g-missing", "--yes"), "the cluster has no group 'g-missing': GROUP_ID_NOT_FOUND (69)"),
        (
            ("reset-offsets", "g", "--topic", "t-missing", "--to", "end", "--yes"),
            "the cluster has no topic 't-missing': UNKNOWN_TOPIC_OR_PARTITION (3)",
        ),
        (("reset-offsets", "g", "--topic", "t", "--to", "tomorrow"), "argument --to: 'tomorrow': use beginning, end, "),
        (("reset-offsets", "", "--topic", "t", "--to", "end", "--yes"), "the group's id is empty: name the group"),
        (("reset-offsets", "g", "--topic", "t"), "the following arguments are required: --to"),
    ],
)
def test_a_mistake_is_one_line(site: AdminSite, words: tuple[str, ...], complaint: str) -> None:
    code, out, err = site.run("groups", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"dualwrite: {complaint}")


def test_json_has_every_number(site: AdminSite, group: str) -> None:
    topic = site.topic()
    site.plain(topic, "a", "b")
    reset_offsets(site.config, group, topic, 1)
    shown = site.run("groups", "describe", group, "--json").json()
    assert (shown["group_id"], shown["state"], shown["members"]) == (group, "Empty", [])
    assert shown["partitions"] == [
        {
            "topic": topic,
            "partition": 0,
            "committed": 1,
            "is_pending": False,
            "earliest": 0,
            "last_stable_offset": 2,
            "high_watermark": 2,
            "lag": 1,
            "unread": 1,
            "held_back": 0,
            "member_id": None,
        }
    ]
