"""The APIs of ACLs over the wire, and what a broker does with ACLs."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dualwrite.broker.access.acls import CLUSTER_NAME, Acl, AclOperation, PatternType, Permission, ResourceType
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.errors import ConfigurationError
from dualwrite.wire.apis import CreateAclsRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests import calls
from tests.support.requests.acl_calls import EVERY_ACL, acl, create, creation, delete, describe_request, described
from tests.support.requests.consumer_group_calls import ConsumerClient, describe
from tests.support.requests.raw_client import RawClient

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
OPEN = {**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
READ, WRITE = AclOperation.READ, AclOperation.WRITE
TOPIC = ResourceType.TOPIC


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., EmbeddedBroker]]:
    """Starts brokers one after another on the same data."""
    running: list[EmbeddedBroker] = []

    def begin(config: dict[str, str]) -> EmbeddedBroker:
        running.append(ForkedBroker(tmp_path / "broker", config=config))
        return running[-1].start()

    yield begin
    for broker in running:
        broker.stop()


@pytest.fixture
def open_client(start: Callable[..., EmbeddedBroker]) -> Iterator[RawClient]:
    """A client of a broker on which everybody may do what no ACL protects."""
    with RawClient(start(OPEN).bootstrap_servers) as client:
        yield client


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_created_described_and_deleted(open_client: RawClient, version: int) -> None:
    wanted = {
        acl(READ, TOPIC, "orders", principal="User:ann"),
        acl(WRITE, TOPIC, "or", pattern=PatternType.PREFIXED, host="10.0.0.1", permission=Permission.DENY),
        acl(AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, "*"),
    }
    assert create(open_client, wanted, version) == [ErrorCode.NONE] * 3
    assert described(open_client, version=version) == wanted
    on_orders = dataclasses.replace(EVERY_ACL, resource_name="orders", pattern_type=PatternType.MATCH)
    assert {each.resource_name for each in described(open_client, on_orders, version)} == {"orders", "or", "*"}
    only_topics = dataclasses.replace(EVERY_ACL, resource_type=TOPIC)
    nothing = dataclasses.replace(EVERY_ACL, principal="User:nobody")
    assert delete(open_client, only_topics, nothing, version=version) == [(ErrorCode.NONE, 2), (ErrorCode.NONE, 0)]
    assert {each.resource_type for each in described(open_client)} == {ResourceType.TRANSACTIONAL_ID}


def test_an_acl_is_stored_once(open_client: RawClient) -> None:
    one = acl(READ, TOPIC, "orders")
    assert create(open_client, [one, one]) == [ErrorCode.NONE] * 2
    assert create(open_client, [one]) == [ErrorCode.NONE]
    assert delete(open_client, EVERY_ACL, EVERY_ACL) == [(ErrorCode.NONE, 1)] * 2
    assert described(open_client) == set()


def test_a_refused_acl_does_not_keep_others_from_being_stored(open_client: RawClient) -> None:
    good, nameless = acl(READ, TOPIC, "orders"), acl(READ, TOPIC, "")
    unknown = creation(good)
    unknown.operation = 99
    request = CreateAclsRequest(creations=[creation(nameless), creation(good), unknown])
    errors = [result.error_code for result in open_client.ask(request, 3).results]
    assert errors == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert described(open_client) == {good}


def test_a_filter_with_an_unknown_code_is_refused(open_client: RawClient) -> None:
    request = describe_request(EVERY_ACL)
    request.operation = 99
    assert open_client.ask(request, 3).error_code == ErrorCode.INVALID_REQUEST


def test_without_an_authorizer_there_are_no_acls(client: RawClient) -> None:
    assert client.ask(describe_request(EVERY_ACL), 3).error_code == ErrorCode.SECURITY_DISABLED
    assert create(client, [acl(READ, TOPIC, "t")]) == [ErrorCode.SECURITY_DISABLED]
    assert delete(client, EVERY_ACL) == [(ErrorCode.SECURITY_DISABLED, 0)]


def test_acls_survive_a_kill_and_a_restart(start: Callable[..., EmbeddedBroker]) -> None:
    kept, dropped = acl(READ, TOPIC, "kept"), acl(READ, TOPIC, "dropped")
    broker = start(OPEN)
    with RawClient(broker.bootstrap_servers) as client:
        create(client, [kept, dropped])
        delete(client, dataclasses.replace(EVERY_ACL, resource_name="dropped"))
    broker.kill()
    again = start(OPEN)
    with RawClient(again.bootstrap_servers) as client:
        assert described(client) == {kept}


def test_a_change_applies_to_the_next_request_of_a_connection_that_is_open(open_client: RawClient) -> None:
    topic = calls.new_topic(open_client)
    assert calls.produce(open_client, topic, calls.batch([b"a"])).error_code == ErrorCode.NONE
    create(open_client, [acl(WRITE, TOPIC, topic, permission=Permission.DENY)])
    assert calls.produce(open_client, topic, calls.batch([b"b"])).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    delete(open_client, dataclasses.replace(EVERY_ACL, resource_name=topic))
    assert calls.produce(open_client, topic, calls.batch([b"c"])).error_code == ErrorCode.NONE
    assert calls.read_all(open_client, topic) == [b"a", b"c"]


def test_without_acls_only_super_users_are_authorized(start: Callable[..., EmbeddedBroker]) -> None:
    with RawClient(start(AUTHORIZER).bootstrap_servers) as client:
        answer = calls.metadata(client, "t", create=True)
        assert answer.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert create(client, [acl(READ, TOPIC, "t")]) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def test_a_super_user_may_do_everything_whatever_is_denied(start: Callable[..., EmbeddedBroker]) -> None:
    with RawClient(start({**AUTHORIZER, "super.users": "User:backup; User:ANONYMOUS"}).bootstrap_servers) as client:
        forbidden: list[Acl] = [
            acl(AclOperation.ALL, TOPIC, "*", permission=Permission.DENY),
            acl(AclOperation.ALL, ResourceType.CLUSTER, CLUSTER_NAME, permission=Permission.DENY),
        ]
        assert create(client, forbidden) == [ErrorCode.NONE] * 2
        topic = calls.new_topic(client)
        assert calls.produce(client, topic, calls.batch([b"a"])).error_code == ErrorCode.NONE


def test_a_host_acl_applies_to_a_client_with_an_empty_client_id(start: Callable[..., EmbeddedBroker]) -> None:
    """The broker makes the client of a request anew when its client.id changes, and an empty one is no change."""
    broker = start(OPEN)
    with RawClient(broker.bootstrap_servers) as client:
        topic = calls.new_topic(client)
        create(
            client, [acl(WRITE, TOPIC, topic), acl(WRITE, TOPIC, topic, host="127.0.0.2", permission=Permission.DENY)]
        )
    with RawClient(broker.bootstrap_servers, "127.0.0.2", client_id="") as client:
        answer = calls.produce(client, topic, calls.batch([b"a"]))
        assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("setting", "value"),
    [("authorizer.class.name", "kafka.security.Authorizer"), ("super.users", "admin"), ("super.users", "User:a;b")],
)
def test_a_wrong_setting_ends_the_start(start: Callable[..., EmbeddedBroker], setting: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        start({setting: value})


def test_a_pattern_of_a_consumer_group_matches_no_topic_that_the_client_may_not_describe(
    open_client: RawClient,
) -> None:
    secret, shown = calls.new_topic(open_client), calls.new_topic(open_client)
    by_name, by_pattern = (ConsumerClient(open_client, calls.unique("group")) for _ in range(2))
    assert by_name.join(secret).error_code == ErrorCode.NONE
    by_pattern.join(subscribed_topic_names=None, subscribed_topic_regex=f"{secret}|{shown}")
    assert len(by_pattern.owned) == 2
    denied = acl(AclOperation.DESCRIBE, TOPIC, secret, permission=Permission.DENY)
    shown_id = calls.topic_id(open_client, shown)
    create(open_client, [denied])
    assert by_name.join(secret).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    by_pattern.beat()
    assert by_pattern.owned == {shown_id: [0]}
    hidden, seen = describe(open_client, by_name.group, by_pattern.group)
    assert (hidden.error_code, hidden.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])
    assert (seen.error_code, len(seen.members)) == (ErrorCode.NONE, 1)
