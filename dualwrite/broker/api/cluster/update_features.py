"""UpdateFeatures (57), v0-v2 (KIP-584, KIP-1022).

Each feature (``api_versions.FEATURES``) is always at its one level. So a request for that level succeeds and changes
nothing; any other level and any other feature, such as metadata.version, is refused with INVALID_UPDATE_VERSION, also
with validate_only. Either all updates of a request succeed or none. Up to v1 the answer has an entry for each feature.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.api_versions import FEATURES
from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, Message, UpdateFeaturesResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.UPDATE_FEATURES
VERSIONS = range(3)
_ALTER = on_cluster(AclOperation.ALTER)
NEEDS = (_ALTER,)

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
_LAST_WITH_RESULTS = 1
_ALL_FAILED = "The update failed for all features since the following feature had an error: "


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Check the updates. Those that succeed change nothing."""
    if not broker.may(_ALTER):
        return _response(_ALTER.error, _ALTER.message)
    for update in request.feature_updates:
        refusal = _refusal(update)
        if refusal is not None:
            level, name = update.max_version_level, update.feature
            message = f"{_ALL_FAILED}Invalid update version {level} for feature {name}. {refusal}"
            return _response(ErrorCode.INVALID_UPDATE_VERSION, message)
    answer = _response(ErrorCode.NONE, None)
    if version <= _LAST_WITH_RESULTS:
        result = UpdateFeaturesResponse.UpdatableFeatureResult
        answer.results = [
            result(feature=update.feature, error_code=ErrorCode.NONE, error_message=None)
            for update in request.feature_updates
        ]
    return answer


def _refusal(update: Message) -> str | None:
    """The reason why ``update`` is refused; None if it is not."""
    level, kind = update.max_version_level, update.upgrade_type
    if kind not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if update.feature not in FEATURES:
        return f"This broker does not support this feature; it has {', '.join(FEATURES)} only."
    if level != FEATURES[update.feature]:
        return f"This broker is always at level {FEATURES[update.feature]}, which serves older clients, too."
    return None


def _response(error: ErrorCode, message: str | None) -> Message:
    return UpdateFeaturesResponse(throttle_time_ms=0, error_code=error, error_message=message, results=[])
