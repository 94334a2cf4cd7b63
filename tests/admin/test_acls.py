"""ACLs by function and by command, on a broker with an authorizer."""

from collections.abc import Iterator

import pytest

from dualwrite.admin.acls import (
    EVERY_ACL,
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    add_acls,
    as_text,
    list_acls,
    remove_acls,
)
from dualwrite.errors import InputError, KafkaRefusedError
from dualwrite.testing.kafka import KafkaBroker
from dualwrite.wire.error_codes import ErrorCode
from tests.support.admin.admin_site import AdminSite
from tests.support.forked import ForkedKafkaBroker

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
READ = Acl(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:a", "*", AclOperation.READ, Permission.ALLOW)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with ForkedKafkaBroker(tmp_path_factory.mktemp("authorizing"), config=AUTHORIZER) as running:
        yield running


@pytest.fixture
def site(broker: KafkaBroker) -> Iterator[AdminSite]:
    made = AdminSite(broker.bootstrap_servers)
    remove_acls(made.config, EVERY_ACL)
    yield made
    made.close()


@pytest.mark.slow
def test_an_acl_that_was_added_is_listed_and_removed(site: AdminSite) -> None:
    prefixed = Acl(
        ResourceType.GROUP, "or", PatternType.PREFIXED, "User:b", "10.0.0.1", AclOperation.ALL, Permission.DENY
    )
    add_acls(site.config, [READ, prefixed])
    add_acls(site.config, [READ])
    assert list_acls(site.config) == [READ, prefixed]
    only_groups = AclFilter(ResourceType.GROUP, None, PatternType.ANY, None, None, AclOperation.ANY, Permission.ANY)
    assert list_acls(site.config, only_groups) == [prefixed]
    assert remove_acls(site.config, only_groups) == [prefixed]
    assert remove_acls(site.config, only_groups) == []
    assert list_acls(site.config) == [READ]


def test_the_command_adds_one_for_each_principal_resource_and_operation(site: AdminSite) -> None:
    words = ("--principal", "User:a", "--principal", "User:b", "--topic", "orders", "--transactional-id", "orders-")
    result = site.run("acls", "add", *words, "--operation", "write", "--operation", "describe", "--prefixed")
    assert (result.code, result.out.splitlines()[-1]) == (0, "added 8 ACLs")
    assert sorted(site.rows("acls", "list", "--principal", "User:b")) == [
        ["User:b", "*", "ALLOW", "DESCRIBE", "PREFIXED", "TOPIC", "orders"],
        ["User:b", "*", "ALLOW", "DESCRIBE", "PREFIXED", "TRANSACTIONAL_ID", "orders-"],
        ["User:b", "*", "ALLOW", "WRITE", "PREFIXED", "TOPIC", "orders"],
        ["User:b", "*", "ALLOW", "WRITE", "PREFIXED", "TRANSACTIONAL_ID", "orders-"],
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--topic", "t", "--operation", "TWO_PHASE_COMMIT"), "TWO_PHASE_COMMIT has no meaning for a topic: use ALL, "),
        (("--transactional-id", "t", "--operation", "READ"), "READ has no meaning for a transactional id: use ALL, "),
        (("--cluster", "--operation", "WRITE"), "WRITE has no meaning for a cluster: use ALL, CREATE, "),
        (("--user", "User:u", "--operation", "ALTER"), "ALTER has no meaning for a user: use ALL, CREATE_TOKENS, "),
    ],
)
def test_an_operation_that_no_broker_looks_at_is_refused(site: AdminSite, words: tuple[str, ...], reason: str) -> None:
    result = site.run("acls", "add", "--principal", "User:a", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"dualwrite: --operation {reason}")
    assert list_acls(site.config) == []


def test_rights_on_the_cluster_and_denials_are_added(site: AdminSite) -> None:
    words = ("--cluster", "--group", "g", "--principal", "User:a", "--operation", "DESCRIBE", "--host", "10.0.0.1")
    assert site.run("acls", "add", *words, "--deny", "--prefixed").code == 0
    assert site.rows("acls", "list") == [
        ["User:a", "10.0.0.1", "DENY", "DESCRIBE", "PREFIXED", "GROUP", "g"],
        ["User:a", "10.0.0.1", "DENY", "DESCRIBE", "LITERAL", "CLUSTER", "kafka-cluster"],
    ]
    assert site.run("acls", "list", "--allow").out == "no ACLs\n"
    assert len(site.rows("acls", "list", "--deny", "--host", "10.0.0.1", "--operation", "describe")) == 2


