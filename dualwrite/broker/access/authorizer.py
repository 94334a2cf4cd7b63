"""Decides whether a principal may do something, as Kafka's StandardAuthorizer does.

A DENY wins over every ALLOW. Without any ACL that applies to the resource, ``allow.everyone.if.no.acl.found`` decides.
An ALLOW of READ, WRITE, DELETE or ALTER also allows DESCRIBE, and one of ALTER_CONFIGS allows DESCRIBE_CONFIGS; a DENY
implies nothing. Sources: StandardAuthorizerData.authorize; Authorizer.authorizeByResourceType.
"""

from collections.abc import Collection, Iterable, Iterator

from dualwrite.broker.access.acls import (
    EVERYBODY,
    WILDCARD,
    Acl,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    canonical_host,
)

_IMPLYING = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}),
}
_NO_RESOURCE = "hardcode"
"""The name with which Kafka asks for the rights over all resources of a type."""


class Authorizer:
    """The ACLs in force, indexed by the names of their resources.

    :param super_users: the principals that may do everything, as ``User:admin``.
    :param allows_unprotected: the decision on a resource to which no ACL applies.
    """

    def __init__(self, super_users: Collection[str] = (), *, allows_unprotected: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allows_unprotected = allows_unprotected
        self._literal: dict[tuple[ResourceType, str], list[Acl]] = {}
        self._prefixed: dict[tuple[ResourceType, str], list[Acl]] = {}
        self._prefix_lengths: tuple[int, ...] = ()

    def replace(self, acls: Iterable[Acl]) -> None:
        """Let ``acls`` be all ACLs."""
        self._literal, self._prefixed = {}, {}
        for acl in acls:
            index = self._literal if acl.pattern_type is PatternType.LITERAL else self._prefixed
            index.setdefault((acl.resource_type, acl.resource_name), []).append(acl)
        self._prefix_lengths = tuple(sorted({len(name) for _, name in self._prefixed}))

    def may(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """True if ``principal`` may perform ``operation`` on the resource ``name``.

        :param host: the client's address.
        """
        if principal in self._super_users:
            return True
        host = canonical_host(host)
        is_protected = is_allowed = False
        for acl in self._applying(resource_type, name):
            is_protected = True
            if _concerns(acl, principal, host) and _decides(acl, operation):
                if acl.permission is Permission.DENY:
                    return False
                is_allowed = True
        return is_allowed or (self._allows_unprotected and not is_protected)

    def may_somewhere(self, principal: str, host: str, operation: AclOperation, resource_type: ResourceType) -> bool:
        """True if ``principal`` may perform ``operation`` on at least one resource that could exist."""
        if self.may(principal, host, operation, resource_type, _NO_RESOURCE):
            return True
        host = canonical_host(host)
        acls = [
            acl
            for index in (self._literal, self._prefixed)
            for (kind, _), listed in index.items()
            if kind is resource_type
            for acl in listed
            if _concerns(acl, principal, host) and acl.operation in (operation, AclOperation.ALL)
        ]
        denied = {(acl.pattern_type, acl.resource_name) for acl in acls if acl.permission is Permission.DENY}
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(acl.permission is Permission.ALLOW and not _is_overruled(acl, denied) for acl in acls)

    def _applying(self, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        yield from self._literal.get((resource_type, name), ())
        yield from self._literal.get((resource_type, WILDCARD), ())
        for length in self._prefix_lengths:
            if length > len(name):
                break
            yield from self._prefixed.get((resource_type, name[:length]), ())


def _concerns(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, EVERYBODY) and acl.covers(host)


def _decides(acl: Acl, operation: AclOperation) -> bool:
    if acl.operation in (operation, AclOperation.ALL):
        return True
    return acl.permission is Permission.ALLOW and acl.operation in _IMPLYING.get(operation, ())


def _is_overruled(allow: Acl, denied: Collection[tuple[PatternType, str]]) -> bool:
    """True if a DENY covers everything that ``allow`` covers."""
    name = allow.resource_name
    if allow.pattern_type is PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if (PatternType.LITERAL, name) in denied:
            return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))
