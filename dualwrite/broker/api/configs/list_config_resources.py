"""ListConfigResources (74), v0-v1 (KIP-1142).

The resources that can be asked for their settings: the topics, the broker, and from v1 on of which types. v0, which
lists client metrics only, has nothing to list, as have the types group and client metrics. ACL: none yet.
"""

from dualwrite.broker.api.configs.altering import BROKER, TOPIC
from dualwrite.broker.api.context import NODE_ID, BrokerContext
from dualwrite.wire.apis import ApiKey, ListConfigResourcesResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LIST_CONFIG_RESOURCES
VERSIONS = range(2)

_LOGGER, _CLIENT_METRICS, _GROUP = 8, 16, 32
_TYPES = frozenset({TOPIC, BROKER, _LOGGER, _CLIENT_METRICS, _GROUP})
_FIRST_WITH_TYPES = 1


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """List the resources of the types that the request names; no types mean all."""
    wanted = frozenset(request.resource_types) or _TYPES if version >= _FIRST_WITH_TYPES else {_CLIENT_METRICS}
    if not wanted <= _TYPES:
        return ListConfigResourcesResponse(
            throttle_time_ms=0, error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[]
        )
    found = [(TOPIC, name) for name in sorted(broker.cluster.topics()) if TOPIC in wanted]
    found += [(kind, str(NODE_ID)) for kind in (BROKER, _LOGGER) if kind in wanted]
    await broker.flusher.barrier()
    resource = ListConfigResourcesResponse.ConfigResource
    return ListConfigResourcesResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        config_resources=[resource(resource_name=name, resource_type=kind) for kind, name in found],
    )
