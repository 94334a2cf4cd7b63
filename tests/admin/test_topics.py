"""Topics by function and by command: created, listed, described and deleted on a real broker."""

from datetime import datetime, timezone

import pytest

from dualwrite.admin.topics import create_topic, delete_topic, describe_partitions, describe_topic, list_topics
from dualwrite.errors import InputError, KafkaRefusedError
from dualwrite.wire.error_codes import ErrorCode
from tests.support.admin.admin_site import AdminSite
from tests.support.peer_clients.kafka_helpers import fresh_name


def test_a_topic_is_created_with_its_partitions_and_settings(site: AdminSite) -> None:
    name = fresh_name()
    words = ("--partitions", "3", "--replication-factor", "1", "--config", "retention.ms=3600000")
    assert site.run("topics", "create", name, *words).out == f"topic {name}: created\n"
    topic = describe_topic(site.config, name)
    assert (topic.name, topic.is_internal, len(topic.partitions)) == (name, False, 3)
    assert topic.settings is not None
    assert [(each.name, each.value) for each in topic.settings if each.is_own] == [("retention.ms", "3600000")]
    assert ("cleanup.policy", "delete", False) in {(each.name, each.value, each.is_own) for each in topic.settings}


def test_the_brokers_defaults_hold_without_numbers(site: AdminSite) -> None:
    name = fresh_name()
    assert create_topic(site.config, name)
    assert [len(partition.replicas) for partition in describe_partitions(site.config, name)] == [1]


def test_a_topic_that_exists_is_an_error_or_none(site: AdminSite) -> None:
    name = site.topic()
    with pytest.raises(KafkaRefusedError, match=f"topic '{name}' was not created: .*: TOPIC_ALREADY_EXISTS") as raised:
        create_topic(site.config, name)
    assert raised.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert create_topic(site.config, name, if_not_exists=True) is False
    result = site.run("topics", "create", name, "--if-not-exists")
    assert result == (0, f"topic {name}: exists\n", "")


def test_internal_topics_are_hidden_unless_asked_for(site: AdminSite) -> None:
    name = site.topic(partitions=2)
    shown = {topic.name: topic for topic in list_topics(site.config)}
    assert (shown[name].partitions, shown[name].replicas, shown[name].is_internal) == (2, 1, False)
    assert "__consumer_offsets" not in shown
    every = {topic.name: topic.is_internal for topic in list_topics(site.config, internal=True)}
    assert every["__consumer_offsets"]
    assert [name, "2", "1"] in site.rows("topics", "list")
    assert "__consumer_offsets" in [row[0] for row in site.rows("topics", "list", "--internal")]
    listed = site.run("topics", "list", "--json").json()
    assert {"name": name, "partitions": 2, "replicas": 1, "is_internal": False} in listed


def test_an_open_transaction_shows_with_what_it_holds_back(site: AdminSite) -> None:
    topic = site.topic(partitions=2)
    site.plain(topic, "a", "b")
    writer = site.producer().write(topic, "c")
    site.plain(topic, "d")
    later = site.producer().write(topic, "e")
    before = datetime.now(timezone.utc)
    first, second = describe_topic(site.config, topic).partitions
    assert (first.earliest, first.last_stable_offset, first.high_watermark, first.held_back) == (0, 2, 5, 3)
    assert first.open_transactions is not None
    assert first.holder is not None
    assert [(each.transactional_id, each.first_offset) for each in first.open_transactions] == [
        (writer.name, 2),
        (later.name, 4),
    ]
    assert first.holder.transactional_id == writer.name
    assert first.holder.started_at is not None
    assert first.holder.started_at <= before
    assert (second.high_watermark, second.holder, second.open_transactions) == (0, None, ())
    assert first.size is not None
    assert first.size > 0
    assert second.size == 0

    lines = site.run("topics", "describe", topic).out.splitlines()
    assert lines[3].split() == [
        "PARTITION",
        "LEADER",
        "REPLICAS",
        "IN-SYNC",
        "EARLIEST",
        "STABLE",
        "END",
        "HELD-BACK",
        "BYTES",
    ]
    assert lines[4].split() == ["0", "0", "0", "0", "0", "2", "5", "3", str(first.size)]
    assert lines[6].startswith(f"partition 0: transaction {writer.name} from offset 2 on, open for ")
    assert lines[6].endswith(", holds back 3 offsets")
    assert lines[7].startswith(f"partition 0: transaction {later.name} from offset 4 on")
    assert "holds back" not in lines[7]
    shown = site.run("topics", "describe", topic, "--json").json()["partitions"][0]
    assert (shown["last_stable_offset"], shown["high_watermark"], shown["held_back"]) == (2, 5, 3)
    assert [each["holds_back"] for each in shown["open_transactions"]] == [True, False]

    writer.commit()
    later.abort()
    (ended, _) = describe_partitions(site.config, topic)
    assert (ended.last_stable_offset, ended.high_watermark, ended.open_transactions) == (7, 7, ())


