"""FindCoordinator (10), v0-v6.

The one node coordinates every transactional id (key type 1, from v1 on) and every group with its offsets (key type 0).
Any other key type, such as share groups, gets INVALID_REQUEST. From v4 on a request may have several keys (KIP-699).
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_group, on_transactional_id
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.wire.apis import ApiKey, FindCoordinatorResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.FIND_COORDINATOR
VERSIONS = range(7)

_FIRST_WITH_SEVERAL_KEYS = 4
_DESCRIBE = {0: on_group(AclOperation.DESCRIBE), 1: on_transactional_id(AclOperation.DESCRIBE)}
"""The key types, with the right to a key."""
NEEDS = tuple(_DESCRIBE.values())
_NOWHERE = {"node_id": -1, "host": "", "port": -1}


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Name the coordinator of the keys of the request."""
    if version >= _FIRST_WITH_SEVERAL_KEYS:
        entry = FindCoordinatorResponse.Coordinator
        keys = in_turns(request.coordinator_keys)
        coordinators = [entry(key=key, **_coordinator(request.key_type, key, broker)) async for key in keys]
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)
    return FindCoordinatorResponse(throttle_time_ms=0, **_coordinator(request.key_type, request.key, broker))


def _coordinator(key_type: int, key: str, broker: BrokerContext) -> dict[str, object]:
    need = _DESCRIBE.get(key_type)
    if need is not None and not broker.may(need, key):
        return {"error_code": need.error, "error_message": None, **_NOWHERE}
    if need is not None:
        node = {"node_id": broker.node_id, "host": broker.host, "port": broker.port}
        return {"error_code": ErrorCode.NONE, "error_message": None, **node}
    message = "this broker coordinates transactions and groups, nothing else"
    return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": message, **_NOWHERE}
