"""Who may do what: tables after Kafka's StandardAuthorizer, and a second statement of the rules beside it."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.access.acls import Acl, AclOperation, PatternType, Permission, ResourceType
from dualwrite.broker.access.authorizer import Authorizer

ANN, BOB, ANYBODY = "User:ann", "User:bob", "User:*"
HERE, THERE = "10.0.0.1", "10.0.0.2"
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


def acl(
    operation: AclOperation = READ,
    name: str = "t",
    *,
    principal: str = ANN,
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
    kind: ResourceType = TOPIC,
) -> Acl:
    return Acl(kind, name, pattern, principal, host, operation, permission)


def deny(operation: AclOperation = READ, name: str = "t", **more: object) -> Acl:
    return dataclasses.replace(acl(operation, name, **more), permission=Permission.DENY)  # type: ignore[arg-type]


def prefixed(name: str) -> Acl:
    return acl(name=name, pattern=PatternType.PREFIXED)


def authorizer(*acls: Acl, allows_unprotected: bool = False, super_users: tuple[str, ...] = ()) -> Authorizer:
    made = Authorizer(super_users, allows_unprotected=allows_unprotected)
    made.replace(acls)
    return made


@pytest.mark.parametrize(
    ("acls", "operation", "name", "may"),
    [
        ([], READ, "t", False),
        ([acl()], READ, "t", True),
        ([acl()], WRITE, "t", False),
        ([acl()], READ, "t1", False),
        ([acl(name="*")], READ, "t1", True),
        ([acl(principal=BOB)], READ, "t", False),
        ([acl(principal=ANYBODY)], READ, "t", True),
        ([acl(host=HERE)], READ, "t", True),
        ([acl(host=THERE)], READ, "t", False),
        ([acl(kind=GROUP)], READ, "t", False),
        ([acl(AclOperation.ALL)], AclOperation.TWO_PHASE_COMMIT, "t", True),
        ([prefixed("t")], READ, "t", True),
        ([prefixed("t")], READ, "t1", True),
        ([prefixed("t1")], READ, "t", False),
        ([prefixed("*")], READ, "t", False),
        ([acl(), deny()], READ, "t", False),
        ([acl(AclOperation.ALL), deny()], READ, "t", False),
        ([acl(AclOperation.ALL), deny()], WRITE, "t", True),
        ([acl(), deny(name="*")], READ, "t", False),
        ([acl(), deny(name="", pattern=PatternType.PREFIXED)], READ, "t", False),
        ([acl(), deny(principal=BOB)], READ, "t", True),
        ([acl(), deny(host=THERE)], READ, "t", True),
        ([acl(host=f"{HERE}/24")], READ, "t", True),
        ([acl(), deny(host=f"{HERE}/24")], READ, "t", False),
        ([acl(), deny(principal=ANYBODY)], READ, "t", False),
        ([acl(), deny(AclOperation.ALL)], READ, "t", False),
    ],
)
def test_an_allow_is_needed_and_a_deny_wins(acls: list[Acl], operation: AclOperation, name: str, may: bool) -> None:
    assert authorizer(*acls).may(ANN, HERE, operation, TOPIC, name) == may


@pytest.mark.parametrize(
    ("operation", "implied"),
    [
        (READ, DESCRIBE),
        (WRITE, DESCRIBE),
        (AclOperation.DELETE, DESCRIBE),
        (AclOperation.ALTER, DESCRIBE),
        (AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS),
    ],
)
def test_an_allow_implies_that_its_resource_may_be_described_and_a_deny_implies_nothing(
    operation: AclOperation, implied: AclOperation
) -> None:
    assert authorizer(acl(operation)).may(ANN, HERE, implied, TOPIC, "t")
    both = authorizer(acl(implied), deny(operation))
    assert both.may(ANN, HERE, implied, TOPIC, "t")


@pytest.mark.parametrize("operation", [AclOperation.CREATE, AclOperation.CLUSTER_ACTION, AclOperation.TWO_PHASE_COMMIT])
def test_other_operations_imply_nothing(operation: AclOperation) -> None:
    assert not authorizer(acl(operation)).may(ANN, HERE, DESCRIBE, TOPIC, "t")


def test_a_super_user_may_do_everything_whatever_is_denied() -> None:
    decides = authorizer(deny(AclOperation.ALL, principal=ANYBODY), super_users=(ANN,))
    assert decides.may(ANN, HERE, READ, TOPIC, "t")
    assert decides.may_somewhere(ANN, HERE, WRITE, TOPIC)
    assert not decides.may(BOB, HERE, READ, TOPIC, "t")


@pytest.mark.parametrize(
    ("acls", "may"),
    [([], True), ([acl(name="other")], True), ([acl(principal=BOB)], False), ([acl(WRITE)], False)],
)
def test_a_resource_without_acls_is_open_to_everyone_if_so_configured(acls: list[Acl], may: bool) -> None:
    decides = authorizer(*acls, allows_unprotected=True)
    assert decides.may(ANN, HERE, READ, TOPIC, "t") == may


def test_an_acl_of_an_ipv6_address_holds_for_each_of_its_forms() -> None:
    decides = authorizer(acl(host="0:0:0:0:0:0:0:1"))
    assert decides.may(ANN, "::1", READ, TOPIC, "t")
    decides = authorizer(acl(host=HERE))
    assert decides.may(ANN, f"::ffff:{HERE}", READ, TOPIC, "t")
    assert decides.may_somewhere(ANN, f"::ffff:{HERE}", READ, TOPIC)
    denies = authorizer(acl(), deny(name="*", host=HERE))
    assert not denies.may_somewhere(ANN, f"::ffff:{HERE}", READ, TOPIC)


def test_replaced_acls_are_forgotten() -> None:
    decides = authorizer(acl())
    decides.replace([])
    assert not decides.may(ANN, HERE, READ, TOPIC, "t")


@pytest.mark.parametrize(
    ("acls", "may"),
    [
        ([], False),
        ([acl()], True),
        ([acl(WRITE)], False),
        ([acl(AclOperation.ALL)], True),
        ([acl(principal=BOB)], False),
        ([acl(), deny()], False),
        ([acl(), deny(name="*")], False),
        ([acl(), deny(name="t", pattern=PatternType.PREFIXED)], False),
        ([acl(), deny(name="t1")], True),
        ([acl(name="*"), deny()], True),
        ([prefixed("t"), deny(name="t")], True),
        ([prefixed("topic"), deny(name="to", pattern=PatternType.PREFIXED)], False),
        ([acl(kind=GROUP)], False),
    ],
)
def test_may_somewhere_follows_from_the_acls_of_a_resource_type(acls: list[Acl], may: bool) -> None:
    assert authorizer(*acls).may_somewhere(ANN, HERE, READ, TOPIC) == may


acls_of_all_kinds = st.builds(
    Acl,
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from(["a", "ab", "abc", "b", "*"]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([ANN, BOB, ANYBODY]),
    st.sampled_from(["*", HERE, THERE]),
    st.sampled_from([READ, WRITE, DESCRIBE, AclOperation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


def restated(acls: list[Acl], operation: AclOperation, name: str, allows_unprotected: bool) -> bool:
    """The rules once more, over every ACL and without an index."""
    applying = [
        acl
        for acl in acls
        if acl.resource_type is TOPIC
        and (
            acl.resource_name in (name, "*")
            if acl.pattern_type is PatternType.LITERAL
            else name.startswith(acl.resource_name)
        )
    ]
    mine = [acl for acl in applying if acl.principal in (ANN, ANYBODY) and acl.host in ("*", HERE)]
    if any(acl.permission is Permission.DENY and acl.operation in (operation, AclOperation.ALL) for acl in mine):
        return False
    enough = {operation, AclOperation.ALL} | ({READ, WRITE} if operation is DESCRIBE else set())
    if any(acl.permission is Permission.ALLOW and acl.operation in enough for acl in mine):
        return True
    return allows_unprotected and not applying


@given(
    st.lists(acls_of_all_kinds, max_size=8),
    st.sampled_from([READ, WRITE, DESCRIBE]),
    st.sampled_from(["a", "ab", "abcd", "c"]),
    st.booleans(),
)
def test_the_index_finds_what_a_look_at_every_acl_finds(
    acls: list[Acl], operation: AclOperation, name: str, allows_unprotected: bool
) -> None:
    decides = authorizer(*acls, allows_unprotected=allows_unprotected)
    assert decides.may(ANN, HERE, operation, TOPIC, name) == restated(acls, operation, name, allows_unprotected)


@given(st.lists(acls_of_all_kinds, max_size=6), st.sampled_from(["a", "ab", "abc", "b", "*", "zzz"]))
def test_may_somewhere_is_true_if_any_one_topic_may_be_read(acls: list[Acl], name: str) -> None:
    decides = authorizer(*acls)
    if decides.may(ANN, HERE, READ, TOPIC, name) and not any(
        acl.permission is Permission.DENY and (acl.pattern_type, acl.resource_name) == (PatternType.LITERAL, "*")
        for acl in acls
    ):
        assert decides.may_somewhere(ANN, HERE, READ, TOPIC)
