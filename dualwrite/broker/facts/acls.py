"""Facts about access control lists, stored in the journal of the cluster by the names of their codes."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from dualwrite.broker.access.acls import Acl, AclOperation, PatternType, Permission, ResourceType


@dataclass(frozen=True, slots=True)
class AclCreated:
    """The ACL ``acl`` was stored under ``acl_id``."""

    acl_id: uuid.UUID
    acl: Acl


@dataclass(frozen=True, slots=True)
class AclDeleted:
    """The ACL under ``acl_id`` was deleted. On disk this is a tombstone."""

    acl_id: uuid.UUID


AclFact = AclCreated | AclDeleted

ACL_KIND = "acl"
"""The kind of these facts: the beginning of their records' keys."""


def encode_acl(fact: AclFact) -> tuple[bytes, Mapping[str, object] | None]:
    """The key of the record that stores ``fact``, and its value before it becomes JSON; None for a tombstone."""
    key = f"{ACL_KIND}:{fact.acl_id}".encode()
    if isinstance(fact, AclDeleted):
        return key, None
    acl = fact.acl
    body = {
        "resource_type": acl.resource_type.name,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }
    return key, body


def decode_acl(name: str, body: Mapping[str, str] | None) -> AclFact:
    """The fact of a record of kind ``acl``, whose key goes on with ``name``.

    :raises ValueError: if ``name`` is no id.
    :raises KeyError: if ``body`` lacks a value, or has a code that this release does not know.
    """
    acl_id = uuid.UUID(name)
    if body is None:
        return AclDeleted(acl_id)
    acl = Acl(
        ResourceType[body["resource_type"]],
        body["resource_name"],
        PatternType[body["pattern_type"]],
        body["principal"],
        body["host"],
        AclOperation[body["operation"]],
        Permission[body["permission"]],
    )
    return AclCreated(acl_id, acl)
