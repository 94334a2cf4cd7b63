"""Consumers' offsets that librdkafka sends in a transaction: it may send them late, and into the next transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException

from dualwrite.client.librdkafka.errors import translated
from dualwrite.errors import KafkaRefusedError, KafkaUnavailableError


class SentOffsets:
    """The offsets in the open transaction, and those that may still be in flight."""

    def __init__(self) -> None:
        self.groups: set[str] = set()
        """The groups whose offsets are in the open transaction."""
        self.may_be_in_flight = False
        """True if sent offsets may still be in flight: in a later transaction they would overwrite newer ones."""

    def begin(self) -> None:
        """Begin a transaction."""
        self.groups = set()

    @contextmanager
    def sending(self, operation: str, group: str) -> Iterator[None]:
        """Send the offsets of ``group`` within the block, and translate librdkafka's errors.

        :param operation: the call, for messages.
        """
        self.groups.add(group)
        self.may_be_in_flight = True
        try:
            yield
        except KafkaException as error:
            refusal = translated(operation, error.args[0])
            if not isinstance(refusal, KafkaRefusedError):
                raise refusal from error  # e.g. a timeout: the broker may have them, or get them later
            if refusal.code < 0:  # librdkafka's own error, after a record that was not acknowledged
                raise KafkaUnavailableError(str(refusal)) from error
            self.may_be_in_flight = False
            raise refusal from error
        self.may_be_in_flight = False
