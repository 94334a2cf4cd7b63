"""ACLs and their filters as the messages of the ACL APIs carry them. An unknown code is UNKNOWN."""

from enum import IntEnum
from typing import TypeVar

from dualwrite.broker.access.acls import Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType
from dualwrite.wire.apis import Message

CodeT = TypeVar("CodeT", bound=IntEnum)

NO_AUTHORIZER = "No Authorizer is configured on the broker: set authorizer.class.name"


def read_acl(creation: Message) -> Acl:
    """The ACL of a part of CreateAcls."""
    return Acl(
        _code(ResourceType, creation.resource_type),
        creation.resource_name,
        _code(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        _code(AclOperation, creation.operation),
        _code(Permission, creation.permission_type),
    )


def read_filter(message: Message) -> AclFilter:
    """The filter of DescribeAcls, or of a part of DeleteAcls."""
    return AclFilter(
        _code(ResourceType, message.resource_type_filter),
        message.resource_name_filter,
        _code(PatternType, message.pattern_type_filter),
        message.principal_filter,
        message.host_filter,
        _code(AclOperation, message.operation),
        _code(Permission, message.permission_type),
    )


def _code(codes: type[CodeT], number: int) -> CodeT:
    try:
        return codes(number)
    except ValueError:
        return codes(0)
