"""Rounds about patterns, hosts, principals and the authorizer's settings: who is asked, and under which ACLs.

Each round has resources of its own. The stranger and the administrator are told apart by their addresses, as in
:mod:`tests.conformance.rights.rounds`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from dualwrite.broker.access.acls import (
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.rights.requests import REQUESTS, RoundResources
from tests.conformance.rights.rounds import ADMINISTRATOR, STRANGER, Answers, administrators, ask, prepare
from tests.support.requests import acl_calls
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
EVERYONE, NOBODY = "allow.everyone.if.no.acl.found=true", "allow.everyone.if.no.acl.found=false"
SUPER = "super.users"
ELSEWHERE, ANYWHERE = "127.0.0.3", "*"
NEAR, FAR = f"{STRANGER}/31", "127.0.0.8/29"
"""Ranges with and without the stranger; the administrator is in neither (KIP-1276)."""
ANONYMOUS, OTHER = "User:ANONYMOUS", "User:other"
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ALL, READ = AclOperation.ALL, AclOperation.READ

Start = Callable[[Mapping[str, str]], AbstractContextManager[str]]
"""Starts a broker with settings, on the data of the one before; its bootstrap servers."""

_NAMED: tuple[tuple[ResourceType, Callable[[RoundResources], str]], ...] = (
    (ResourceType.TOPIC, lambda place: place.topic),
    (ResourceType.GROUP, lambda place: place.group),
    (ResourceType.TRANSACTIONAL_ID, lambda place: place.transactional_id),
)


class AclRule(NamedTuple):
    """An operation on the topic, the group and the transactional id of a place, as an ACL of each.

    :param name: makes the ACL's name from the resource's.
    """

    operation: AclOperation
    permission: Permission = ALLOW
    pattern: PatternType = LITERAL
    host: str = STRANGER
    principal: str = acl_calls.ANYBODY
    name: Callable[[str], str] = lambda name: name

    def acls(self, place: RoundResources) -> Iterator[Acl]:
        """The ACLs."""
        for kind, name_of in _NAMED:
            yield acl_calls.acl(
                self.operation,
                kind,
                self.name(name_of(place)),
                principal=self.principal,
                host=self.host,
                pattern=self.pattern,
                permission=self.permission,
            )


def _any(_: str) -> str:
    return "*"


def _shorter(name: str) -> str:
    return name[:-1]


def _longer(name: str) -> str:
    return f"{name}-"


def _another(name: str) -> str:
    return f"not-{name}"


def _upper(name: str) -> str:
    return name.upper()


ROUNDS: Mapping[str, tuple[AclRule, ...]] = {
    "nothing": (),
    "ALL by name": (AclRule(ALL),),
    "ALL of *": (AclRule(ALL, name=_any),),
    "READ of *": (AclRule(READ, name=_any),),
    "ALL by prefix": (AclRule(ALL, pattern=PREFIXED, name=_shorter),),
    "ALL by the whole name as a prefix": (AclRule(ALL, pattern=PREFIXED),),
    "ALL by a prefix that is longer": (AclRule(ALL, pattern=PREFIXED, name=_longer),),
    "ALL by the prefix *": (AclRule(ALL, pattern=PREFIXED, name=_any),),
    "ALL by another name": (AclRule(ALL, name=_another),),
    "ALL by the name in capitals": (AclRule(ALL, name=_upper),),
    "ALL by a shorter name, not as a prefix": (AclRule(ALL, name=_shorter),),
    "ALL by name, READ denied by prefix": (AclRule(ALL), AclRule(READ, DENY, PREFIXED, name=_shorter)),
    "ALL by prefix, READ denied by name": (AclRule(ALL, pattern=PREFIXED), AclRule(READ, DENY)),
    "ALL of *, READ denied by name": (AclRule(ALL, name=_any), AclRule(READ, DENY)),
    "ALL by name, READ denied of *": (AclRule(ALL), AclRule(READ, DENY, name=_any)),
    "ALL by name, ALL denied by prefix": (AclRule(ALL), AclRule(ALL, DENY, PREFIXED, name=_shorter)),
    "ALL by name, ALL denied by a prefix that is longer": (AclRule(ALL), AclRule(ALL, DENY, PREFIXED, name=_longer)),
    "READ by name, DESCRIBE denied by name": (AclRule(READ), AclRule(AclOperation.DESCRIBE, DENY)),
    "DESCRIBE by name, READ denied by name": (AclRule(AclOperation.DESCRIBE), AclRule(READ, DENY)),
    "ALL at any host": (AclRule(ALL, host=ANYWHERE),),
    "ALL at another host": (AclRule(ALL, host=ELSEWHERE),),
    "READ here, ALL at another host": (AclRule(READ), AclRule(ALL, host=ELSEWHERE)),
    "ALL here, ALL denied at another host": (AclRule(ALL), AclRule(ALL, DENY, host=ELSEWHERE)),
    "ALL at any host, ALL denied here": (AclRule(ALL, host=ANYWHERE), AclRule(ALL, DENY)),
    "ALL here, READ denied at any host": (AclRule(ALL), AclRule(READ, DENY, host=ANYWHERE)),
    "ALL in a range of addresses": (AclRule(ALL, host=NEAR),),
    "ALL in a range that is named by another of its addresses": (AclRule(ALL, host=f"{ELSEWHERE}/31"),),
    "ALL in another range": (AclRule(ALL, host=FAR),),
    "ALL at any host, READ denied in a range": (AclRule(ALL, host=ANYWHERE), AclRule(READ, DENY, host=NEAR)),
    "ALL here, ALL denied in another range": (AclRule(ALL), AclRule(ALL, DENY, host=FAR)),
    "ALL for the principal": (AclRule(ALL, principal=ANONYMOUS),),
    "ALL for another principal": (AclRule(ALL, principal=OTHER),),
    "ALL for everybody, denied to another principal": (AclRule(ALL), AclRule(ALL, DENY, principal=OTHER)),
    "ALL for everybody, denied to the principal": (AclRule(ALL), AclRule(ALL, DENY, principal=ANONYMOUS)),
    "ALL for the principal, denied to everybody": (AclRule(ALL, principal=ANONYMOUS), AclRule(ALL, DENY)),
}
_ADMINISTRATORS = (AclRule(ALL, host=ADMINISTRATOR),)
_OPEN_ROUNDS: Mapping[str, tuple[AclRule, ...]] = {
    "no ACL": (),
    "ACLs of others": _ADMINISTRATORS,
    "ACLs by prefix of others": (AclRule(ALL, host=ADMINISTRATOR, pattern=PREFIXED, name=_shorter),),
    "a denial for others": (AclRule(READ, DENY, host=ELSEWHERE),),
    "READ, among ACLs of others": (*_ADMINISTRATORS, AclRule(READ)),
    "READ denied, among no others": (AclRule(READ, DENY),),
}
_SUPER_ROUNDS: Mapping[str, tuple[AclRule, ...]] = {
    "nothing": (),
    "ALL denied": (AclRule(ALL, DENY), AclRule(ALL, DENY, host=ANYWHERE, principal=ANONYMOUS)),
    "ALL of * denied": (AclRule(ALL, DENY, host=ANYWHERE, name=_any),),
}


def names() -> set[str]:
    """The rounds under all settings."""
    given = {NOBODY: ROUNDS, EVERYONE: _OPEN_ROUNDS, SUPER: _SUPER_ROUNDS}
    return {f"{settings}: {name}" for settings, rounds in given.items() for name in rounds}


def pattern_answers(start: Start) -> Answers:
    """What the stranger is answered in each round, under each of the settings."""
    found: dict[str, dict[str, list[str]]] = {name: {} for name in REQUESTS}
    own = set(administrators())
    everyone = {"allow.everyone.if.no.acl.found": "true"}
    with start({**AUTHORIZER, **everyone}) as servers:
        _ask_all(servers, EVERYONE, _OPEN_ROUNDS, set(), found)
        with RawClient(servers, ADMINISTRATOR) as admin:
            assert set(acl_calls.create(admin, own)) == {ErrorCode.NONE}
            assert eventually(lambda: acl_calls.described(admin), own.__eq__) == own
    with start(AUTHORIZER) as servers:
        _ask_all(servers, NOBODY, ROUNDS, own, found)
        with RawClient(servers, ADMINISTRATOR) as admin:
            acl_calls.delete(admin, acl_calls.EVERY_ACL)
    with start({**AUTHORIZER, "super.users": f"User:nobody;{ANONYMOUS}"}) as servers:
        _ask_all(servers, SUPER, _SUPER_ROUNDS, set(), found)
    return found


def _ask_all(
    servers: str,
    settings: str,
    rounds: Mapping[str, tuple[AclRule, ...]],
    own: set[Acl],
    found: dict[str, dict[str, list[str]]],
) -> None:
    with RawClient(servers, ADMINISTRATOR) as admin, RawClient(servers, STRANGER) as stranger:
        for name, rules in rounds.items():
            place = prepare(admin)
            granted = {acl for rule in rules for acl in rule.acls(place)}
            if granted:
                assert set(acl_calls.create(admin, granted)) == {ErrorCode.NONE}
            _wait_for(admin, own | granted)
            for request, answer in ask(stranger, place):
                found[request].setdefault(answer, []).append(f"{settings}: {name}")
            others = acl_calls.described(admin) - own  # also those that the stranger has created
            if others:
                acl_calls.delete(admin, *map(_exactly, others))
            _wait_for(admin, own)


def _wait_for(admin: RawClient, wanted: set[Acl]) -> None:
    assert eventually(lambda: acl_calls.described(admin), wanted.__eq__) == wanted


def _exactly(acl: Acl) -> AclFilter:
    return AclFilter(
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )
