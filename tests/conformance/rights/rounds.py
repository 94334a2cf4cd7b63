"""Rounds of requests from a client with some rights. Each round has its own rights and its own resources.

The client's principal is User:ANONYMOUS, as the administrator's. ACLs tell the two apart by their addresses.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from dualwrite.broker.access.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from dualwrite.wire.codec import read_response
from dualwrite.wire.error_codes import ErrorCode, error_name
from dualwrite.wire.errors import error_codes
from tests.conformance.rights.requests import REQUESTS, RoundResources
from tests.support.conformance.subject import PASSING
from tests.support.requests import acl_calls, calls, offset_calls
from tests.support.requests.raw_client import RawClient, key_of
from tests.support.waiting import eventually

ADMINISTRATOR, STRANGER = "127.0.0.1", "127.0.0.2"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Everybody may do everything until :func:`answers` stores the administrator's ACLs."""

Right = tuple[AclOperation, ResourceType]
Answers = Mapping[str, Mapping[str, list[str]]]
"""By request and answer: the rounds in which it was given."""

_READ, _WRITE, _DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
_OPERATIONS = {
    ResourceType.TOPIC: (
        _READ,
        _WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        _DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        _READ,
        AclOperation.DELETE,
        _DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.TRANSACTIONAL_ID: (_WRITE, _DESCRIBE, AclOperation.TWO_PHASE_COMMIT),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        _DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
_CREATING = PASSING | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE}
RIGHTS: tuple[Right, ...] = tuple(
    (operation, kind) for kind, operations in _OPERATIONS.items() for operation in operations
)
"""Every right that an API asks for."""


def rounds() -> Iterator[tuple[str, list[tuple[Right, Permission]]]]:
    """The rounds by name: no right, each right alone, all but each, all with each denied, and all."""
    everything = [(right, Permission.ALLOW) for right in RIGHTS]
    yield "nothing", []
    yield "everything", everything
    for right in RIGHTS:
        operation, kind = right
        name = f"{operation.name} {kind.name}"
        yield f"only {name}", [(right, Permission.ALLOW)]
        yield f"all but {name}", [other for other in everything if other[0] != right]
        yield f"denied {name}", [*everything, (right, Permission.DENY)]
    for kind in _OPERATIONS:
        everything_of_it = (AclOperation.ALL, kind)
        yield f"only ALL {kind.name}", [(everything_of_it, Permission.ALLOW)]
        yield f"denied ALL {kind.name}", [*everything, (everything_of_it, Permission.DENY)]


def answers(bootstrap_servers: str) -> Answers:
    """What the stranger is answered in each round."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in REQUESTS}
    with RawClient(bootstrap_servers, ADMINISTRATOR) as admin, RawClient(bootstrap_servers, STRANGER) as stranger:
        own = set(administrators())
        assert set(acl_calls.create(admin, own)) == {ErrorCode.NONE}
        for name, rights in rounds():
            place = prepare(admin)
            granted = {_acl(place, *right, permission) for right, permission in rights}
            _replace(admin, own, granted)
            for request, answer in ask(stranger, place):
                found[request].setdefault(answer, []).append(name)
    return found


def administrators() -> Iterator[Acl]:
    """The administrator's right to everything."""
    for kind, name in _EVERYTHING:
        yield acl_calls.acl(AclOperation.ALL, kind, name, host=ADMINISTRATOR)


_EVERYTHING = (
    (ResourceType.TOPIC, "*"),
    (ResourceType.GROUP, "*"),
    (ResourceType.TRANSACTIONAL_ID, "*"),
    (ResourceType.CLUSTER, CLUSTER_NAME),
)


def prepare(admin: RawClient) -> RoundResources:
    """New resources for one round."""
    topic = calls.new_topic(admin)
    transactional_id, group = calls.unique("txn"), calls.unique("group")
    look = lambda: calls.list_offset(admin, topic, calls.EARLIEST).error_code  # noqa: E731
    assert eventually(look, lambda code: code == ErrorCode.NONE) == ErrorCode.NONE
    commit = lambda: offset_calls.commit(admin, group, {(topic, 0): 1})  # noqa: E731
    assert eventually(commit, lambda codes: codes == [ErrorCode.NONE]) == [ErrorCode.NONE]
    producer = calls.identity(
        eventually(lambda: calls.init(admin, transactional_id), lambda answer: answer.error_code == ErrorCode.NONE)
    )
    return RoundResources(admin, topic, calls.topic_id(admin, topic), f"{topic}-new", group, transactional_id, producer)


def _acl(place: RoundResources, operation: AclOperation, kind: ResourceType, permission: Permission) -> Acl:
    """A right of the stranger's: on the cluster, or on what has the place's name or begins with it."""
    if kind is ResourceType.CLUSTER:
        return acl_calls.acl(operation, kind, CLUSTER_NAME, host=STRANGER, permission=permission)
    names = {
        ResourceType.TOPIC: place.topic,
        ResourceType.GROUP: place.group,
        ResourceType.TRANSACTIONAL_ID: place.transactional_id,
    }
    return acl_calls.acl(
        operation, kind, names[kind], host=STRANGER, pattern=PatternType.PREFIXED, permission=permission
    )


def _replace(admin: RawClient, own: set[Acl], granted: set[Acl]) -> None:
    """Let ``granted`` be the stranger's ACLs, and wait until the broker decides by them."""
    theirs = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, STRANGER, AclOperation.ANY, Permission.ANY)
    created = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, "203.0.113.1", AclOperation.ANY, Permission.ANY)
    assert {error for error, _ in acl_calls.delete(admin, theirs, created)} == {ErrorCode.NONE}
    if granted:
        assert set(acl_calls.create(admin, granted)) == {ErrorCode.NONE}
    wanted = own | granted
    assert eventually(lambda: acl_calls.described(admin), lambda seen: seen == wanted) == wanted


