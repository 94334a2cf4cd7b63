"""Access control lists: the fields of an ACL, filters for ACLs, and the ACLs that the broker refuses to store.

Sources: Kafka's AclBinding, AclBindingFilter, ResourcePatternFilter and AclControlManager.validateNewAcl; KIP-290
(prefixed patterns); KIP-939 (the operation TWO_PHASE_COMMIT); KIP-1276 (ranges of addresses).
"""

import ipaddress
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TypeVar

CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of the type CLUSTER (Kafka: Resource.CLUSTER_NAME)."""
WILDCARD = "*"
EVERYBODY = "User:*"


class ResourceType(IntEnum):
    """The type of the resource that an ACL protects, with Kafka's codes."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a resource's name is compared, with Kafka's codes. MATCH occurs in filters alone."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """An operation on a resource (Kafka: AclOperation)."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether an ACL allows or denies (Kafka: AclPermissionType)."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CodeT = TypeVar("CodeT", bound=IntEnum)


def known_code(codes: type[CodeT], number: int) -> CodeT:
    """The member of ``codes`` that a message names by ``number``; UNKNOWN for a number of a later Kafka."""
    try:
        return codes(number)
    except ValueError:
        return codes(0)


@dataclass(frozen=True, slots=True)
class Acl:
    """One access control list entry.

    :param principal: as ``User:alice``; ``User:*`` is everybody.
    :param host: the client's address, or a range of addresses as ``10.0.0.0/8``; ``*`` is every address.
    """

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: Permission

    def refusal(self) -> str | None:
        """Why the broker does not store this ACL; None if it does."""
        if self.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
            return f"Invalid resourceType {self.resource_type.name}"
        if self.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            return f"Invalid patternType {self.pattern_type.name}"
        if self.operation in (AclOperation.UNKNOWN, AclOperation.ANY):
            return f"Invalid operation {self.operation.name}"
        if self.permission not in (Permission.DENY, Permission.ALLOW):
            return f"Invalid permissionType {self.permission.name}"
        if not self.resource_name:
            return "Resource name should not be empty"
        if self.resource_type is ResourceType.CLUSTER and self.resource_name != CLUSTER_NAME:
            return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
        if ":" not in self.principal:
            return f"Could not parse principal from '{self.principal}': expected TYPE:NAME, for example User:alice"
        if not self.host:
            return "Host pattern cannot be null or empty"
        if "/" in self.host and network_of(self.host) is None:
            return f"Invalid CIDR notation '{self.host}': expected ADDRESS/BITS, for example 10.0.0.0/8"
        return None

    def covers(self, host: str) -> bool:
        """True if ``host``, a client's address in its canonical form, is one that this ACL is about."""
        if self.host == WILDCARD or canonical_host(self.host) == host:
            return True
        network = network_of(self.host)
        return network is not None and _is_in(host, network)


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Finds ACLs: those that agree in every field that the filter sets. ``None`` and ANY set nothing.

    The pattern type MATCH finds every ACL that applies to the resource ``resource_name``.
    """

    resource_type: ResourceType
    resource_name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission: Permission

    def refusal(self) -> str | None:
        """Why the broker does not use this filter; None if it does."""
        if ResourceType.UNKNOWN is self.resource_type or PatternType.UNKNOWN is self.pattern_type:
            return "Unknown patternFilter."
        if AclOperation.UNKNOWN is self.operation or Permission.UNKNOWN is self.permission:
            return "Unknown entryFilter."
        return None

    def finds(self, acl: Acl) -> bool:
        """True if ``acl`` agrees with this filter."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.pattern_type in (PatternType.ANY, PatternType.MATCH, acl.pattern_type)
            and (self.resource_name is None or self._finds_name(self.resource_name, acl))
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _finds_name(self, name: str, acl: Acl) -> bool:
        if self.pattern_type is not PatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type is PatternType.LITERAL:
            return acl.resource_name in (name, WILDCARD)
        return name.startswith(acl.resource_name)


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_MAPPED_BITS = 96
"""The bits of an IPv4-mapped IPv6 address before those of the IPv4 address."""


@lru_cache(maxsize=1024)
def network_of(text: str) -> _Network | None:
    """The range of addresses that ``text`` names in CIDR notation; None if it names none."""
    _, slash, bits = text.partition("/")
    if not slash or not bits.isascii() or not bits.isdecimal():
        return None
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    if mapped is None:  # always so with fewer than _MAPPED_BITS bits
        return network
    return ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


@lru_cache(maxsize=1024)
def _is_in(host: str, network: _Network) -> bool:
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False  # a client of a test, without an address


@lru_cache(maxsize=1024)
def canonical_host(host: str) -> str:
    """``host`` in one form: an IPv6 address has several, and an IPv4 client of an IPv6 socket a mapped one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
