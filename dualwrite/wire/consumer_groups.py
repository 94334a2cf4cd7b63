"""The messages of KIP-848, from schemas of this project: kafka-python has none for them.

ConsumerGroupHeartbeat v1 has a pattern of topics' names, and the client chooses its member id (KIP-1082).
ConsumerGroupDescribe v1 has the type of each member (KIP-1099). mypy is told to ignore what it cannot know of
kafka-python, which has no types.
"""

from kafka.protocol import api_header
from kafka.protocol.api_message import ApiMessage

_REGISTERED = dict(api_header.ResponseClassRegistry._response_class_registry)
_SCHEMAS = "dualwrite.wire.schemas"


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """ConsumerGroupHeartbeat v0-v1. Null, or -1 as the timeout, stands for what the last request said."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """ConsumerGroupHeartbeat v0-v1. The assignment is null if it is as before."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """ConsumerGroupDescribe v0-v1."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """ConsumerGroupDescribe v0-v1."""


# A new class registers itself as the response that kafka-python's own clients read. This restores the original classes.
api_header.ResponseClassRegistry._response_class_registry.clear()
api_header.ResponseClassRegistry._response_class_registry.update(_REGISTERED)
