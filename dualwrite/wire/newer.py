"""Messages that kafka-python lacks: newer versions, as its own schemas with the newer fields, and whole messages, whose
schemas are files in ``schemas``.

In ApiVersions v5 (KIP-1242), the client names the cluster and the node that it expects. Java clients from 4.4 on open
every connection with it. Its response has the form of v4.

TxnOffsetCommit v6 (KIP-1319) names topics by their ids. DeleteGroups v3 has an error message for a group that was not
deleted. kafka-python has no UnregisterBroker, and neither of KIP-848's messages: ConsumerGroupHeartbeat, which has from
v1 on a pattern of topics' names, and member ids that clients choose (KIP-1082); and ConsumerGroupDescribe, which has
from v1 on the type of each member (KIP-1099).
"""

from typing import Any

from kafka.protocol import api_header, metadata
from kafka.protocol.api_message import ApiMessage

_SCHEMAS = "dualwrite.wire.schemas"
_REGISTERED = dict(api_header.ResponseClassRegistry._response_class_registry)


def _by_id(field: dict[str, Any]) -> dict[str, Any]:  # defined first: a class needs it for its schema
    """``field``, whose array of topics has ids instead of names from v6 on."""
    if field["name"] != "Topics":
        return field
    name, *others = field["fields"]
    topic_id = {"name": "TopicId", "type": "uuid", "versions": "6+", "ignorable": True}
    return {**field, "fields": [{**name, "versions": "0-5", "ignorable": True}, topic_id, *others]}


def _with_topic_ids(cls: Any, json: dict[str, Any]) -> dict[str, Any]:
    """kafka-python's schema with the topics of v6."""
    return {**json, "validVersions": "0-6", "fields": [_by_id(field) for field in json["fields"]]}


class ApiVersionsRequest(ApiMessage):  # type: ignore[misc]  # kafka-python has no types
    """ApiVersions v0-v5. ``cluster_id`` and ``node_id`` are either both set, or null and -1."""

    @classmethod
    def json_patch(cls, json: dict[str, Any]) -> dict[str, Any]:
        """kafka-python's schema with the two fields of v5."""
        fields = [
            {"name": "ClusterId", "type": "string", "versions": "5+", "nullableVersions": "5+", "default": "null"},
            {"name": "NodeId", "type": "int32", "versions": "5+", "default": "-1"},
        ]
        return {**json, "validVersions": "0-5", "fields": [*json["fields"], *fields]}


class ApiVersionsResponse(metadata.ApiVersionsResponse):  # type: ignore[misc]  # kafka-python has no types
    """ApiVersions v0-v5. Its header is the oldest in every version, as in kafka-python."""

    @classmethod
    def json_patch(cls, json: dict[str, Any]) -> dict[str, Any]:
        """kafka-python's schema with one more version."""
        return {**json, "validVersions": "0-5"}


class TxnOffsetCommitRequest(ApiMessage):  # type: ignore[misc]  # kafka-python has no types
    """TxnOffsetCommit v0-v6: topics have a ``name`` up to v5, a ``topic_id`` from v6 on."""

    json_patch = classmethod(_with_topic_ids)


class TxnOffsetCommitResponse(ApiMessage):  # type: ignore[misc]  # kafka-python has no types
    """TxnOffsetCommit v0-v6: topics have a ``name`` up to v5, a ``topic_id`` from v6 on."""

    json_patch = classmethod(_with_topic_ids)


class DeleteGroupsRequest(ApiMessage):  # type: ignore[misc]  # kafka-python has no types
    """DeleteGroups v0-v3."""

    @classmethod
    def json_patch(cls, json: dict[str, Any]) -> dict[str, Any]:
        """kafka-python's schema with one more version."""
        return {**json, "validVersions": "0-3"}


class DeleteGroupsResponse(ApiMessage):  # type: ignore[misc]  # kafka-python has no types
    """DeleteGroups v0-v3: each group has an ``error_message`` from v3 on."""

    @classmethod
    def json_patch(cls, json: dict[str, Any]) -> dict[str, Any]:
        """kafka-python's schema with the message of v3."""
        message = {
            "name": "ErrorMessage",
            "type": "string",
            "versions": "3+",
            "nullableVersions": "3+",
            "default": "null",
            "ignorable": True,
        }
        throttle, results = json["fields"]
        return {
            **json,
            "validVersions": "0-3",
            "fields": [throttle, {**results, "fields": [*results["fields"], message]}],
        }


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc, call-arg]  # no types
    """ConsumerGroupHeartbeat v0-v1. Null, or -1 as the timeout, stands for what the last request said."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc, call-arg]  # no types
    """ConsumerGroupHeartbeat v0-v1. The assignment is null if it is as before."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc, call-arg]  # no types
    """ConsumerGroupDescribe v0-v1."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc, call-arg]  # no types
    """ConsumerGroupDescribe v0-v1."""


class UnregisterBrokerRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc, call-arg]  # no types
    """UnregisterBroker v0."""


class UnregisterBrokerResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc, call-arg]  # no types
    """UnregisterBroker v0."""


# A new class registers itself as the response that kafka-python's own clients read. This restores the original classes.
api_header.ResponseClassRegistry._response_class_registry.clear()
api_header.ResponseClassRegistry._response_class_registry.update(_REGISTERED)
