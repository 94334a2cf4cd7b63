"""Assigns partitions to an application's consumer by the call that its group's protocol asks for.

librdkafka refuses ``assign()`` in a cooperative group and ``incremental_assign()`` in any other, and logs a warning
each time. It does not tell the protocol. So this module looks at the member id, and remembers what was accepted.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from dualwrite.coordinator.offsets.consumers import KafkaConsumer, identity_of, member_of_consumer
from dualwrite.coordinator.rules.positions import MOST_CONSUMERS

_CHOSEN_BY_CLIENT = re.compile(r"[A-Za-z0-9+/_-]{22}")
"""The member id of a librdkafka consumer in the consumer protocol (KIP-1082): 16 bytes in base64."""


class Assigning:
    """The consumers of one process, and whether their groups' protocols are cooperative. A wrong guess costs a line in
    the log: the other call follows."""

    def __init__(self) -> None:
        self._are_incremental: OrderedDict[int, bool] = OrderedDict()

    def assign(self, consumer: KafkaConsumer, partitions: list[Any]) -> bool:
        """Assign ``partitions`` by the group's protocol; True if they are now all partitions of ``consumer``."""
        calls = {True: consumer.incremental_assign, False: consumer.assign}
        is_incremental = self._is_incremental(consumer)
        if not _is_accepted(lambda: calls[is_incremental](partitions)):
            is_incremental = not is_incremental
            calls[is_incremental](partitions)
        self._remember(consumer, is_incremental)
        return not is_incremental

    def seek_again(self, consumer: KafkaConsumer, positions: list[Any]) -> None:
        """Let ``consumer`` continue from the offsets of ``positions``, which are all its partitions.

        This seeks even if the consumer's own positions are equal: they do not show a seek that no read has followed."""
        if not all(_is_sought(consumer, position) for position in positions):
            self._assign_again(consumer, positions)

    def _assign_again(self, consumer: KafkaConsumer, partitions: list[Any]) -> None:
        if not self._is_incremental(consumer) and _is_accepted(lambda: consumer.assign(partitions)):
            return
        if not _is_accepted(lambda: consumer.incremental_unassign(partitions)):
            consumer.assign(partitions)
            return
        consumer.incremental_assign(partitions)
        self._remember(consumer, True)

    def _is_incremental(self, consumer: KafkaConsumer) -> bool:
        """True if the group's protocol is cooperative, as far as is known."""
        known = self._are_incremental.get(identity_of(consumer))
        return _is_of_consumer_protocol(consumer) if known is None else known

    def _remember(self, consumer: KafkaConsumer, is_incremental: bool) -> None:
        self._are_incremental[identity_of(consumer)] = is_incremental
        if len(self._are_incremental) > MOST_CONSUMERS:
            self._are_incremental.popitem(last=False)


def _is_of_consumer_protocol(consumer: KafkaConsumer) -> bool:
    """True if ``consumer`` is a member by the consumer protocol (KIP-848), which is always cooperative."""
    return _CHOSEN_BY_CLIENT.fullmatch(member_of_consumer(consumer).member_id or "") is not None


def _is_sought(consumer: KafkaConsumer, partition: Any) -> bool:
    """False if the partition cannot be sought yet: it was only just assigned."""
    return _is_accepted(lambda: consumer.seek(partition))


def _is_accepted(call: Callable[[], None]) -> bool:
    """False if librdkafka reports a wrong state: for a call that assigns, that the group has the other protocol."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        call()
    except KafkaException as error:
        if error.args[0].code() != KafkaError._STATE:
            raise
        return False
    return True
