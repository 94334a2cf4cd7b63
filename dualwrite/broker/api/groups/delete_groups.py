"""DeleteGroups (42), v0-v3.

Deletes groups without members, with all their committed offsets and the pending offsets of open transactions. Errors:
NON_EMPTY_GROUP if there are members, GROUP_ID_NOT_FOUND if the group is unknown. v3's error message stays empty, as for
classic groups in Apache Kafka 4.4.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.wire.apis import ApiKey, DeleteGroupsResponse, Message

KEY = ApiKey.DELETE_GROUPS
VERSIONS = range(4)
_DELETE = on_group(AclOperation.DELETE)
NEEDS = (_DELETE,)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Delete the groups of the request, each independently."""
    result = DeleteGroupsResponse.DeletableGroupResult
    names = dict.fromkeys(request.groups_names)
    results = []
    async for name in in_turns(names):
        error = await broker.offsets.delete_group(name) if broker.may(_DELETE, name) else _DELETE.error
        results.append(result(group_id=name, error_code=error))
    return DeleteGroupsResponse(throttle_time_ms=0, results=results)
