"""Requests of tests about topics and settings, in one call each."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from dualwrite.broker.core.topic_changes import ConfigOperation
from dualwrite.wire.apis import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    Message,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.raw_client import RawClient

TOPIC, BROKER, GROUP = 2, 4, 32


class Refusal(NamedTuple):
    """The error that was answered, and its words."""

    error: ErrorCode
    words: str


def delete(client: RawClient, *names: str, version: int = 6) -> dict[str | None, ErrorCode]:
    """What DeleteTopics answers about topics named by their names."""
    states = [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None) for name in names]
    return _deleted(client, DeleteTopicsRequest(topics=states, topic_names=list(names), timeout_ms=1000), version)


def delete_by_id(client: RawClient, *topic_ids: UUID) -> dict[str | None, ErrorCode]:
    """What DeleteTopics answers about topics named by their ids."""
    states = [DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id) for topic_id in topic_ids]
    return _deleted(client, DeleteTopicsRequest(topics=states, topic_names=[], timeout_ms=1000), 6)


def _deleted(client: RawClient, request: Message, version: int) -> dict[str | None, ErrorCode]:
    return {response.name: ErrorCode(response.error_code) for response in client.ask(request, version).responses}


def grow(
    client: RawClient,
    name: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None = None,
    version: int = 3,
    validate_only: bool = False,
) -> Refusal:
    """What CreatePartitions answers."""
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    replicas = None
    if assignments is not None:
        replicas = [topic.CreatePartitionsAssignment(broker_ids=list(nodes)) for nodes in assignments]
    request = CreatePartitionsRequest(
        topics=[topic(name=name, count=count, assignments=replicas)], timeout_ms=1000, validate_only=validate_only
    )
    (result,) = client.ask(request, version).results
    return Refusal(ErrorCode(result.error_code), result.error_message or "")


def describe_configs(
    client: RawClient, kind: int, name: str, *names: str, version: int = 4, more: bool = False
) -> Message:
    """What DescribeConfigs answers about one resource; ``more`` asks for synonyms and documentation."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(names) or None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=more, include_documentation=more)
    (result,) = client.ask(request, version).results
    return result


def config(client: RawClient, kind: int, name: str, key: str) -> tuple[str | None, int]:
    """The value and the source of one setting."""
    (entry,) = describe_configs(client, kind, name, key).configs
    return entry.value, entry.config_source


def change(
    client: RawClient,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> Refusal:
    """What IncrementalAlterConfigs answers to changes (setting, operation, value) of one resource."""
    return _altered(client, alter_request({(kind, name): changes}, validate_only), version)


def alter_request(
    changes: Mapping[tuple[int, str], Sequence[tuple[str, int, str | None]]], validate_only: bool = False
) -> Message:
    """An IncrementalAlterConfigs request."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    return IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    resource.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in wanted
                ],
            )
            for (kind, name), wanted in changes.items()
        ],
        validate_only=validate_only,
    )


def set_config(client: RawClient, kind: int, name: str, **values: str) -> None:
    """Set settings, named with underscores for dots, which must be taken."""
    changes = [(key.replace("_", "."), ConfigOperation.SET, value) for key, value in values.items()]
    assert change(client, kind, name, *changes) == (ErrorCode.NONE, "")


def replace_configs(
    client: RawClient, kind: int, name: str, values: Mapping[str, str | None], version: int = 2
) -> Refusal:
    """What AlterConfigs answers about one resource."""
    resource = AlterConfigsRequest.AlterConfigsResource
    entries = [resource.AlterableConfig(name=key, value=value) for key, value in values.items()]
    request = AlterConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=name, configs=entries)], validate_only=False
    )
    return _altered(client, request, version)


def _altered(client: RawClient, request: Message, version: int) -> Refusal:
    (response,) = client.ask(request, version).responses
    return Refusal(ErrorCode(response.error_code), response.error_message or "")
