"""Changes of an existing topic: more partitions, other settings.

Sources: Kafka's ReplicationControlManager (CreatePartitions), ConfigurationControlManager and ConfigAdminManager.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from dualwrite.broker.core.cluster import RefusedError, TopicDecision
from dualwrite.broker.facts.cluster import TopicCreated
from dualwrite.broker.settings.broker_settings import MAX_PARTITIONS
from dualwrite.broker.settings.setting import ConfigType, SettingError
from dualwrite.broker.settings.topic_configs import check_topic_config
from dualwrite.broker.settings.topic_settings import TOPIC_SETTINGS
from dualwrite.wire.error_codes import ErrorCode


class ConfigOperation(IntEnum):
    """The operations of IncrementalAlterConfigs on a setting (KIP-339; Kafka: AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One setting of a request. ``value`` is None only if the operation is DELETE."""

    name: str
    operation: ConfigOperation
    value: str | None


def decide_partitions(topic: TopicCreated, count: int, assignments: int | None, room: int) -> TopicDecision:
    """Decide whether ``topic`` may have ``count`` partitions.

    :param assignments: the number of new partitions whose replicas the request names; None if the broker chooses them.
    :param room: how many partitions the broker can still open.
    """
    more = count - topic.partitions
    if more == 0:
        return TopicDecision(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if more < 0:
        return TopicDecision(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {topic.partitions} partition(s); {count} would not be an increase.",
        )
    if count > MAX_PARTITIONS:
        return TopicDecision(ErrorCode.INVALID_PARTITIONS, f"use 1 to {MAX_PARTITIONS} partitions")
    if assignments is not None and assignments != more:
        return TopicDecision(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{more} additional partition(s), but {assignments} assignment(s) were specified",
        )
    if more > room:
        return TopicDecision(
            ErrorCode.INVALID_PARTITIONS,
            f"{more} partitions more, but the broker may open {room}; raise its limit of open files",
        )
    return TopicDecision(fact=replace(topic, partitions=count))


def decide_configs(topic: TopicCreated, configs: Mapping[str, str], defaults: Mapping[str, str]) -> TopicDecision:
    """Decide whether ``configs`` may replace the settings of ``topic``.

    :param defaults: the defaults from the broker's settings.
    """
    try:
        return TopicDecision(fact=replace(topic, configs=check_topic_config(configs, defaults)))
    except SettingError as error:
        return TopicDecision(ErrorCode.INVALID_CONFIG, str(error))


def changed(current: Mapping[str, str], changes: Sequence[ConfigChange], lists: Mapping[str, str]) -> dict[str, str]:
    """``current`` after ``changes``, in their order.

    :param lists: the settings that are lists, by name, each with the value that it has unless ``current`` sets it.
    :raises RefusedError: for an invalid change.
    """
    configs = dict(current)
    for change in changes:
        if change.operation is ConfigOperation.DELETE:
            configs.pop(change.name, None)
            continue
        assert change.value is not None, "only a deletion has no value"
        if change.operation is ConfigOperation.SET:
            configs[change.name] = change.value
            continue
        if change.name not in lists:
            raise RefusedError(
                ErrorCode.INVALID_CONFIG,
                f"Can't {change.operation.name} to key {change.name} because its type is not LIST.",
            )
        parts = [part for part in configs.get(change.name, lists[change.name]).split(",") if part]
        listed = change.value.split(",")
        if change.operation is ConfigOperation.APPEND:
            parts += [part for part in dict.fromkeys(listed) if part not in parts]
        else:
            parts = [part for part in parts if part not in listed]
        configs[change.name] = ",".join(parts)
    return configs


def topic_lists(defaults: Mapping[str, str]) -> dict[str, str]:
    """The topics' settings that are lists, with their defaults."""
    return {
        name: defaults.get(name, setting.default)
        for name, setting in TOPIC_SETTINGS.items()
        if setting.type is ConfigType.LIST
    }
