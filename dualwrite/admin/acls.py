"""Access control lists: list, add and remove them (KIP-140, KIP-290)."""

from collections.abc import Mapping, Sequence
from typing import Any

from dualwrite.admin.arguments import require_acls, require_filter
from dualwrite.admin.connecting import DEFAULT_TIMEOUT, connected
from dualwrite.broker.access.acls import (
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    known_code,
)
from dualwrite.client.protocol.requests import VersionedRequest
from dualwrite.client.terms.error_classes import raise_for
from dualwrite.errors import InputError, KafkaRefusedError
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode, error_name

__all__ = [
    "EVERY_ACL",
    "Acl",
    "AclFilter",
    "AclOperation",
    "PatternType",
    "Permission",
    "ResourceType",
    "add_acls",
    "as_text",
    "list_acls",
    "remove_acls",
]

EVERY_ACL = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, AclOperation.ANY, Permission.ANY)
"""The filter that finds every ACL."""

_FIRST_WITH_PATTERNS = 1
"""Before this version of the requests there are no prefixed patterns."""


def list_acls(
    kafka: Mapping[str, Any], found_by: AclFilter = EVERY_ACL, *, timeout: float = DEFAULT_TIMEOUT
) -> list[Acl]:
    """The ACLs that the filter ``found_by`` finds. Values that this client does not know are UNKNOWN.

    :raises KafkaRefusedError: SECURITY_DISABLED if the cluster has no authorizer; CLUSTER_AUTHORIZATION_FAILED if
        DESCRIBE on the cluster is not granted.
    """
    require_filter(found_by)
    call = _request(ApiKey.DESCRIBE_ACLS, APIS[ApiKey.DESCRIBE_ACLS].request(**_filter_fields(found_by)))
    with connected(kafka, timeout) as cluster:
        answer = cluster.persist(lambda deadline: cluster.ask_any(call, deadline))
    _require_success("the ACLs were not listed", answer)
    return sorted(
        (_acl(resource, entry) for resource in answer.resources for entry in resource.acls),
        key=lambda acl: (acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.operation),
    )


def add_acls(kafka: Mapping[str, Any], acls: Sequence[Acl], *, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Add ``acls``. One that exists is left as it is.

    :raises InputError: if one of them has no meaning, such as an operation ANY; then none was added.
    :raises KafkaRefusedError: as :func:`list_acls`, with ALTER on the cluster; for the first that the cluster refuses.
        The others were added.
    """
    require_acls(acls)
    for acl in acls:
        refusal = acl.refusal()
        if refusal is not None:
            raise InputError(refusal)
    request = APIS[ApiKey.CREATE_ACLS].request
    creations = [
        request.AclCreation(
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            resource_pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    call = _request(ApiKey.CREATE_ACLS, request(creations=creations))
    with connected(kafka, timeout) as cluster:
        answer = cluster.persist(lambda deadline: cluster.ask_any(call, deadline))
    for acl, result in zip(acls, answer.results, strict=True):
        _require_success(f"{as_text(acl)} was not added", result)


def remove_acls(kafka: Mapping[str, Any], found_by: AclFilter, *, timeout: float = DEFAULT_TIMEOUT) -> list[Acl]:
    """Remove the ACLs that ``found_by`` finds, and return them.

    :raises KafkaRefusedError: as :func:`list_acls`, with ALTER on the cluster.
    :raises AnswerLostError: if the broker did not answer: the ACLs may have been removed.
    """
    require_filter(found_by)
    request = APIS[ApiKey.DELETE_ACLS].request
    call = _request(
        ApiKey.DELETE_ACLS, request(filters=[request.DeleteAclsFilter(**_filter_fields(found_by))]), repeatable=False
    )
    with connected(kafka, timeout) as cluster:
        (answer,) = cluster.ask_once(call).filter_results
    _require_success("no ACL was removed", answer)
    removed = []
    for entry in answer.matching_acls:
        acl = _acl(entry, entry)
        _require_success(f"{as_text(acl)} was not removed", entry)
        removed.append(acl)
    return removed


def as_text(acl: Acl) -> str:
    """``acl`` in a line: ``ALLOW User:alice from * READ on literal topic orders``."""
    name = "" if acl.resource_type is ResourceType.CLUSTER else f" {acl.resource_name}"
    resource = f"{acl.pattern_type.name} {acl.resource_type.name}".lower()
    return f"{acl.permission.name} {acl.principal} from {acl.host} {acl.operation.name} on {resource}{name}"


def _request(api_key: ApiKey, message: Message, *, repeatable: bool = True) -> VersionedRequest:
    return VersionedRequest(api_key.name, api_key, message, floor=_FIRST_WITH_PATTERNS, repeatable=repeatable)


def _filter_fields(found_by: AclFilter) -> dict[str, object]:
    return {
        "resource_type_filter": found_by.resource_type,
        "resource_name_filter": found_by.resource_name,
        "pattern_type_filter": found_by.pattern_type,
        "principal_filter": found_by.principal,
        "host_filter": found_by.host,
        "operation": found_by.operation,
        "permission_type": found_by.permission,
    }


def _acl(resource: Message, entry: Message) -> Acl:
    return Acl(
        known_code(ResourceType, resource.resource_type),
        resource.resource_name,
        known_code(PatternType, resource.pattern_type),
        entry.principal,
        entry.host,
        known_code(AclOperation, entry.operation),
        known_code(Permission, entry.permission_type),
    )


def _require_success(message: str, answer: Message) -> None:
    code = answer.error_code
    if code == ErrorCode.SECURITY_DISABLED:
        raise KafkaRefusedError(
            f"{message}: the cluster has no authorizer (authorizer.class.name)", code, error_name(code)
        )
    if code:
        raise_for(
            ApiKey.CREATE_ACLS,
            f"{message}: {answer.error_message.rstrip('.')}" if answer.error_message else message,
            code,
        )
