"""Kafka's own tool for ACLs, and the administrative clients of librdkafka and kafka-python, against the broker."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import ACL, ACLFilter, ACLPermissionType, KafkaAdminClient, ResourcePattern
from kafka.admin import ACLOperation as KafkaPythonOperation
from kafka.admin import ACLResourcePatternType as KafkaPythonPattern
from kafka.admin import ResourceType as KafkaPythonType

from tests.support.apache_kafka.single_node import java_tool
from tests.support.forked import ForkedBroker
from tests.support.waiting import PATIENCE_SECONDS

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose clients are all super users."""
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=CONFIG) as broker:
        yield broker.bootstrap_servers


def test_librdkafka_creates_describes_and_deletes_an_acl(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    binding = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.PREFIXED,
        "User:ann",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    (created,) = admin.create_acls([binding]).values()
    assert created.result(PATIENCE_SECONDS) is None
    found = AclBindingFilter(
        ResourceType.TOPIC,
        "orders-1",
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(found).result(PATIENCE_SECONDS) == [binding]
    (deleted,) = admin.delete_acls([found]).values()
    assert deleted.result(PATIENCE_SECONDS) == [binding]
    assert admin.describe_acls(found).result(PATIENCE_SECONDS) == []


def test_kafka_python_creates_describes_and_deletes_an_acl(servers: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    pattern = ResourcePattern(KafkaPythonType.GROUP, "readers", KafkaPythonPattern.LITERAL)
    acl = ACL("User:bob", "*", KafkaPythonOperation.READ, ACLPermissionType.ALLOW, pattern)
    wanted = ACLFilter("User:bob", None, KafkaPythonOperation.ANY, ACLPermissionType.ANY, pattern)
    try:
        admin.create_acls([acl])
        found, _ = admin.describe_acls(wanted)
        assert found == [acl]
        admin.delete_acls([wanted])
        assert admin.describe_acls(wanted)[0] == []
    finally:
        admin.close()


def kafka_acls(servers: str, *arguments: str) -> str:
    """What kafka-acls.sh prints."""
    ran = java_tool("org.apache.kafka.tools.AclCommand", "--bootstrap-server", servers, *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
@pytest.mark.jvm
def test_kafka_acls_adds_lists_and_removes_what_a_transactional_producer_needs(servers: str) -> None:
    producer = ("--allow-principal", "User:carol", "--producer", "--topic", "payments", "--transactional-id", "pay")
    kafka_acls(servers, "--add", *producer)
    kafka_acls(
        servers,
        "--add",
        "--allow-principal",
        "User:carol",
        "--operation",
        "TwoPhaseCommit",
        "--transactional-id",
        "pay",
    )
    listed = kafka_acls(servers, "--list")
    for operation in ("operation=WRITE", "operation=DESCRIBE", "operation=CREATE", "operation=TWO_PHASE_COMMIT"):
        assert operation in listed
    assert "principal=User:carol" in listed
    kafka_acls(servers, "--remove", "--force", *producer)
    left = kafka_acls(servers, "--list")
    assert "operation=TWO_PHASE_COMMIT" in left
    assert "operation=WRITE" not in left


@pytest.mark.slow
@pytest.mark.jvm
def test_kafka_acls_finds_what_matches_a_name_and_what_is_a_principals(servers: str) -> None:
    consumer = ("--consumer", "--topic", "shipments", "--group", "readers", "--resource-pattern-type", "prefixed")
    kafka_acls(servers, "--add", "--allow-principal", "User:dave", *consumer)
    kafka_acls(
        servers, "--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.1", "--operation", "All", "--cluster"
    )
    matching = kafka_acls(servers, "--list", "--topic", "shipments-1", "--resource-pattern-type", "match")
    assert "resourceType=TOPIC, name=shipments, patternType=PREFIXED" in matching
    assert "User:eve" not in matching
    assert "resourceType=TOPIC" not in kafka_acls(servers, "--list", "--topic", "ship")
    denied = kafka_acls(servers, "--list", "--principal", "User:eve")
    assert "principal=User:eve, host=10.0.0.1, operation=ALL, permissionType=DENY" in denied
    kafka_acls(servers, "--remove", "--force", "--topic", "shipments", "--resource-pattern-type", "any")
    left = kafka_acls(servers, "--list", "--principal", "User:dave")
    assert "resourceType=GROUP, name=readers" in left
    assert "resourceType=TOPIC" not in left
