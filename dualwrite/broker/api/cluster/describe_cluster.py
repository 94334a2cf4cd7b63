"""DescribeCluster (60), v0-v2 (KIP-700).

Answers the cluster's id and the one node, which is also reported as the controller. A request for the endpoints of
controllers (v1, KIP-919) gets MISMATCHED_ENDPOINT_TYPE, because there are none. A node that answers is never fenced
(v2).
"""

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, DescribeClusterResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_CLUSTER
VERSIONS = range(3)
_DESCRIBE = on_cluster(AclOperation.DESCRIBE, "for the authorized operations alone", is_refused=False)
NEEDS = (_DESCRIBE,)

_BROKERS, _CONTROLLERS = 1, 2
_FIRST_WITH_ENDPOINTS = 1


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe the cluster."""
    endpoints = request.endpoint_type if version >= _FIRST_WITH_ENDPOINTS else _BROKERS
    if endpoints != _BROKERS:
        is_known = endpoints == _CONTROLLERS
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return DescribeClusterResponse(
            throttle_time_ms=0,
            error_code=error,
            error_message=f"this is a broker's endpoint, type {_BROKERS}; the request was for type {endpoints}",
            endpoint_type=_BROKERS,
            cluster_id="",
            brokers=[],
            authorized_operations=None,
        )
    node = DescribeClusterResponse.DescribeClusterBroker
    operations: frozenset[int] | None = None
    if request.include_cluster_authorized_operations:
        operations = broker.operations(ResourceType.CLUSTER) if broker.may(_DESCRIBE) else frozenset()
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        endpoint_type=_BROKERS,
        cluster_id=broker.cluster.state.cluster_id,
        controller_id=broker.node_id,
        brokers=[node(broker_id=broker.node_id, host=broker.host, port=broker.port, rack=None, is_fenced=False)],
        authorized_operations=operations,
    )
