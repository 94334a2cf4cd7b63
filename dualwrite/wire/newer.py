"""Versions of messages that are newer than kafka-python's schemas, as its own schemas with what was added since.

ApiVersions v5 (KIP-1242) tells the broker which cluster and node the client means to speak to. Java clients from 4.4 on
open every connection with it. Its response has the form of v4, so that only the range of versions grows.
"""

from typing import Any

from kafka.protocol import api_header
from kafka.protocol.api_message import ApiMessage

_REGISTERED = dict(api_header.ResponseClassRegistry._response_class_registry)


class ApiVersionsRequest(ApiMessage):  # type: ignore[misc]  # kafka-python has no types
    """ApiVersions v0-v5: ``cluster_id`` and ``node_id`` are given both or, as null and -1, neither."""

    @classmethod
    def json_patch(cls, json: dict[str, Any]) -> dict[str, Any]:
        """kafka-python's schema, and the two fields of v5."""
        fields = [
            {"name": "ClusterId", "type": "string", "versions": "5+", "nullableVersions": "5+", "default": "null"},
            {"name": "NodeId", "type": "int32", "versions": "5+", "default": "-1"},
        ]
        return {**json, "validVersions": "0-5", "fields": [*json["fields"], *fields]}


class ApiVersionsResponse(ApiMessage):  # type: ignore[misc]  # kafka-python has no types
    """ApiVersions v0-v5."""

    @classmethod
    def json_patch(cls, json: dict[str, Any]) -> dict[str, Any]:
        """kafka-python's schema for one version more."""
        return {**json, "validVersions": "0-5"}


# A class registers itself as the response that kafka-python's own clients read; they keep theirs.
api_header.ResponseClassRegistry._response_class_registry.update(_REGISTERED)
