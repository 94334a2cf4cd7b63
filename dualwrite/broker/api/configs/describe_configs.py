"""DescribeConfigs (32), v1-v4.

The settings of a topic, of the broker (named by the node's id) or, with an empty name, those that every node was given
since its start; all of them, or those that are named. Each with its value, its source and, if asked for, its synonyms
(v1) and documentation (v3). A resource that occurs again is described once. Nothing is sensitive. Loggers, client
metrics and groups have no settings here: INVALID_REQUEST. ACL: none yet.
"""

from collections.abc import Iterable

from dualwrite.broker.api.configs.altering import BROKER, TOPIC, check_node, without_settings
from dualwrite.broker.api.configs.config_entries import Entry, broker_entries, dynamic_default_entries, topic_entries
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import RefusedError
from dualwrite.ids import is_legal_topic
from dualwrite.wire.apis import ApiKey, DescribeConfigsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_CONFIGS
VERSIONS = range(1, 5)

_Result = DescribeConfigsResponse.DescribeConfigsResult


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe the settings of every resource of the request."""
    once = {
        (each.resource_type, each.resource_name, tuple(each.configuration_keys or ())): each
        for each in request.resources
    }.values()
    results = [_describe(resource, request, broker) async for resource in in_turns(once)]
    await broker.flusher.barrier()
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _describe(resource: Message, request: Message, broker: BrokerContext) -> Message:
    named = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        entries = _entries(resource, broker)
    except RefusedError as error:
        return _Result(error_code=error.error, error_message=str(error), configs=[], **named)
    wanted = set(resource.configuration_keys or ())
    configs = [_config(entry, request) for entry in entries if not wanted or entry.name in wanted]
    return _Result(error_code=ErrorCode.NONE, error_message=None, configs=configs, **named)


def _entries(resource: Message, broker: BrokerContext) -> Iterable[Entry]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        if not is_legal_topic(name):
            raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"'{name}' is no name of a topic")
        topic = broker.cluster.topic(name)
        if topic is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        return topic_entries(topic.configs, broker)
    if kind == BROKER:
        check_node(name)
        return broker_entries(broker) if name else dynamic_default_entries(broker)
    raise without_settings(kind)


def _config(entry: Entry, request: Message) -> Message:
    result = _Result.DescribeConfigsResourceResult
    synonym = result.DescribeConfigsSynonym
    told = entry.synonyms if request.include_synonyms else ()
    return result(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=False,
        synonyms=[synonym(name=each.name, value=each.value, source=each.source) for each in told],
        config_type=entry.kind,
        documentation=entry.documentation if request.include_documentation else None,
    )
