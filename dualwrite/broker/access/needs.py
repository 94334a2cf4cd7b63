"""The rights that the APIs ask for, as values: handlers check them, and the documentation's table is drawn of them."""

from typing import NamedTuple

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.wire.error_codes import ErrorCode

_REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Need(NamedTuple):
    """One right that an API asks for.

    :param note: what the right is needed for, or what happens without it.
    :param is_refused: false if a client without it gets no error: another right suffices, or the answer has less.
    """

    operation: AclOperation
    resource_type: ResourceType
    note: str = ""
    is_refused: bool = True

    @property
    def error(self) -> ErrorCode:
        """What a client without this right gets."""
        return _REFUSALS[self.resource_type]

    @property
    def message(self) -> str:
        """The error in words, as Kafka's."""
        return f"{self.resource_type.name.replace('_', ' ').capitalize()} authorization failed."


def on_topic(operation: AclOperation, note: str = "", *, is_refused: bool = True) -> Need:
    """``operation`` on a topic."""
    return Need(operation, ResourceType.TOPIC, note, is_refused)


def on_group(operation: AclOperation, note: str = "", *, is_refused: bool = True) -> Need:
    """``operation`` on a consumer group."""
    return Need(operation, ResourceType.GROUP, note, is_refused)


def on_cluster(operation: AclOperation, note: str = "", *, is_refused: bool = True) -> Need:
    """``operation`` on the cluster."""
    return Need(operation, ResourceType.CLUSTER, note, is_refused)


def on_transactional_id(operation: AclOperation, note: str = "", *, is_refused: bool = True) -> Need:
    """``operation`` on a transactional id."""
    return Need(operation, ResourceType.TRANSACTIONAL_ID, note, is_refused)
