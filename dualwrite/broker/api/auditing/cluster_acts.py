"""The acts of an administrator of a cluster. On one node they change nothing, and most are refused."""

from collections.abc import Iterator, Mapping

from dualwrite.broker.api.auditing.act import Act, Acts, by_error
from dualwrite.wire.apis import ApiKey, Message

_CLUSTER = "cluster"
_THE_CLUSTER = "kafka-cluster"
_ELECTIONS = {0: "preferred", 1: "unclean"}


def _elect_leaders(request: Message, response: Message) -> Iterator[Act]:
    kind = _ELECTIONS.get(getattr(request, "election_type", 0), "unknown")
    if request.topic_partitions is None:
        yield Act("elect leaders", _CLUSTER, _THE_CLUSTER, response.error_code, f"{kind}; all partitions")
        return
    for topic in response.replica_election_results:
        entries = ((entry.error_code, entry.partition_id) for entry in topic.partition_result)
        for error, indexes in by_error(entries):
            yield Act("elect leaders", "topic", topic.topic, error, f"{kind}; partitions={indexes}")


def _reassign(request: Message, response: Message) -> Iterator[Act]:
    for topic in response.responses:
        for error, indexes in by_error((entry.error_code, entry.partition_index) for entry in topic.partitions):
            yield Act("reassign partitions", "topic", topic.name, error, f"partitions={indexes}")


def _move_directories(request: Message, response: Message) -> Iterator[Act]:
    for topic in response.results:
        for error, indexes in by_error((entry.error_code, entry.partition_index) for entry in topic.partitions):
            yield Act("move partitions", "topic", topic.topic_name, error, f"partitions={indexes}")


def _update_features(request: Message, response: Message) -> Iterator[Act]:
    if request.validate_only:
        return
    levels = " ".join(f"{update.feature}={update.max_version_level}" for update in request.feature_updates)
    yield Act("update features", _CLUSTER, _THE_CLUSTER, response.error_code, levels)


def _unregister(request: Message, response: Message) -> Iterator[Act]:
    yield Act("unregister broker", "broker", str(request.broker_id), response.error_code)


def _alter_quotas(request: Message, response: Message) -> Iterator[Act]:
    if request.validate_only:
        return
    for wanted, result in zip(request.entries, response.entries, strict=True):
        name = " ".join(f"{part.entity_type}={part.entity_name}" for part in result.entity)
        changes = " ".join(
            f"delete {change.key}" if change.remove else f"set {change.key}={change.value:g}" for change in wanted.ops
        )
        yield Act("alter quotas", "client quota", name, result.error_code, changes)


CLUSTER_ACTS: Mapping[ApiKey, Acts] = {
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassign,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _move_directories,
    ApiKey.UPDATE_FEATURES: _update_features,
    ApiKey.UNREGISTER_BROKER: _unregister,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_quotas,
}
"""The APIs of clusters whose requests are administrative acts."""
