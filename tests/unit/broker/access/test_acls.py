"""What an ACL may say, and what a filter finds."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.access.acls import (
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    canonical_host,
)

READ_T = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:ann", "*", AclOperation.READ, Permission.ALLOW)
ALL = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, AclOperation.ANY, Permission.ANY)
acls = st.builds(
    Acl,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from(["a", "ab", "*"]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["User:ann", "User:*"]),
    st.sampled_from(["*", "10.0.0.1"]),
    st.sampled_from([AclOperation.READ, AclOperation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


NO_RANGES = (
    "10.0.0.0/33", "10.0.0.0/", "/8", "10.0.0/8", "10.0.0.0/8/8", "10.0.0.0/-1", "10.0.0.0/255.0.0.0", "10.0.0.0/٨",
    "fd00::/129", "host.example/8",
)  # fmt: skip


def test_a_complete_acl_is_stored() -> None:
    assert READ_T.refusal() is None
    for host in ("10.0.0.0/8", "10.1.2.3/8", "0.0.0.0/0", "fd00::/8", "::/0", "10.0.0.1/32"):
        assert dataclasses.replace(READ_T, host=host).refusal() is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"resource_type": ResourceType.UNKNOWN}, "Invalid resourceType UNKNOWN"),
        ({"pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"pattern_type": PatternType.ANY}, "Invalid patternType ANY"),
        ({"operation": AclOperation.ANY}, "Invalid operation ANY"),
        ({"operation": AclOperation.UNKNOWN}, "Invalid operation UNKNOWN"),
        ({"permission": Permission.ANY}, "Invalid permissionType ANY"),
        ({"resource_name": ""}, "Resource name should not be empty"),
        ({"resource_type": ResourceType.CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "ann"}, "expected TYPE:NAME"),
        ({"host": ""}, "Host pattern cannot be null or empty"),
        *(({"host": host}, f"Invalid CIDR notation '{host}'") for host in NO_RANGES),
    ],
)
def test_an_incomplete_acl_is_refused(change: dict[str, object], message: str) -> None:
    refusal = dataclasses.replace(READ_T, **change).refusal()  # type: ignore[arg-type]
    assert refusal is not None
    assert message in refusal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resource_type": ResourceType.UNKNOWN}, "Unknown patternFilter."),
        ({"pattern_type": PatternType.UNKNOWN}, "Unknown patternFilter."),
        ({"operation": AclOperation.UNKNOWN}, "Unknown entryFilter."),
        ({"permission": Permission.UNKNOWN}, "Unknown entryFilter."),
        ({}, None),
    ],
)
def test_a_filter_with_an_unknown_code_is_refused(change: dict[str, object], message: str | None) -> None:
    assert dataclasses.replace(ALL, **change).refusal() == message  # type: ignore[arg-type]


@given(acls)
def test_the_empty_filter_finds_every_acl(acl: Acl) -> None:
    assert ALL.finds(acl)


@given(acls, acls)
def test_a_filter_of_all_fields_finds_that_acl_alone(acl: Acl, other: Acl) -> None:
    exact = AclFilter(*(getattr(acl, field.name) for field in dataclasses.fields(Acl)))
    assert exact.finds(other) == (acl == other)


@pytest.mark.parametrize(
    ("name", "pattern", "asked", "is_found"),
    [
        ("t", PatternType.LITERAL, "t", True),
        ("t", PatternType.LITERAL, "t1", False),
        ("*", PatternType.LITERAL, "t1", True),
        ("t", PatternType.PREFIXED, "t1", True),
        ("t1", PatternType.PREFIXED, "t", False),
        ("*", PatternType.PREFIXED, "t", False),
        ("*", PatternType.PREFIXED, "*t", True),
    ],
)
def test_match_finds_every_acl_that_applies_to_a_resource(
    name: str, pattern: PatternType, asked: str, is_found: bool
) -> None:
    wanted = dataclasses.replace(ALL, resource_name=asked, pattern_type=PatternType.MATCH)
    assert wanted.finds(dataclasses.replace(READ_T, resource_name=name, pattern_type=pattern)) == is_found


def test_any_pattern_compares_names_as_they_are() -> None:
    wanted = dataclasses.replace(ALL, resource_name="t1")
    assert not wanted.finds(dataclasses.replace(READ_T, pattern_type=PatternType.PREFIXED))
    assert wanted.finds(dataclasses.replace(READ_T, pattern_type=PatternType.PREFIXED, resource_name="t1"))


@pytest.mark.parametrize(
    ("of_acl", "client", "is_covered"),
    [
        ("*", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.0.0.0/8", "10.255.255.255", True),
        ("10.0.0.0/8", "10.0.0.0", True),
        ("10.9.9.9/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.0.0.0", False),
        ("10.0.0.0/32", "10.0.0.1", False),
        ("0.0.0.0/0", "192.0.2.1", True),
        ("0.0.0.0/0", "::1", False),
        ("fd00::/8", "fd12::1", True),
        ("fd00::/8", "fe80::1", False),
        ("::ffff:10.0.0.0/104", "10.1.2.3", True),
        ("::ffff:10.0.0.0/104", "11.1.2.3", False),
        ("::/0", "10.1.2.3", False),
        ("client.example", "10.1.2.3", False),
        ("10.0.0.0/8", "", False),
    ],
)
def test_an_acl_covers_an_address_or_a_range_of_them(of_acl: str, client: str, is_covered: bool) -> None:
    assert dataclasses.replace(READ_T, host=of_acl).covers(canonical_host(client)) is is_covered


@pytest.mark.parametrize(
    ("host", "canonical"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("client.example", "client.example"),
        ("*", "*"),
        ("", ""),
    ],
)
def test_an_address_has_one_form(host: str, canonical: str) -> None:
    assert canonical_host(host) == canonical
