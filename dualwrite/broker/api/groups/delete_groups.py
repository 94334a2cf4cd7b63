"""DeleteGroups (42), v0-v3.

Deletes groups without members, with all their committed offsets, and the pending ones of open transactions.
NON_EMPTY_GROUP if there are members, GROUP_ID_NOT_FOUND if the group is unknown. v3 has room for words beside an
error; as in Apache Kafka 4.4, classic groups need none. ACL: none yet.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.wire.apis import ApiKey, DeleteGroupsResponse, Message

KEY = ApiKey.DELETE_GROUPS
VERSIONS = range(4)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Delete the groups of the request, each by itself."""
    result = DeleteGroupsResponse.DeletableGroupResult
    names = dict.fromkeys(request.groups_names)
    results = [
        result(group_id=name, error_code=await broker.offsets.delete_group(name)) async for name in in_turns(names)
    ]
    return DeleteGroupsResponse(throttle_time_ms=0, results=results)
