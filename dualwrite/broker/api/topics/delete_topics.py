"""DeleteTopics (20), v1-v6.

Deletes each topic of the request, named by its name or from v6 on by its id, or refuses that topic alone. The broker
refuses a name or id that occurs twice, and a topic that occurs by name and by id. It answers when the deletion is
durable and the files are removed. An open transaction with records in the topic continues without them. An internal
topic gets INVALID_REQUEST, because the broker needs it. If delete.topic.enable is false, every topic gets
TOPIC_DELETION_DISABLED (before v3 INVALID_REQUEST).
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import Need, on_cluster, on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.cluster import RESERVED_TOPICS
from dualwrite.wire.apis import ApiKey, DeleteTopicsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DELETE_TOPICS
VERSIONS = range(1, 7)
_DELETE = on_topic(AclOperation.DELETE)
_DESCRIBE = on_topic(AclOperation.DESCRIBE, "for a topic id: else the answer has no name")
_DELETE_ALL = on_cluster(AclOperation.DELETE, "instead of both; by an ACL of ALL", is_refused=False)
NEEDS = (_DELETE, _DESCRIBE, _DELETE_ALL)

_FIRST_WITH_DISABLED = 3
_FIRST_WITH_TOPIC_IDS = 6
_NO_ID = UUID(int=0)


class _Result(NamedTuple):
    name: str | None
    topic_id: UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Delete the topics of the request."""
    if not broker.options.is_on("delete.topic.enable"):
        return _response(_disabled(request, version))
    results, names, ids = _validate(request, version)
    existing: dict[UUID, str] = {}
    async for topic_id in in_turns(ids):
        name = broker.cluster.topic_name(topic_id)
        if name is None:
            results.append(_Result(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID))
        elif not _may(_DELETE, name, broker):  # an id is no secret, the name is
            shown = name if broker.may(_DESCRIBE, name) else None
            results.append(_Result(shown, topic_id, _DELETE.error))
        else:
            existing[topic_id] = name
    async for name in in_turns(names):
        topic = broker.cluster.topic(name)
        if not _may(_DESCRIBE, name, broker):
            results.append(_Result(name, _NO_ID, _DESCRIBE.error))
        elif topic is None:
            results.append(_Result(name, _NO_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif not _may(_DELETE, name, broker):
            results.append(_Result(name, _NO_ID, _DELETE.error))
        elif topic.topic_id in existing:
            del existing[topic.topic_id]
            message = "The provided topic name maps to an ID that was already supplied."
            results.append(_Result(name, topic.topic_id, ErrorCode.INVALID_REQUEST, message))
        else:
            existing[topic.topic_id] = name
    by_id = set(ids)
    for topic_id, name in existing.items():
        deleted_error = ErrorCode.UNKNOWN_TOPIC_ID if topic_id in by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        results.append(await _delete(name, topic_id, deleted_error, broker))
    await broker.flusher.barrier()  # a topic is gone only once another client's deletion of it is on disk
    return _response(results)


def _response(results: Sequence[_Result]) -> Message:
    response = DeleteTopicsResponse.DeletableTopicResult
    return DeleteTopicsResponse(
        throttle_time_ms=0,
        responses=[
            response(name=result.name, topic_id=result.topic_id, error_code=result.error, error_message=result.message)
            for result in results
        ],
    )


def _requested(request: Message, version: int) -> list[tuple[str | None, UUID]]:
    """The name or the id of each topic of the request."""
    if version < _FIRST_WITH_TOPIC_IDS:
        return [(name, _NO_ID) for name in request.topic_names]
    return [(topic.name, topic.topic_id or _NO_ID) for topic in request.topics]


def _disabled(request: Message, version: int) -> list[_Result]:
    error = ErrorCode.TOPIC_DELETION_DISABLED if version >= _FIRST_WITH_DISABLED else ErrorCode.INVALID_REQUEST
    message = "delete.topic.enable is false"
    return [_Result(name, topic_id, error, message) for name, topic_id in _requested(request, version)]


def _may(need: Need, name: str, broker: BrokerContext) -> bool:
    return broker.may(_DELETE_ALL) or broker.may(need, name)  # a refusal is counted only if the client gets one


def _validate(request: Message, version: int) -> tuple[list[_Result], list[str], list[UUID]]:
    """The topics that the request names correctly, and the refusals of the others."""
    refused, names, ids = [], [], []
    for (name, topic_id), times in Counter(_requested(request, version)).items():
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


async def _delete(name: str, topic_id: UUID, deleted_error: ErrorCode, broker: BrokerContext) -> _Result:
    if name in RESERVED_TOPICS:
        return _Result(name, topic_id, ErrorCode.INVALID_REQUEST, f"'{name}' is a topic of the broker itself")
    topic = broker.cluster.topic(name)
    if topic is None or topic.topic_id != topic_id:  # another client was faster; a new topic of that name stays
        return _Result(name, topic_id, deleted_error)
    await broker.cluster.delete_topic(name)
    return _Result(name, topic_id)
