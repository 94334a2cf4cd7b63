"""ApiVersions (18), v0-v5.

The answer is the routing table itself, so the broker advertises exactly the versions that work. It also has the
finalized features ``transaction.version=2`` (KIP-890), which stands for Produce 12, AddPartitionsToTxn 5 and EndTxn 5,
and ``group.version=1`` (KIP-848), which stands for the consumer protocol.
Below v4 the supported features are empty, because those clients reject a feature that begins at version 0.

From v5 on (KIP-1242) a client names the cluster and the node that it expects. Errors: REBOOTSTRAP_REQUIRED for another
cluster or node; INVALID_REQUEST for only one of the two, or for an invalid name or version of the client software
(KIP-511). A request of a higher version gets UNSUPPORTED_VERSION in the form of v0, with the versions of ApiVersions
alone (KIP-511); the client then asks again.
"""

import re
from collections.abc import Iterable

from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, ApiVersionsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.API_VERSIONS
VERSIONS = range(6)

TRANSACTION_VERSION = 2
GROUP_VERSION = 1
FEATURES = {"group.version": GROUP_VERSION, "transaction.version": TRANSACTION_VERSION}
"""Name -> the level of each finalized feature, which is also the highest that is supported."""
_FEATURES_EPOCH = 0
_FIRST_WITH_SOFTWARE = 3
_FIRST_WITH_FEATURES_FROM_0 = 4
_FIRST_WITH_CLUSTER = 5
_NO_NODE = -1
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def respond(request: Message, version: int, broker: BrokerContext, table: Iterable[tuple[int, range]]) -> Message:
    """Answer with the ``table`` of API keys and versions, or with the error of the request."""
    error = _error(request, version, broker)
    if error is not ErrorCode.NONE:
        return ApiVersionsResponse(error_code=error, api_keys=[], throttle_time_ms=0)
    response = ApiVersionsResponse
    supported = [
        response.SupportedFeatureKey(name=name, min_version=0, max_version=level) for name, level in FEATURES.items()
    ]
    return response(
        error_code=ErrorCode.NONE,
        api_keys=_api_keys(table),
        supported_features=supported if version >= _FIRST_WITH_FEATURES_FROM_0 else [],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[
            response.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in FEATURES.items()
        ],
    )


def _error(request: Message, version: int, broker: BrokerContext) -> ErrorCode:
    if version >= _FIRST_WITH_CLUSTER:
        if (request.cluster_id is None) != (request.node_id == _NO_NODE):
            return ErrorCode.INVALID_REQUEST
        own_identity = (broker.cluster.state.cluster_id, broker.node_id)
        if request.cluster_id is not None and (request.cluster_id, request.node_id) != own_identity:
            return ErrorCode.REBOOTSTRAP_REQUIRED
    software = (request.client_software_name, request.client_software_version)
    if version >= _FIRST_WITH_SOFTWARE and not all(map(_SOFTWARE.fullmatch, software)):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def refuse() -> Message:
    """The answer, in v0, to a request of an unsupported version."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_api_keys([(KEY, VERSIONS)]))


def _api_keys(table: Iterable[tuple[int, range]]) -> list[Message]:
    entry = ApiVersionsResponse.ApiVersion
    return [entry(api_key=int(key), min_version=versions[0], max_version=versions[-1]) for key, versions in table]
