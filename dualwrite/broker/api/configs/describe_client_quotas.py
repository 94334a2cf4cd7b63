"""DescribeClientQuotas (48), v0-v1 (KIP-546).

Answers no entry to any filter: this broker has no quotas.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, DescribeClientQuotasResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_CLIENT_QUOTAS
VERSIONS = range(2)
_DESCRIBE_CONFIGS = on_cluster(AclOperation.DESCRIBE_CONFIGS)
NEEDS = (_DESCRIBE_CONFIGS,)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe no quota."""
    if not broker.may(_DESCRIBE_CONFIGS):
        need = _DESCRIBE_CONFIGS
        return DescribeClientQuotasResponse(
            throttle_time_ms=0, error_code=need.error, error_message=need.message, entries=None
        )
    return DescribeClientQuotasResponse(throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, entries=[])
