"""UnregisterBroker (64), v0 (KIP-631).

The one node cannot leave its cluster: INVALID_REQUEST. Any other id gets BROKER_ID_NOT_REGISTERED.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, Message, UnregisterBrokerResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.UNREGISTER_BROKER
VERSIONS = range(1)
_ALTER = on_cluster(AclOperation.ALTER)
NEEDS = (_ALTER,)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Refuse to remove the node."""
    if not broker.may(_ALTER):
        error, message = _ALTER.error, _ALTER.message
    elif request.broker_id == broker.node_id:
        error = ErrorCode.INVALID_REQUEST
        message = f"broker {broker.node_id} is the one node of this cluster: stop it instead"
    else:
        error = ErrorCode.BROKER_ID_NOT_REGISTERED
        message = f"Broker ID {request.broker_id} is not currently registered"
    return UnregisterBrokerResponse(throttle_time_ms=0, error_code=error, error_message=message)
