"""The settings of single groups over sockets: described, changed, refused, in effect, and kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.core.topic_changes import ConfigOperation
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.settings.group_settings import ASSIGNMENT_INTERVAL, HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from dualwrite.wire.apis import DeleteGroupsRequest, ListConfigResourcesRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.admin_calls import GROUP, change, config, describe_configs, replace_configs, set_config
from tests.support.requests.calls import new_topic, unique
from tests.support.requests.consumer_group_calls import ConsumerClient, describe
from tests.support.requests.offset_calls import commit
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
FROM_START, BY_DEFAULT, FROM_GROUP = 4, 5, 8
SHORT_SESSIONS = {
    "group.consumer.min.session.timeout.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "50",
}
"""Limits under which a test can see a session end."""


@pytest.fixture
def group() -> str:
    return unique("group")


@pytest.fixture
def short(tmp_path: Path) -> Iterator[ForkedBroker]:
    """A broker of one test, whose groups may have short sessions."""
    with ForkedBroker(tmp_path / "broker", config=SHORT_SESSIONS) as running:
        yield running


def own(client: RawClient, group: str, name: str = SESSION_TIMEOUT) -> tuple[str | None, int]:
    """The value of a group's setting, and its source."""
    return config(client, GROUP, group, name)


def listed(client: RawClient, *types: int) -> set[str]:
    """The groups that ListConfigResources lists."""
    resources = client.ask(ListConfigResourcesRequest(resource_types=list(types)), 1).config_resources
    return {entry.resource_name for entry in resources if entry.resource_type == GROUP}


def members(client: RawClient, group: str) -> int:
    (described,) = describe(client, group)
    return len(described.members)


# --- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
def test_a_group_without_settings_has_the_brokers(client: RawClient, group: str, version: int) -> None:
    described = describe_configs(client, GROUP, group, version=version)
    assert described.error_code == ErrorCode.NONE
    assert {entry.name: (entry.value, entry.config_source, entry.read_only) for entry in described.configs} == {
        ASSIGNMENT_INTERVAL: ("0", BY_DEFAULT, False),
        HEARTBEAT_INTERVAL: ("5000", BY_DEFAULT, False),
        SESSION_TIMEOUT: ("45000", BY_DEFAULT, False),
    }


def test_a_groups_own_value_comes_before_the_brokers(tmp_path: Path, group: str) -> None:
    started = {"group.consumer.session.timeout.ms": "46000"}
    with ForkedBroker(tmp_path / "broker", config=started) as broker, RawClient(broker.bootstrap_servers) as client:
        assert own(client, group) == ("46000", FROM_START)
        set_config(client, GROUP, group, consumer_session_timeout_ms=" 50000 ")
        (entry,) = describe_configs(client, GROUP, group, SESSION_TIMEOUT, more=True).configs
        assert (entry.value, entry.config_source, entry.is_sensitive) == ("50000", FROM_GROUP, False)
        assert [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms] == [
            (SESSION_TIMEOUT, "50000", FROM_GROUP),
            ("group.consumer.session.timeout.ms", "46000", FROM_START),
            ("group.consumer.session.timeout.ms", "45000", BY_DEFAULT),
        ]
        assert "removes the member" in entry.documentation
        assert own(client, unique("other")) == ("46000", FROM_START)


# --- changes


@pytest.mark.parametrize("version", range(2))
def test_a_setting_is_set_and_deleted_in_every_version(client: RawClient, group: str, version: int) -> None:
    assert change(client, GROUP, group, (SESSION_TIMEOUT, SET, "50000"), version=version).error == ErrorCode.NONE
    assert change(client, GROUP, group, (HEARTBEAT_INTERVAL, SET, "6000"), version=version).error == ErrorCode.NONE
    assert (own(client, group), own(client, group, HEARTBEAT_INTERVAL)) == (("50000", FROM_GROUP), ("6000", FROM_GROUP))
    assert change(client, GROUP, group, (SESSION_TIMEOUT, DELETE, None), version=version).error == ErrorCode.NONE
    assert (own(client, group), own(client, group, HEARTBEAT_INTERVAL)) == (("45000", BY_DEFAULT), ("6000", FROM_GROUP))


@pytest.mark.parametrize("version", range(3))
def test_all_settings_are_replaced_in_every_version(client: RawClient, group: str, version: int) -> None:
    both = {SESSION_TIMEOUT: "51000", HEARTBEAT_INTERVAL: "7000"}
    assert replace_configs(client, GROUP, group, both, version).error == ErrorCode.NONE
    assert own(client, group) == ("51000", FROM_GROUP)
    assert replace_configs(client, GROUP, group, {HEARTBEAT_INTERVAL: "8000"}, version).error == ErrorCode.NONE
    assert (own(client, group), own(client, group, HEARTBEAT_INTERVAL)) == (("45000", BY_DEFAULT), ("8000", FROM_GROUP))
    assert replace_configs(client, GROUP, group, {HEARTBEAT_INTERVAL: "1"}, version).error == ErrorCode.INVALID_CONFIG
    assert replace_configs(client, GROUP, group, {HEARTBEAT_INTERVAL: None}, version).error == ErrorCode.INVALID_REQUEST
    assert listed(client, GROUP) >= {group}
    assert replace_configs(client, GROUP, group, {}, version).error == ErrorCode.NONE
    assert group not in listed(client, GROUP)


