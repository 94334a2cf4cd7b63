"""ACLs and their filters as the messages of the ACL APIs carry them. An unknown code is UNKNOWN."""

from dualwrite.broker.access.acls import (
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    known_code,
)
from dualwrite.wire.apis import Message

NO_AUTHORIZER = "No Authorizer is configured on the broker: set authorizer.class.name"


def read_acl(creation: Message) -> Acl:
    """The ACL of a part of CreateAcls."""
    return Acl(
        known_code(ResourceType, creation.resource_type),
        creation.resource_name,
        known_code(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        known_code(AclOperation, creation.operation),
        known_code(Permission, creation.permission_type),
    )


def read_filter(message: Message) -> AclFilter:
    """The filter of DescribeAcls, or of a part of DeleteAcls."""
    return AclFilter(
        known_code(ResourceType, message.resource_type_filter),
        message.resource_name_filter,
        known_code(PatternType, message.pattern_type_filter),
        message.principal_filter,
        message.host_filter,
        known_code(AclOperation, message.operation),
        known_code(Permission, message.permission_type),
    )
