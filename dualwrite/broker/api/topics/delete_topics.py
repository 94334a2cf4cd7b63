"""DeleteTopics (20), v1-v6.

Every topic of the request, named by its name or from v6 on by its id, is deleted or refused by itself. A name or id
that occurs twice is refused, as is an id beside the name of the same topic. The answer comes when the deletion is
durable and the files are gone. An open transaction that has records there goes on without them. Internal topics stay:
INVALID_REQUEST, as the broker could not go on without them. delete.topic.enable is always true. ACL: none yet.
"""

from collections import Counter
from typing import NamedTuple
from uuid import UUID

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import RESERVED_TOPICS
from dualwrite.wire.apis import ApiKey, DeleteTopicsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DELETE_TOPICS
VERSIONS = range(1, 7)

_FIRST_WITH_TOPIC_IDS = 6
_NO_ID = UUID(int=0)


class _Result(NamedTuple):
    name: str | None
    topic_id: UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Delete the topics of the request."""
    results, names, ids = _sort_out(request, version)
    doomed: dict[UUID, str] = {}
    async for topic_id in in_turns(ids):
        name = broker.cluster.topic_name(topic_id)
        if name is None:
            results.append(_Result(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            doomed[topic_id] = name
    async for name in in_turns(names):
        topic = broker.cluster.topic(name)
        if topic is None:
            results.append(_Result(name, _NO_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif topic.topic_id in doomed:
            del doomed[topic.topic_id]
            message = "The provided topic name maps to an ID that was already supplied."
            results.append(_Result(name, topic.topic_id, ErrorCode.INVALID_REQUEST, message))
        else:
            doomed[topic.topic_id] = name
    by_id = set(ids)
    for topic_id, name in doomed.items():
        gone = ErrorCode.UNKNOWN_TOPIC_ID if topic_id in by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        results.append(await _delete(name, topic_id, gone, broker))
    response = DeleteTopicsResponse.DeletableTopicResult
    return DeleteTopicsResponse(
        throttle_time_ms=0,
        responses=[
            response(name=each.name, topic_id=each.topic_id, error_code=each.error, error_message=each.message)
            for each in results
        ],
    )


def _sort_out(request: Message, version: int) -> tuple[list[_Result], list[str], list[UUID]]:
    """Refuse names and ids that are wrong by themselves; the other names and ids."""
    if version < _FIRST_WITH_TOPIC_IDS:
        wanted = [(name, _NO_ID) for name in request.topic_names]
    else:
        wanted = [(topic.name, topic.topic_id or _NO_ID) for topic in request.topics]
    refused, names, ids = [], [], []
    for (name, topic_id), times in Counter(wanted).items():
        if name is None and topic_id == _NO_ID:
            message = "Neither topic name nor id were specified."
        elif name is not None and topic_id != _NO_ID:
            message = "You may not specify both topic name and topic id."
        elif times > 1:
            message = "Duplicate topic name." if name is not None else "Duplicate topic id."
        else:
            if name is not None:
                names.append(name)
            else:
                ids.append(topic_id)
            continue
        refused.append(_Result(name, topic_id, ErrorCode.INVALID_REQUEST, message))
    return refused, names, ids


async def _delete(name: str, topic_id: UUID, gone: ErrorCode, broker: BrokerContext) -> _Result:
    if name in RESERVED_TOPICS:
        return _Result(name, topic_id, ErrorCode.INVALID_REQUEST, f"the broker itself uses '{name}'")
    topic = broker.cluster.topic(name)
    if topic is None or topic.topic_id != topic_id:  # another client was faster; a new topic of that name stays
        return _Result(name, topic_id, gone)
    await broker.cluster.delete_topic(name)
    return _Result(name, topic_id)