def test_match_finds_what_applies_to_a_resource(site: AdminSite) -> None:
    add_acls(site.config, [READ])
    site.run("acls", "add", "--topic", "ord", "--prefixed", "--principal", "User:p", "--operation", "READ")
    matching = site.rows("acls", "list", "--topic", "orders", "--pattern", "match")
    assert [row[0] for row in matching] == ["User:p", "User:a"]
    assert [row[0] for row in site.rows("acls", "list", "--topic", "orders")] == ["User:a"]


def test_nothing_is_removed_without_a_yes(site: AdminSite) -> None:
    add_acls(site.config, [READ])
    words = ("acls", "remove", "--topic", "orders", "--principal", "User:a")
    result = site.run(*words)
    assert (result.code, result.err) == (2, "dualwrite: not confirmed: add --yes to remove 1 ACL\n")
    assert result.out.splitlines()[1].split() == ["User:a", "*", "ALLOW", "READ", "LITERAL", "TOPIC", "orders"]
    assert list_acls(site.config) == [READ]
    removed = site.run(*words, "--yes")
    assert (removed.code, removed.out.splitlines()[-1]) == (0, "removed 1 ACL")
    assert list_acls(site.config) == []
    again = site.run(*words, "--yes")
    assert (again.code, again.err) == (2, "dualwrite: no ACL is found by these options\n")


def test_programs_get_every_field(site: AdminSite) -> None:
    add_acls(site.config, [READ])
    fields = {
        "principal": "User:a",
        "host": "*",
        "permission": "ALLOW",
        "operation": "READ",
        "pattern": "LITERAL",
        "resource": "TOPIC",
        "name": "orders",
    }
    assert site.run("acls", "list", "--json").json() == [fields]
    assert site.run("acls", "remove", "--topic", "orders", "--yes", "--json").json() == [fields]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("add", "--principal", "User:a", "--operation", "READ"), "name a resource: --topic, --group, "),
        (("add", "--topic", "t", "--principal", "a", "--operation", "READ"), "Could not parse principal from 'a'"),
        (("add", "--topic", "", "--principal", "User:a", "--operation", "READ"), "Resource name should not be empty"),
        (
            ("add", "--topic", "t", "--principal", "User:a", "--operation", "any"),
            "argument --operation: 'any': use one of ALL",
        ),
        (("add", "--topic", "t", "--operation", "READ"), "the following arguments are required: --principal"),
        (
            ("remove", "--operation", "READ", "--yes"),
            "name a resource or a --principal: this would remove the ACLs of ",
        ),
    ],
)
def test_a_mistake_is_one_line(site: AdminSite, words: tuple[str, ...], complaint: str) -> None:
    code, out, err = site.run("acls", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"dualwrite: {complaint}")


def test_an_acl_without_a_meaning_is_not_sent(site: AdminSite) -> None:
    with pytest.raises(InputError, match="Invalid operation ANY"):
        add_acls(site.config, [READ, Acl(*[*_fields(READ)[:5], AclOperation.ANY, Permission.ALLOW])])
    assert list_acls(site.config) == []


def _fields(acl: Acl) -> list:  # type: ignore[type-arg]
    return [acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.host, acl.operation]


def test_an_acl_in_a_line_names_everything() -> None:
    assert as_text(READ) == "ALLOW User:a from * READ on literal topic orders"
    cluster = Acl(ResourceType.CLUSTER, "kafka-cluster", *_fields(READ)[2:], Permission.DENY)
    assert as_text(cluster) == "DENY User:a from * READ on literal cluster"


def test_a_cluster_without_an_authorizer_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ForkedKafkaBroker(tmp_path_factory.mktemp("open")) as broker:
        site = AdminSite(broker.bootstrap_servers)
        for words in (("list",), ("add", "--topic", "t", "--principal", "User:a", "--operation", "READ")):
            code, out, err = site.run("acls", *words)
            assert (code, out) == (2, "")
            assert err.endswith(": the cluster has no authorizer (authorizer.class.name): SECURITY_DISABLED (54)\n")
        with pytest.raises(KafkaRefusedError) as raised:
            remove_acls(site.config, EVERY_ACL)
        assert raised.value.code == ErrorCode.SECURITY_DISABLED