@pytest.mark.parametrize("validate_only", [True, False], ids=["validated", "carried out"])
@pytest.mark.parametrize(
    ("entry", "error", "words"),
    [
        ((SESSION_TIMEOUT, SET, "1"), ErrorCode.INVALID_CONFIG, "must be in the range 45000 to 60000 inclusive"),
        ((HEARTBEAT_INTERVAL, SET, "soon"), ErrorCode.INVALID_CONFIG, "Not a number of type INT"),
        ((ASSIGNMENT_INTERVAL, SET, "100"), ErrorCode.INVALID_CONFIG, "the broker assigns partitions at once"),
        (("no.such", SET, "1"), ErrorCode.INVALID_CONFIG, "Unknown group config name: no.such"),
        (("share.session.timeout.ms", SET, "45000"), ErrorCode.INVALID_CONFIG, "Unknown group config name"),
        ((HEARTBEAT_INTERVAL, APPEND, "6000"), ErrorCode.INVALID_CONFIG, "Can't APPEND to key"),
        ((HEARTBEAT_INTERVAL, SUBTRACT, "6000"), ErrorCode.INVALID_CONFIG, "because its type is not LIST"),
        ((HEARTBEAT_INTERVAL, SET, None), ErrorCode.INVALID_REQUEST, "Null value not supported"),
        ((HEARTBEAT_INTERVAL, 9, "1"), ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
    ],
)
def test_a_change_that_is_refused_changes_nothing(
    client: RawClient, group: str, entry: tuple[str, int, str | None], error: ErrorCode, words: str, validate_only: bool
) -> None:
    other = HEARTBEAT_INTERVAL if entry[0] != HEARTBEAT_INTERVAL else SESSION_TIMEOUT
    value = "6000" if other == HEARTBEAT_INTERVAL else "50000"
    refused = change(client, GROUP, group, (other, SET, value), entry, validate_only=validate_only)
    assert refused.error == error
    assert words in refused.words
    assert group not in listed(client, GROUP)


def test_validation_alone_changes_nothing(client: RawClient, group: str) -> None:
    assert change(client, GROUP, group, (SESSION_TIMEOUT, SET, "50000"), validate_only=True).error == ErrorCode.NONE
    assert own(client, group) == ("45000", BY_DEFAULT)
    set_config(client, GROUP, group, consumer_session_timeout_ms="50000")
    assert change(client, GROUP, group, (SESSION_TIMEOUT, DELETE, None), validate_only=True).error == ErrorCode.NONE
    assert own(client, group) == ("50000", FROM_GROUP)


def test_a_setting_that_is_not_set_can_be_deleted(client: RawClient, group: str) -> None:
    for name in (SESSION_TIMEOUT, "no.such"):
        assert change(client, GROUP, group, (name, DELETE, None)) == (ErrorCode.NONE, "")


def test_no_setting_is_that_of_all_groups(client: RawClient) -> None:
    assert describe_configs(client, GROUP, "").error_message == "Group name must not be empty"
    for validate_only in (True, False):
        refused = change(client, GROUP, "", (SESSION_TIMEOUT, SET, "50000"), validate_only=validate_only)
        assert refused == (ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    assert replace_configs(client, GROUP, "", {SESSION_TIMEOUT: "50000"}).error == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", ["a group", "a:b", "ü", "..", "x" * 300])
def test_a_group_of_any_name_has_settings(client: RawClient, name: str) -> None:
    set_config(client, GROUP, name, consumer_session_timeout_ms="50000")
    assert own(client, name) == ("50000", FROM_GROUP)
    assert name in listed(client, GROUP)


def test_the_groups_with_settings_are_listed(client: RawClient, group: str) -> None:
    topic, other = new_topic(client), unique("other")
    ConsumerClient(client, other).join(topic)
    set_config(client, GROUP, group, consumer_session_timeout_ms="50000")
    for types in ((GROUP,), ()):
        assert group in listed(client, *types)
        assert other not in listed(client, *types)
    change(client, GROUP, group, (SESSION_TIMEOUT, DELETE, None))
    assert group not in listed(client)


# --- in effect


def test_the_heartbeat_interval_is_in_the_next_answer(client: RawClient, group: str) -> None:
    topic = new_topic(client)
    set_config(client, GROUP, group, consumer_heartbeat_interval_ms="6000")
    member, other = ConsumerClient(client, group), ConsumerClient(client, unique("other"))
    assert member.join(topic).heartbeat_interval_ms == 6000
    assert other.join(topic).heartbeat_interval_ms == 5000
    set_config(client, GROUP, group, consumer_heartbeat_interval_ms="7000")
    assert member.beat().heartbeat_interval_ms == 7000
    change(client, GROUP, group, (HEARTBEAT_INTERVAL, DELETE, None))
    assert member.beat().heartbeat_interval_ms == 5000


def test_a_member_is_removed_after_the_session_timeout_of_its_group(short: ForkedBroker, group: str) -> None:
    with RawClient(short.bootstrap_servers) as client:
        topic, other = new_topic(client), unique("other")
        ConsumerClient(client, group).join(topic)
        ConsumerClient(client, other).join(topic)
        both = {HEARTBEAT_INTERVAL: "50", SESSION_TIMEOUT: "200"}
        assert replace_configs(client, GROUP, group, both).error == ErrorCode.NONE
        assert replace_configs(client, GROUP, other, {HEARTBEAT_INTERVAL: "50"}).error == ErrorCode.NONE
        late = ConsumerClient(client, group)
        late.join(topic)
        assert eventually(lambda: members(client, group), lambda count: count == 1) == 1
        assert late.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert members(client, group) == 1, "the member of before has the session of before until its next heartbeat"
        assert members(client, other) == 1


# --- kept


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_settings_survive_a_restart(broker: EmbeddedBroker, group: str, is_killed: bool) -> None:
    deleted = unique("deleted")
    with RawClient(broker.bootstrap_servers) as client:
        for name in (group, deleted):
            set_config(client, GROUP, name, consumer_session_timeout_ms="50000", consumer_heartbeat_interval_ms="6000")
        change(client, GROUP, group, (SESSION_TIMEOUT, SET, "51000"))
        replace_configs(client, GROUP, deleted, {})
    if is_killed:
        broker.kill()
    else:
        broker.stop()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert (own(client, group), own(client, group, HEARTBEAT_INTERVAL)) == (
            ("51000", FROM_GROUP),
            ("6000", FROM_GROUP),
        )
        assert listed(client) == {group}
        assert ConsumerClient(client, group).join(new_topic(client)).heartbeat_interval_ms == 6000


def test_a_restarted_broker_waits_for_a_member_as_long_as_its_group_says(short: ForkedBroker, group: str) -> None:
    with RawClient(short.bootstrap_servers) as client:
        topic = new_topic(client)
        ConsumerClient(client, group).join(topic)
        both = {HEARTBEAT_INTERVAL: "50", SESSION_TIMEOUT: "200"}
        assert replace_configs(client, GROUP, group, both).error == ErrorCode.NONE
    short.kill()
    short.start()
    with RawClient(short.bootstrap_servers) as client:
        assert eventually(lambda: members(client, group), lambda count: count == 0) == 0


def test_the_settings_of_a_group_outlive_the_group(client: RawClient, group: str) -> None:
    commit(client, group, {(new_topic(client), 0): 1})
    set_config(client, GROUP, group, consumer_session_timeout_ms="50000")
    client.ask(DeleteGroupsRequest(groups_names=[group]), 2)
    assert own(client, group) == ("50000", FROM_GROUP)


def test_narrower_limits_hold_for_a_value_that_is_kept(tmp_path: Path, group: str) -> None:
    directory, log = tmp_path / "broker", tmp_path / "broker" / "broker.log"
    with ForkedBroker(directory) as broker, RawClient(broker.bootstrap_servers) as client:
        set_config(client, GROUP, group, consumer_heartbeat_interval_ms="15000", consumer_session_timeout_ms="50000")
        assert "outside" not in log.read_text()
    narrow = {"group.consumer.max.heartbeat.interval.ms": "7000"}
    with ForkedBroker(directory, config=narrow) as broker, RawClient(broker.bootstrap_servers) as client:
        warning = f"its {HEARTBEAT_INTERVAL}=15000 is outside of the broker's limits, 5000 to 7000; 7000 applies"
        assert f"WARNING dualwrite.broker.runtime.groups.consumer: group '{group}': {warning}" in log.read_text()
        member = ConsumerClient(client, group)
        assert member.join(new_topic(client)).heartbeat_interval_ms == 7000
        assert own(client, group, HEARTBEAT_INTERVAL) == ("15000", FROM_GROUP)
        refused = change(client, GROUP, group, (SESSION_TIMEOUT, SET, "51000"))
        assert refused == (
            ErrorCode.INVALID_CONFIG,
            f"{HEARTBEAT_INTERVAL} must be in the range 5000 to 7000 inclusive.",
        )
