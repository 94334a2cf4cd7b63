"""ListConfigResources (74), v0-v1 (KIP-1142).

Lists the resources that have settings: the topics, the broker, and the groups with settings of their own. From v1 on
the request may name the types of resources. The type client metrics has no resources here, so v0, which lists only
client metrics, returns an empty list.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.configs.altering import BROKER, GROUP, TOPIC
from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, ListConfigResourcesResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.LIST_CONFIG_RESOURCES
VERSIONS = range(2)
_DESCRIBE_CONFIGS = on_cluster(AclOperation.DESCRIBE_CONFIGS)
NEEDS = (_DESCRIBE_CONFIGS,)

_LOGGER, _CLIENT_METRICS = 8, 16
_TYPES = frozenset({TOPIC, BROKER, _LOGGER, _CLIENT_METRICS, GROUP})
_FIRST_WITH_TYPES = 1


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """List the resources of the types that the request names; no types mean all."""
    if not broker.may(_DESCRIBE_CONFIGS):
        return ListConfigResourcesResponse(throttle_time_ms=0, error_code=_DESCRIBE_CONFIGS.error, config_resources=[])
    requested_types = frozenset(request.resource_types) or _TYPES if version >= _FIRST_WITH_TYPES else {_CLIENT_METRICS}
    if not requested_types <= _TYPES:
        return ListConfigResourcesResponse(
            throttle_time_ms=0, error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[]
        )
    groups = sorted(broker.cluster.state.group_configs) if GROUP in requested_types else ()
    resources = [(GROUP, name) for name in groups]
    resources += [(TOPIC, name) for name in sorted(broker.cluster.topics()) if TOPIC in requested_types]
    resources += [(kind, str(broker.node_id)) for kind in (BROKER, _LOGGER) if kind in requested_types]
    await broker.flusher.barrier()
    resource = ListConfigResourcesResponse.ConfigResource
    return ListConfigResourcesResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        config_resources=[resource(resource_name=name, resource_type=kind) for kind, name in resources],
    )
