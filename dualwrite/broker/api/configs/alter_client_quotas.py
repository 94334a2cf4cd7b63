"""AlterClientQuotas (49), v0-v1 (KIP-546).

This broker enforces no quotas, so it refuses each entity with a quota to set, also with validate_only: INVALID_REQUEST.
To remove a quota succeeds, because there is none.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.wire.apis import AlterClientQuotasResponse, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.ALTER_CLIENT_QUOTAS
VERSIONS = range(2)
_ALTER_CONFIGS = on_cluster(AclOperation.ALTER_CONFIGS)
NEEDS = (_ALTER_CONFIGS,)

_Entry = AlterClientQuotasResponse.EntryData


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Refuse every quota."""
    is_allowed = broker.may(_ALTER_CONFIGS)
    entries = [_answer(entry, is_allowed) async for entry in in_turns(request.entries)]
    return AlterClientQuotasResponse(throttle_time_ms=0, entries=entries)


def _answer(entry: Message, is_allowed: bool) -> Message:
    error, message = ErrorCode.NONE, None
    quotas = [operation.key for operation in entry.ops if not operation.remove]
    if not is_allowed:
        error, message = _ALTER_CONFIGS.error, _ALTER_CONFIGS.message
    elif quotas:
        error, message = ErrorCode.INVALID_REQUEST, f"this broker enforces no quotas: {', '.join(quotas)}"
    entity = [_Entry.EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity]
    return _Entry(error_code=error, error_message=message, entity=entity)
