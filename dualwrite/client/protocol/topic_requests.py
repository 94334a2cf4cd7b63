"""The requests of ``dualwrite.admin`` about topics and their settings. None of them is a part of a dual write."""

from collections.abc import Iterable, Mapping

from dualwrite.client.protocol.requests import VersionedRequest
from dualwrite.wire.apis import APIS, ApiKey

BROKERS_DEFAULT = -1
"""In CreateTopics: the broker's own number of partitions or replicas (KIP-464)."""
_TOPIC = 2
"""Kafka's ConfigResource.Type of a topic."""
_SET = 0
"""Kafka's AlterConfigOp.OpType SET."""
_FIRST_WITH_SETTINGS = 5
"""The answer to CreateTopics has the topic's settings from this version on (KIP-525)."""
_TIMEOUT_MS = 30_000
"""How long the broker may wait for the cluster, as in Kafka's own tools."""
_LAST_WITH_NAMES = 5
"""DeleteTopics names topics in a field of its own up to this version."""


def topic_creation(
    name: str,
    partitions: int = BROKERS_DEFAULT,
    replicas: int = BROKERS_DEFAULT,
    config: Mapping[str, str] | None = None,
    *,
    validates: bool = False,
) -> VersionedRequest:
    """CreateTopics of one topic. It is not repeatable: the second answer would be that the topic exists.

    :param validates: True to create nothing, and only learn what the topic would be (repeatable).
    """
    request = APIS[ApiKey.CREATE_TOPICS].request
    settings = request.CreatableTopic.CreatableTopicConfig
    topic = request.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[],
        configs=[settings(name=key, value=value) for key, value in (config or {}).items()],
    )
    message = request(topics=[topic], timeout_ms=_TIMEOUT_MS, validate_only=validates)
    floor = _FIRST_WITH_SETTINGS if validates else 4
    return VersionedRequest(f"CreateTopics of {name}", ApiKey.CREATE_TOPICS, message, floor, repeatable=validates)


def partition_addition(name: str, total: int) -> VersionedRequest:
    """CreatePartitions of one topic, up to ``total``. It is not repeatable: the second answer would be an error."""
    request = APIS[ApiKey.CREATE_PARTITIONS].request
    topic = request.CreatePartitionsTopic(name=name, count=total, assignments=None)
    message = request(topics=[topic], timeout_ms=_TIMEOUT_MS, validate_only=False)
    return VersionedRequest(f"CreatePartitions of {name}", ApiKey.CREATE_PARTITIONS, message, repeatable=False)


def topic_deletion(name: str) -> VersionedRequest:
    """DeleteTopics of one topic. It is not repeatable: the second answer would be that there is no such topic."""
    message = APIS[ApiKey.DELETE_TOPICS].request(topic_names=[name], timeout_ms=_TIMEOUT_MS)
    return VersionedRequest(
        f"DeleteTopics of {name}", ApiKey.DELETE_TOPICS, message, floor=1, cap=_LAST_WITH_NAMES, repeatable=False
    )


def topic_settings(names: Iterable[str]) -> VersionedRequest:
    """DescribeConfigs of the topics ``names``: all their settings."""
    request = APIS[ApiKey.DESCRIBE_CONFIGS].request
    resources = [
        request.DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=None)
        for name in names
    ]
    message = request(resources=resources, include_synonyms=False, include_documentation=False)
    return VersionedRequest("DescribeConfigs", ApiKey.DESCRIBE_CONFIGS, message, floor=1)


def settings_change(name: str, settings: Mapping[str, str]) -> VersionedRequest:
    """IncrementalAlterConfigs of the topic ``name``: set these settings, and leave the others (KIP-339)."""
    request = APIS[ApiKey.INCREMENTAL_ALTER_CONFIGS].request
    resource = request.AlterConfigsResource
    configs = [
        resource.AlterableConfig(name=key, config_operation=_SET, value=value) for key, value in settings.items()
    ]
    message = request(
        resources=[resource(resource_type=_TOPIC, resource_name=name, configs=configs)], validate_only=False
    )
    return VersionedRequest(f"IncrementalAlterConfigs of {name}", ApiKey.INCREMENTAL_ALTER_CONFIGS, message)


def partition_sizes(name: str, partitions: Iterable[int]) -> VersionedRequest:
    """DescribeLogDirs of one broker: the sizes of its replicas of these partitions."""
    request = APIS[ApiKey.DESCRIBE_LOG_DIRS].request
    topic = request.DescribableLogDirTopic(topic=name, partitions=list(partitions))
    return VersionedRequest(f"DescribeLogDirs of topic {name}", ApiKey.DESCRIBE_LOG_DIRS, request(topics=[topic]), 1)
