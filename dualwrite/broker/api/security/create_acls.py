"""CreateAcls (30), v1-v3 (KIP-140, KIP-290, KIP-1276).

Stores ACLs, which apply at once and are durable before the answer; those of one request are stored together. An ACL
that exists is not stored twice. Errors: SECURITY_DISABLED without an authorizer; INVALID_REQUEST for an ACL with an
unknown code, without a name or a host, with an invalid range of hosts, or with a principal that is not TYPE:NAME.
Source: Kafka's AclApis, AclControlManager.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.security.acl_messages import NO_AUTHORIZER, read_acl
from dualwrite.wire.apis import ApiKey, CreateAclsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.CREATE_ACLS
VERSIONS = range(1, 4)
_ALTER = on_cluster(AclOperation.ALTER)
NEEDS = (_ALTER,)

_Result = CreateAclsResponse.AclCreationResult


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Store the ACLs of the request."""
    if not broker.may(_ALTER):
        results = [_result(_ALTER.error, _ALTER.message)] * len(request.creations)
    elif not broker.access.is_enabled:
        results = [_result(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)] * len(request.creations)
    else:
        acls = [read_acl(creation) for creation in request.creations]
        refusals = [acl.refusal() for acl in acls]
        broker.access.create(acl for acl, refusal in zip(acls, refusals, strict=True) if refusal is None)
        await broker.flusher.barrier()
        results = [
            _result(ErrorCode.NONE if refusal is None else ErrorCode.INVALID_REQUEST, refusal) for refusal in refusals
        ]
    return CreateAclsResponse(throttle_time_ms=0, results=results)


def _result(error: ErrorCode, message: str | None) -> Message:
    return _Result(error_code=error, error_message=message)