def ask(stranger: RawClient, place: RoundResources) -> Iterable[tuple[str, str]]:
    """What ``stranger`` is answered to every request."""
    for name, make in REQUESTS.items():
        request, version = make(place)
        passing = _CREATING if name == "Metadata that creates a topic" else PASSING
        look = partial(_answer, stranger, request, version, place)
        yield name, eventually(look, partial(_is_final, passing))


def _is_final(passing: Iterable[ErrorCode], answer: str) -> bool:
    return not any(code.name in answer for code in passing)


def _answer(stranger: RawClient, request: Any, version: int, place: RoundResources) -> str:
    """The errors in the answer, the resources that it names, and the operations that the client may perform."""
    stranger.send(request, version)
    frame = stranger.receive_frame()
    response = read_response(key_of(request), version, frame)
    errors = sorted({error_name(code) for code in error_codes(response)}) or ["NONE"]
    named = [
        kind
        for kind, name in (("topic", place.topic), ("group", place.group), ("id", place.transactional_id))
        if name.encode() in frame
    ]
    allowed = [sorted(operation) for operation in _operations(response, place)]
    return " ".join([*errors, *(["names", *named] if named else []), *(["may", str(allowed)] if allowed else [])])


def _operations(response: Any, place: RoundResources) -> Iterator[set[int]]:
    """The authorized operations on the cluster, and on the place's topic and group."""
    described = [response, *(getattr(response, "topics", None) or ()), *(getattr(response, "groups", None) or ())]
    for acl in described:
        owner = getattr(acl, "name", None) if acl is not response else place.topic
        if getattr(acl, "group_id", owner) not in (place.topic, place.group):
            continue
        for name in ("authorized_operations", "topic_authorized_operations"):
            operations = getattr(acl, name, None)
            if isinstance(operations, int):
                yield {bit for bit in range(31) if operations >= 0 and operations >> bit & 1}
            elif operations is not None:
                yield {int(operation) for operation in operations}


def by_round(request: str, found: Answers) -> dict[str, str]:
    """The answer to ``request`` in each round."""
    return {name: answer for answer, names in found[request].items() for name in names}
