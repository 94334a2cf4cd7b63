"""The administrative acts in a request and its answer: what an auditor wants to know of them.

Each API that changes topics, settings, rights, users, groups, offsets, records or the end of a transaction has a
function here; those about clusters, which change nothing on one node, are in ``cluster_acts``. No act has a secret: of
a credential only its mechanism, of a setting its value only if the broker has accepted it and it is no password.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from dualwrite.broker.access.acls import AclOperation, PatternType, Permission, ResourceType
from dualwrite.broker.access.scram_credentials import ScramHash
from dualwrite.broker.api.auditing.act import Act, Acts, all_ranges, by_error
from dualwrite.broker.api.auditing.cluster_acts import CLUSTER_ACTS
from dualwrite.broker.clients.shown_text import clipped
from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.broker.settings.group_settings import GROUP_SETTINGS
from dualwrite.broker.settings.setting import HIDDEN
from dualwrite.broker.settings.topic_settings import TOPIC_SETTINGS
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode

_CONFIG_RESOURCES = {2: "topic", 4: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}
_MOST_TOPICS = 20
_CONFIG_OPERATIONS = {0: "set", 1: "delete", 2: "append", 3: "subtract"}


def _create_topics(request: Message, response: Message) -> Iterator[Act]:
    if request.validate_only:
        return
    configs = {topic.name: {config.name: config.value for config in topic.configs} for topic in request.topics}
    partitions = {topic.name: topic.num_partitions for topic in request.topics}
    for result in response.topics:
        settings = _settings((("", *item) for item in configs[result.name].items()), result.error_code)
        detail = f"partitions={partitions[result.name]}{' ' if settings else ''}{settings}"
        yield Act("create topic", "topic", result.name, result.error_code, detail)


def created_by_metadata(name: str) -> Act:
    """The creation of the topic ``name`` for a client that asked for its metadata (auto.create.topics.enable)."""
    return Act("create topic", "topic", name, ErrorCode.NONE, "auto.create.topics.enable")


def _delete_topics(request: Message, response: Message) -> Iterator[Act]:
    for result in response.responses:
        name = f"id {result.topic_id}" if result.name is None else result.name
        yield Act("delete topic", "topic", name, result.error_code)


def _create_partitions(request: Message, response: Message) -> Iterator[Act]:
    if request.validate_only:
        return
    counts = {topic.name: topic.count for topic in request.topics}
    for result in response.results:
        yield Act("add partitions", "topic", result.name, result.error_code, f"partitions={counts[result.name]}")


def _replace_configs(request: Message, response: Message) -> Iterator[Act]:
    """Of AlterConfigs, after which a resource has no setting but those of the request."""
    return _configs("replace configs", request, response, lambda _: "")


def _alter_configs(request: Message, response: Message) -> Iterator[Act]:
    operations = _CONFIG_OPERATIONS
    return _configs(
        "alter configs", request, response, lambda config: operations.get(config.config_operation, "change")
    )


def _configs(action: str, request: Message, response: Message, verb: Callable[[Message], str]) -> Iterator[Act]:
    if request.validate_only:
        return
    changes = {
        (resource.resource_type, resource.resource_name): [
            (verb(config), config.name, config.value) for config in resource.configs
        ]
        for resource in request.resources
    }
    for result in response.responses:
        kind = _CONFIG_RESOURCES.get(result.resource_type, "resource")
        detail = _settings(changes[result.resource_type, result.resource_name], result.error_code)
        yield Act(action, kind, result.resource_name, result.error_code, detail)


def _settings(changes: Iterable[tuple[str, str, str | None]], error: int) -> str:
    """The changed settings; with their values if the broker has accepted them."""
    return " ".join(
        f"{operation} {name}".strip() + (f"={_value(name, value)}" if not error and value is not None else "")
        for operation, name, value in changes
    )


def _value(name: str, value: str) -> str:
    """``value`` of the setting ``name``, unless it may be a secret."""
    setting = SETTINGS.get(name)
    is_open = name in TOPIC_SETTINGS.keys() | GROUP_SETTINGS.keys() if setting is None else not setting.is_sensitive
    return clipped(value) if is_open else HIDDEN


def _create_acls(request: Message, response: Message) -> Iterator[Act]:
    for creation, result in zip(request.creations, response.results, strict=True):
        yield _acl_act("create ACL", creation, creation.resource_pattern_type, result.error_code)


def _delete_acls(request: Message, response: Message) -> Iterator[Act]:
    for wanted, result in zip(request.filters, response.filter_results, strict=True):
        if result.error_code:
            yield Act("delete ACL", "filter", wanted.resource_name_filter or "*", result.error_code)
        for acl in result.matching_acls:
            yield _acl_act("delete ACL", acl, acl.pattern_type, acl.error_code)


def _acl_act(action: str, acl: Message, pattern: int, error: int) -> Act:
    names = (
        _name(Permission, acl.permission_type),
        _name(AclOperation, acl.operation),
        f"to {acl.principal} from {acl.host}",
        _name(PatternType, pattern),
    )
    kind = _name(ResourceType, acl.resource_type).lower().replace("_", " ")
    return Act(action, kind, acl.resource_name, error, " ".join(names))


def _name(kind: type[Permission] | type[AclOperation] | type[PatternType] | type[ResourceType], code: int) -> str:
    """The name of a code that a client has sent."""
    return kind(code).name if code in kind.__members__.values() else str(code)


def _alter_credentials(request: Message, response: Message) -> Iterator[Act]:
    changes: dict[str, list[str]] = {}
    for verb, entries in (("delete", request.deletions), ("set", request.upsertions)):
        for entry in entries:
            known = entry.mechanism in ScramHash.__members__.values()
            mechanism = ScramHash(entry.mechanism).mechanism if known else str(entry.mechanism)
            changes.setdefault(entry.name, []).append(f"{verb} {mechanism}")
    for result in response.results:
        yield Act("alter credentials", "user", result.user, result.error_code, ", ".join(changes[result.user]))


def _delete_groups(request: Message, response: Message) -> Iterator[Act]:
    for result in response.results:
        yield Act("delete group", "group", result.group_id, result.error_code)


def _delete_offsets(request: Message, response: Message) -> Iterator[Act]:
    if response.error_code:
        names = " ".join(topic.name for topic in request.topics[:_MOST_TOPICS])
        yield Act("delete offsets", "group", request.group_id, response.error_code, f"topics={names}")
    for topic in response.topics:
        for error, indexes in by_error((entry.error_code, entry.partition_index) for entry in topic.partitions):
            yield Act("delete offsets", "group", request.group_id, error, f"topic={topic.name} partitions={indexes}")


def _delete_records(request: Message, response: Message) -> Iterator[Act]:
    for topic in response.topics:
        before: dict[int, list[int]] = {}
        for entry in topic.partitions:
            if not entry.error_code:
                before.setdefault(entry.low_watermark, []).append(entry.partition_index)
        if before:
            parts = (f"partitions={all_ranges(indexes)} before={offset}" for offset, indexes in before.items())
            yield Act("delete records", "topic", topic.name, ErrorCode.NONE, "; ".join(parts))
        refused = ((entry.error_code, entry.partition_index) for entry in topic.partitions if entry.error_code)
        for error, indexes in by_error(refused):
            yield Act("delete records", "topic", topic.name, error, f"partitions={indexes}")


def _write_markers(request: Message, response: Message) -> Iterator[Act]:
    ends = {
        (marker.producer_id, topic.name, index): "commit" if marker.transaction_result else "abort"
        for marker in request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    }
    for marker in response.markers:
        for topic in marker.topics:
            by_end: dict[str, list[tuple[int, int]]] = {}
            for entry in topic.partitions:
                end = ends[marker.producer_id, topic.name, entry.partition_index]
                by_end.setdefault(end, []).append((entry.error_code, entry.partition_index))
            for end, entries in by_end.items():
                for error, indexes in by_error(entries):
                    detail = f"producer id={marker.producer_id} partitions={indexes}"
                    yield Act(f"{end} transaction", "topic", topic.name, error, detail)


ACTS: Mapping[ApiKey, Acts] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.ALTER_CONFIGS: _replace_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_credentials,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.OFFSET_DELETE: _delete_offsets,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.WRITE_TXN_MARKERS: _write_markers,
    **CLUSTER_ACTS,
}
"""The APIs whose requests are administrative acts."""
