"""ApiVersions (18), v0-v4.

The answer is the routing table itself, so that exactly what works is advertised, and the finalized feature
``transaction.version=2`` with everything that it stands for (KIP-890): Produce 12, AddPartitionsToTxn 5, EndTxn 5.
A request of a higher version (Java 4.4 opens with v5) is answered with UNSUPPORTED_VERSION in the form of v0, naming
the versions of ApiVersions itself (KIP-511); the client then asks again. ACL: none.
"""

from collections.abc import Iterable

from dualwrite.wire.apis import ApiKey, ApiVersionsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.API_VERSIONS
VERSIONS = range(5)

TRANSACTION_VERSION = 2
_FEATURE = "transaction.version"
_FEATURES_EPOCH = 0


def respond(table: Iterable[tuple[int, range]]) -> Message:
    """The whole ``table`` of API keys and versions."""
    response = ApiVersionsResponse
    return response(
        error_code=ErrorCode.NONE,
        api_keys=_api_keys(table),
        supported_features=[
            response.SupportedFeatureKey(name=_FEATURE, min_version=0, max_version=TRANSACTION_VERSION)
        ],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[
            response.FinalizedFeatureKey(
                name=_FEATURE, max_version_level=TRANSACTION_VERSION, min_version_level=TRANSACTION_VERSION
            )
        ],
    )


def refuse() -> Message:
    """The answer, in v0, to a version that is not supported."""
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_api_keys([(KEY, VERSIONS)]))


def _api_keys(table: Iterable[tuple[int, range]]) -> list[Message]:
    entry = ApiVersionsResponse.ApiVersion
    return [entry(api_key=int(key), min_version=versions[0], max_version=versions[-1]) for key, versions in table]
