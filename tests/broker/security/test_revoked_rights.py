"""A right that is taken from a client counts for the request that it waits in."""

import time
from pathlib import Path

from dualwrite.broker.access.acls import AclFilter, AclOperation, PatternType, Permission, ResourceType
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests import acl_calls, calls
from tests.support.requests.raw_client import RawClient

OWNER, READER = "127.0.0.1", "127.0.0.2"
CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def test_a_waiting_fetch_returns_no_records_after_its_right_was_revoked(tmp_path: Path) -> None:
    with (
        ForkedBroker(tmp_path, config=CONFIG) as broker,
        RawClient(broker.bootstrap_servers, OWNER) as owner,
        RawClient(broker.bootstrap_servers, READER) as reader,
    ):
        topics = [calls.new_topic(owner) for _ in range(2)]
        for topic in topics:
            both = [
                acl_calls.acl(operation, ResourceType.TOPIC, topic, host=host)
                for operation, host in ((AclOperation.ALL, OWNER), (AclOperation.READ, READER))
            ]
            acl_calls.create(owner, both)
        revoked, kept = topics
        request = calls.fetch_request(revoked, max_wait_ms=20_000)
        request.topics += calls.fetch_request(kept).topics
        correlation = reader.send(request, 12)
        time.sleep(0.3)  # it waits now
        acl_calls.delete(
            owner,
            AclFilter(ResourceType.TOPIC, revoked, PatternType.LITERAL, None, READER, AclOperation.ANY, Permission.ANY),
        )
        calls.produce(owner, revoked, calls.batch([b"secret"]))
        answer = reader.receive(ApiKey.FETCH, 12, correlation)
        first, second = [partition for topic in answer.responses for partition in topic.partitions]
        assert ErrorCode(first.error_code) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not first.records
        assert ErrorCode(second.error_code) is ErrorCode.NONE
