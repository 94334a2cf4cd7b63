"""DescribeAcls (29), v1-v3 (KIP-140, KIP-290).

Answers the ACLs that the filter of the request finds, by their resources. Errors: SECURITY_DISABLED without an
authorizer; INVALID_REQUEST for a filter with an unknown code.
"""

from dualwrite.broker.access.acls import Acl, AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.security.acl_messages import NO_AUTHORIZER, read_filter
from dualwrite.wire.apis import ApiKey, DescribeAclsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_ACLS
VERSIONS = range(1, 4)
_DESCRIBE = on_cluster(AclOperation.DESCRIBE)
NEEDS = (_DESCRIBE,)

_Resource = DescribeAclsResponse.DescribeAclsResource


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe what the filter of the request finds."""
    wanted = read_filter(request)
    refusal = wanted.refusal()
    if not broker.may(_DESCRIBE):
        return _response(_DESCRIBE.error, _DESCRIBE.message)
    if not broker.access.is_enabled:
        return _response(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    if refusal is not None:
        return _response(ErrorCode.INVALID_REQUEST, refusal)
    acls = broker.access.find(wanted)
    await broker.flusher.barrier()
    return _response(ErrorCode.NONE, None, acls)


def _response(error: ErrorCode, message: str | None, acls: list[Acl] | None = None) -> Message:
    by_resource: dict[tuple[int, str, int], list[Message]] = {}
    for acl in acls or ():
        description = _Resource.AclDescription(
            principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
        )
        resource = (acl.resource_type, acl.resource_name, acl.pattern_type)
        by_resource.setdefault(resource, []).append(description)
    resources = [
        _Resource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=described)
        for (kind, name, pattern), described in by_resource.items()
    ]
    return DescribeAclsResponse(throttle_time_ms=0, error_code=error, error_message=message, resources=resources)
