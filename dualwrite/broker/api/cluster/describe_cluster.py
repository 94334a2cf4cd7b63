"""DescribeCluster (60), v0-v2 (KIP-700).

The one node, which is also told as the controller, and the cluster's id. From v1 on the endpoints of controllers can be
asked for (KIP-919): there are none, MISMATCHED_ENDPOINT_TYPE. A node that answers is never fenced (v2). ACL: none yet,
so every client may do everything.
"""

from dualwrite.broker.api.context import NODE_ID, BrokerContext
from dualwrite.broker.api.operations import ON_CLUSTER
from dualwrite.wire.apis import ApiKey, DescribeClusterResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_CLUSTER
VERSIONS = range(3)

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
    operations = ON_CLUSTER if request.include_cluster_authorized_operations else None
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        endpoint_type=_BROKERS,
        cluster_id=broker.cluster.state.cluster_id,
        controller_id=NODE_ID,
        brokers=[node(broker_id=NODE_ID, host=broker.host, port=broker.port, rack=None, is_fenced=False)],
        authorized_operations=operations,
    )
