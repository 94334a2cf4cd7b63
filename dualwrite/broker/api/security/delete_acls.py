"""DeleteAcls (31), v1-v3 (KIP-140, KIP-290).

Deletes the ACLs that each filter of the request finds, and answers them. The deletion applies at once and is durable
before the answer. Errors: SECURITY_DISABLED without an authorizer; INVALID_REQUEST for a filter with an unknown code.
"""

from dualwrite.broker.access.acls import Acl, AclFilter, AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.security.acl_messages import NO_AUTHORIZER, read_filter
from dualwrite.wire.apis import ApiKey, DeleteAclsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DELETE_ACLS
VERSIONS = range(1, 4)
_ALTER = on_cluster(AclOperation.ALTER)
NEEDS = (_ALTER,)

_Result = DeleteAclsResponse.DeleteAclsFilterResult


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Delete what the filters of the request find."""
    if not broker.may(_ALTER):
        results = [_refused(_ALTER.error, _ALTER.message)] * len(request.filters)
    elif not broker.access.is_enabled:
        results = [_refused(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)] * len(request.filters)
    else:
        results = _delete([read_filter(message) for message in request.filters], broker)
        await broker.flusher.barrier()
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=results)


def _delete(filters: list[AclFilter], broker: BrokerContext) -> list[Message]:
    refusals = [wanted.refusal() for wanted in filters]
    valid = [wanted for wanted, refusal in zip(filters, refusals, strict=True) if refusal is None]
    deleted = iter(broker.access.delete(valid))
    return [
        _deleted(next(deleted)) if refusal is None else _refused(ErrorCode.INVALID_REQUEST, refusal)
        for refusal in refusals
    ]


def _refused(error: ErrorCode, message: str) -> Message:
    return _Result(error_code=error, error_message=message, matching_acls=[])


def _deleted(acls: list[Acl]) -> Message:
    matching = [
        _Result.DeleteAclsMatchingAcl(
            error_code=ErrorCode.NONE,
            error_message=None,
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    return _Result(error_code=ErrorCode.NONE, error_message=None, matching_acls=matching)
