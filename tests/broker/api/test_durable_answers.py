"""No answer leaves before the disk has what it tells, also if another client has changed it a moment ago."""

from dataclasses import replace

import pytest

from dualwrite.broker.api.context import ANONYMOUS
from dualwrite.broker.api.routes import ROUTES
from dualwrite.broker.core.cluster import CLUSTER_METADATA, CreateTopic
from dualwrite.broker.runtime.access_control import AccessControl, AccessSettings
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.apis import (
    APIS,
    AddPartitionsToTxnRequest,
    ApiKey,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeQuorumRequest,
    InitProducerIdRequest,
    Message,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from tests.support.broker.in_process import InProcessBroker
from tests.support.broker.simulated import TOPIC, Rooms, run
from tests.support.requests.acl_calls import EVERY_ACL, describe_request
from tests.support.requests.calls import added_topics
from tests.support.requests.group_calls import sync_request
from tests.support.requests.raw_client import key_of

SAY_NOTHING_OF_STATE = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.UPDATE_FEATURES,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
}
TELL_OF_PARTITIONS_ALONE = {
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
}
"""They look at the log of each partition, or wait for it alone. Other tests are about them."""
_COMMIT, _FETCH = OffsetCommitRequest.OffsetCommitRequestTopic, OffsetFetchRequest.OffsetFetchRequestGroup
_ADD, _QUORUM = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction, DescribeQuorumRequest.TopicData
WITH_CONTENT: dict[ApiKey, tuple[Message, int]] = {
    key_of(request): (request, version)
    for request, version in (
        (DeleteTopicsRequest(topic_names=["gone"]), 5),
        (DeleteGroupsRequest(groups_names=["gone"]), 2),
        (InitProducerIdRequest(transactional_id=None), 6),
        (sync_request("group", 1, "member"), 5),
        (describe_request(EVERY_ACL), 3),
        (OffsetFetchRequest(groups=[_FETCH(group_id="group", topics=None)]), 9),
        (
            OffsetCommitRequest(
                group_id="group",
                generation_id_or_member_epoch=-1,
                topics=[_COMMIT(name=TOPIC, partitions=[_COMMIT.OffsetCommitRequestPartition()])],
            ),
            9,
        ),
        (
            AddPartitionsToTxnRequest(transactions=[_ADD(transactional_id="app", topics=added_topics([(TOPIC, 0)]))]),
            5,
        ),
        (
            DescribeQuorumRequest(
                topics=[_QUORUM(topic_name=CLUSTER_METADATA, partitions=[_QUORUM.PartitionData(partition_index=0)])]
            ),
            2,
        ),
    )
}
"""An empty request of these gets an answer that says nothing."""


@pytest.mark.parametrize(
    "key", sorted(ROUTES.keys() - SAY_NOTHING_OF_STATE - TELL_OF_PARTITIONS_ALONE), ids=lambda key: key.name
)
def test_an_answer_waits_until_the_disk_has_what_it_tells(key: ApiKey) -> None:
    async def main() -> None:
        rooms = await Rooms(MemoryFiles()).with_topic()
        broker = InProcessBroker(rooms)
        access = AccessSettings(is_enabled=True, super_users=frozenset({ANONYMOUS}))
        broker.context = replace(broker.context, access=AccessControl(rooms.cluster, access, rooms.clock))
        client = broker.connect("10.0.0.1")
        rooms.cluster.create_topic(CreateTopic("new"))
        assert rooms.flusher.must_wait, "the topic is not on disk yet"
        request, version = WITH_CONTENT.get(key) or (APIS[key].request(), ROUTES[key].versions[-1])
        await client.ask(request, version)
        assert not rooms.flusher.must_wait
        await broker.close()

    run(main())
