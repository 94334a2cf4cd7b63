"""DescribeConfigs (32), v1-v4.

Answers the settings of a topic, of a group or of the broker (named by the node's id). For the broker with an empty name
it answers the settings that clients have set for every node. A group need not exist (KIP-848): without a value of its
own it has the broker's. The request names the settings, or asks for all. Each has its value, its source and, on
request, its synonyms (v1) and documentation (v3). A resource that occurs twice is described once. The value of a
password is null. Loggers and client metrics have no settings: INVALID_REQUEST.
"""

from collections.abc import Iterable

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.api.configs.altering import (
    BROKER,
    GROUP,
    TOPIC,
    check_node,
    needs_of_resources,
    refuse_without,
    without_settings,
)
from dualwrite.broker.api.configs.config_entries import (
    Entry,
    broker_entries,
    dynamic_default_entries,
    group_entries,
    topic_entries,
)
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import RefusedError
from dualwrite.ids import is_legal_topic
from dualwrite.wire.apis import ApiKey, DescribeConfigsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_CONFIGS
VERSIONS = range(1, 5)
NEEDS = needs_of_resources(AclOperation.DESCRIBE_CONFIGS)

_Result = DescribeConfigsResponse.DescribeConfigsResult


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe the settings of every resource of the request."""
    resources = {
        (entry.resource_type, entry.resource_name, tuple(entry.configuration_keys or ())): entry
        for entry in request.resources
    }.values()
    results = [_describe(resource, request, broker) async for resource in in_turns(resources)]
    await broker.flusher.barrier()
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _describe(resource: Message, request: Message, broker: BrokerContext) -> Message:
    resource_fields = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        refuse_without(NEEDS, resource, broker)
        entries = _entries(resource, broker)
    except RefusedError as error:
        return _Result(error_code=error.error, error_message=str(error), configs=[], **resource_fields)
    requested = set(resource.configuration_keys or ())
    configs = [_config(entry, request) for entry in entries if not requested or entry.name in requested]
    return _Result(error_code=ErrorCode.NONE, error_message=None, configs=configs, **resource_fields)


def _entries(resource: Message, broker: BrokerContext) -> Iterable[Entry]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        if not is_legal_topic(name):
            raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"'{name}' is not a valid topic name")
        topic = broker.cluster.topic(name)
        if topic is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        return topic_entries(topic.configs, broker)
    if kind == BROKER:
        check_node(name, broker)
        return broker_entries(broker) if name else dynamic_default_entries(broker)
    if kind == GROUP:
        if not name:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return group_entries(name, broker)
    raise without_settings(kind)


def _config(entry: Entry, request: Message) -> Message:
    result = _Result.DescribeConfigsResourceResult
    synonym = result.DescribeConfigsSynonym
    synonyms = entry.synonyms if request.include_synonyms else ()
    return result(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[synonym(name=entry.name, value=entry.value, source=entry.source) for entry in synonyms],
        config_type=entry.kind,
        documentation=entry.documentation if request.include_documentation else None,
    )