def test_a_topic_is_deleted_once(site: AdminSite) -> None:
    first, second, missing = site.topic(), site.topic(), fresh_name()
    result = site.run("topics", "delete", first, missing, "--yes")
    assert (result.code, result.out) == (2, "")
    assert result.err == f"dualwrite: the cluster has no topic '{missing}', or hides it from this client\n"
    result = site.run("topics", "delete", first, missing, second, first, "--yes", "--if-exists")
    assert (result.code, result.out.splitlines()) == (
        0,
        [f"topic {missing}: there is none", f"topic {first}: deleted", f"topic {second}: deleted"],
    )
    assert not {first, second} & {topic.name for topic in list_topics(site.config)}
    with pytest.raises(KafkaRefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        delete_topic(site.config, first)
    assert delete_topic(site.config, first, if_exists=True) is False


def test_a_topic_is_not_deleted_without_a_yes(site: AdminSite) -> None:
    topic = site.topic()
    result = site.run("topics", "delete", topic)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"dualwrite: not confirmed: add --yes to delete topic {topic} with all records\n"
    assert describe_partitions(site.config, topic)


def test_a_failed_deletion_after_another_one_ends_with_1(site: AdminSite, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = site.topic(), site.topic()

    def refuse(config: object, name: str, **options: object) -> bool:
        if name == second:
            raise KafkaRefusedError(f"topic {name}", 29, "TOPIC_AUTHORIZATION_FAILED")
        return True

    monkeypatch.setattr("dualwrite.admin.topics.delete_topic", refuse)
    assert site.run("topics", "delete", first, second, "--yes") == (
        1,
        f"topic {first}: deleted\n",
        f"dualwrite: topic {second}: TOPIC_AUTHORIZATION_FAILED (29)\n",
    )
    assert site.run("topics", "delete", second, first, "--yes").code == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("create", "a b"), "'a b' is not a topic's name: use 1 to 249 letters, digits, '.', '_' and '-'"),
        (("create", "t", "--partitions", "0"), "0 partitions: use 1 or more"),
        (("create", "t", "--replication-factor", "-1"), "-1 replicas: use 1 or more"),
        (("create", "t-new", "--replication-factor", "3"), "topic 't-new' was not created: "),
        (
            ("create", "t-new", "--config", "nosuch=1"),
            "topic 't-new' was not created: Unknown topic config name: nosuch: ",
        ),
        (("create", "t", "--config", "nosuch"), "--config 'nosuch': use KEY=VALUE"),
        (("create", "t", "--config", "=1"), "--config '=1': use KEY=VALUE"),
        (("create", "t", "--config", "a=1", "--config", "a=1"), "--config a is given twice"),
        (("create", "t", "--partitions", str(2**31)), "2147483648 partitions: use 2147483647 at most"),
        (("create", "t", "--replication-factor", "40000"), "40000 replicas: use 32767 at most"),
        (("describe", "t-missing"), "the cluster has no topic 't-missing': UNKNOWN_TOPIC_OR_PARTITION (3)"),
        (("describe", "a b"), "'a b' is not a topic's name"),
        (("delete",), "the following arguments are required: TOPIC"),
        (("list", "-X", "nosuch=1"), "-X: nosuch: there is no such setting"),
    ],
)
def test_a_mistake_is_one_line(site: AdminSite, words: tuple[str, ...], complaint: str) -> None:
    code, out, err = site.run("topics", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"dualwrite: {complaint}")


def test_a_name_that_no_topic_can_have_is_an_input_error(site: AdminSite) -> None:
    with pytest.raises(InputError, match="is not a topic's name"):
        create_topic(site.config, "..")
