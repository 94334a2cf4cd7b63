"""Requests about access control lists, in one call each."""

from collections.abc import Iterable

from dualwrite.broker.access.acls import Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType
from dualwrite.wire.apis import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.raw_client import RawClient

ANYBODY = "User:*"
EVERY_ACL = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, AclOperation.ANY, Permission.ANY)


def acl(
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    *,
    principal: str = ANYBODY,
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    """An ACL that allows everybody everywhere, unless it says otherwise."""
    return Acl(resource_type, name, pattern, principal, host, operation, permission)


def creation(wanted: Acl) -> Message:
    """One ACL of a CreateAcls request."""
    return CreateAclsRequest.AclCreation(
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
        resource_pattern_type=wanted.pattern_type,
        principal=wanted.principal,
        host=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )


def create(client: RawClient, acls: Iterable[Acl], version: int = 3) -> list[ErrorCode]:
    """What CreateAcls answers for each of ``acls``."""
    answer = client.ask(CreateAclsRequest(creations=[creation(acl) for acl in acls]), version)
    return [ErrorCode(result.error_code) for result in answer.results]


def describe_request(wanted: AclFilter) -> Message:
    """A DescribeAcls request."""
    return DescribeAclsRequest(**_fields(wanted))


def described(client: RawClient, wanted: AclFilter = EVERY_ACL, version: int = 3) -> set[Acl]:
    """The ACLs that DescribeAcls finds."""
    answer = client.ask(describe_request(wanted), version)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return {
        Acl(
            ResourceType(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
            acl.principal,
            acl.host,
            AclOperation(acl.operation),
            Permission(acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    }


def delete(client: RawClient, *filters: AclFilter, version: int = 3) -> list[tuple[ErrorCode, int]]:
    """What DeleteAcls answers for each of ``filters``: the error, and the number of deleted ACLs."""
    results = client.ask(delete_request(*filters), version).filter_results
    return [(ErrorCode(result.error_code), len(result.matching_acls)) for result in results]


def delete_request(*filters: AclFilter) -> Message:
    """A DeleteAcls request."""
    return DeleteAclsRequest(
        filters=[DeleteAclsRequest.DeleteAclsFilter(**_fields(entry_filter)) for entry_filter in filters]
    )


def _fields(wanted: AclFilter) -> dict[str, object]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }
