"""Requests that are refused before the group is looked at, in Apache Kafka's order and words."""

from dualwrite.broker.core.cluster import RefusedError
from dualwrite.broker.core.consumer_groups.commands import SAME_TIMEOUT, ConsumerGroupSettings, ConsumerHeartbeat
from dualwrite.broker.core.consumer_groups.group import LEFT, LEFT_FOR_A_WHILE
from dualwrite.broker.facts.fields import LONGEST_STRING
from dualwrite.wire.error_codes import ErrorCode


def check_request(command: ConsumerHeartbeat, settings: ConsumerGroupSettings) -> None:
    """Check what does not depend on the group.

    :raises RefusedError: if the request is invalid.
    """
    if command.names_itself or command.epoch > 0 or command.epoch == LEFT:
        _require_text("MemberId", command.member_id)
    _require_text("GroupId", command.group)
    _require_text("InstanceId", command.instance_id)
    _require_text("RackId", command.rack_id)
    if command.epoch == 0:
        _check_first(command)
    elif command.epoch == LEFT_FOR_A_WHILE:
        if command.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif command.epoch < LEFT_FOR_A_WHILE:
        raise _invalid("MemberEpoch is invalid.")
    if command.assignor is not None and command.assignor not in settings.assignors:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {command.assignor} is not supported. "
            f"Supported assignors: {', '.join(settings.assignors)}.",
        )


def _check_first(command: ConsumerHeartbeat) -> None:
    if command.rebalance_timeout_ms == SAME_TIMEOUT:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if command.owned is None or command.owned:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if command.topics is None and command.pattern is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _require_text(name: str, text: str | None) -> None:
    if text is None:
        return
    if not text.strip():
        raise _invalid(f"{name} can't be empty.")
    if len(text.encode()) > LONGEST_STRING:
        raise _invalid(f"{name} is longer than {LONGEST_STRING} bytes.")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)
