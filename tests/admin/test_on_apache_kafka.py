"""The daily verbs on a real Apache Kafka: the same requests, and the same answers."""

from collections.abc import Iterator

import pytest

from dualwrite.admin.acls import EVERY_ACL, remove_acls
from dualwrite.admin.groups import describe_group
from dualwrite.admin.topics import describe_topic
from tests.support.admin.admin_site import AdminSite
from tests.support.admin.compacted_transactions import CompactedTransactions
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.peer_clients.kafka_helpers import fresh_name

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "log.cleaner.backoff.ms": "100",
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), AUTHORIZER) as running:
        yield running


@pytest.fixture
def apache(kafka: ApacheKafka) -> Iterator[AdminSite]:
    made = AdminSite(kafka.bootstrap_servers)
    yield made
    made.close()


def test_topics_are_created_described_and_deleted(apache: AdminSite) -> None:
    name = fresh_name()
    assert apache.run("topics", "create", name, "--partitions", "2", "--config", "retention.ms=3600000").code == 0
    assert apache.run("topics", "create", name, "--if-not-exists").out == f"topic {name}: exists\n"
    refused = apache.run("topics", "create", fresh_name(), "--config", "nosuch=1")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "INVALID_CONFIG (40)" in refused.err
    apache.plain(name, "a")
    writer = apache.producer().write(name, "b")
    topic = describe_topic(apache.config, name)
    assert topic.settings is not None
    assert [(each.name, each.value) for each in topic.settings if each.is_own] == [("retention.ms", "3600000")]
    first, second = topic.partitions
    assert (first.earliest, first.last_stable_offset, first.high_watermark) == (0, 1, 2)
    assert first.holder is not None
    assert first.holder.transactional_id == writer.name
    assert first.size is not None
    assert first.size > 0
    assert (second.size, second.open_transactions) == (0, ())
    assert [name, "2", "1"] in apache.rows("topics", "list")
    writer.commit()
    assert apache.run("topics", "delete", name, "--yes").code == 0
    assert apache.run("topics", "describe", name).code == 2


def test_records_have_the_states_of_their_transactions(apache: AdminSite) -> None:
    topic = apache.topic()
    apache.plain(topic, "plain")
    first = apache.producer().write(topic, "tea").commit().write(topic, "coffee").abort()
    second = apache.producer().write(topic, "cake")
    first.write(topic, "late").commit().write(topic, "lost").abort()
    rows = apache.rows("consume", topic, "--all", "--markers")
    assert [row[2:5] for row in rows] == [
        ["plain", "-", "plain"],
        ["committed", first.name, "tea"],
        ["commit-marker", first.name, "-"],
        ["aborted", first.name, "coffee"],
        ["abort-marker", first.name, "-"],
        ["open", second.name, "cake"],
        ["committed-hidden", first.name, "late"],
        ["commit-marker", first.name, "-"],
        ["aborted", first.name, "lost"],
        ["abort-marker", first.name, "-"],
    ]
    second.commit()
    assert [row[4] for row in apache.rows("consume", topic)] == ["plain", "tea", "cake", "late"]


@pytest.mark.parametrize("seed", range(4))
def test_compaction_changes_no_state(apache: AdminSite, seed: int) -> None:
    CompactedTransactions(apache, seed).check()


def test_groups_are_described_reset_and_deleted(apache: AdminSite) -> None:
    topic, group = apache.topic(), fresh_name()
    apache.producer().write(topic, "a").commit()
    consumer = apache.consume(group, topic, 1)
    described = describe_group(apache.config, group)
    assert (described.state, described.kind) == ("Stable", "classic")
    assert described.members is not None
    assert [len(member.partitions) for member in described.members] == [1]
    refused = apache.run("groups", "reset-offsets", group, "--topic", topic, "--to", "beginning", "--yes")
    assert refused.err == f"dualwrite: group '{group}' has members: stop its consumers first\n"
    consumer.close()
    assert apache.run("groups", "reset-offsets", group, "--topic", topic, "--to", "1", "--yes").code == 0
    (lag,) = describe_group(apache.config, group).lags
    assert (lag.committed, lag.lag, lag.unread) == (1, 1, 0)
    assert [group, "Empty", "classic", "consumer"] in apache.rows("groups", "list")
    assert apache.run("groups", "delete", group, "--yes").code == 0
    assert apache.run("groups", "describe", group).err.startswith(f"dualwrite: the cluster has no group '{group}'")


def test_a_group_of_the_new_protocol_shows_its_lag_and_its_members(apache: AdminSite) -> None:
    topic, group = apache.topic(), fresh_name()
    apache.plain(topic, "a", "b")
    apache.config["group.protocol"] = "consumer"
    consumer = apache.consume(group, topic, 1)
    del apache.config["group.protocol"]
    described = describe_group(apache.config, group)
    assert described.kind == "consumer"
    assert described.members is not None
    assert [len(member.partitions) for member in described.members] == [1]
    assert [(lag.committed, lag.lag, lag.unread) for lag in described.lags] == [(1, 1, 1)]
    assert "members   1" in apache.run("groups", "describe", group).out
    consumer.close()


def test_acls_are_added_listed_and_removed(apache: AdminSite) -> None:
    words = ("--topic", "orders", "--transactional-id", "orders-", "--principal", "User:a", "--prefixed")
    assert apache.run("acls", "add", *words, "--operation", "WRITE").code == 0
    assert sorted(apache.rows("acls", "list")) == [
        ["User:a", "*", "ALLOW", "WRITE", "PREFIXED", "TOPIC", "orders"],
        ["User:a", "*", "ALLOW", "WRITE", "PREFIXED", "TRANSACTIONAL_ID", "orders-"],
    ]
    removed = apache.run("acls", "remove", "--topic", "orders", "--yes")
    assert removed.out.splitlines()[-1] == "removed 1 ACL"
    assert len(remove_acls(apache.config, EVERY_ACL)) == 1
    assert apache.run("acls", "list").out == "no ACLs\n"
