"""Offsets that librdkafka has sent: when a late copy of them may still reach the next transaction."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from dualwrite.client.librdkafka.sent_offsets import SentOffsets
from dualwrite.errors import DualWriteError, KafkaRefusedError, KafkaUnavailableError


def test_offsets_that_were_taken_are_not_in_flight_and_their_groups_are_of_one_transaction() -> None:
    sent = SentOffsets()
    assert not sent.may_be_in_flight
    for group in ("g", "h"):
        with sent.sending("send", group):
            assert sent.may_be_in_flight, "an interrupt here leaves them on their way"
    assert (sent.groups, sent.may_be_in_flight) == ({"g", "h"}, False)
    sent.begin()
    assert sent.groups == set()


@pytest.mark.parametrize(
    ("code", "expected", "in_flight"),
    [
        (KafkaError.ILLEGAL_GENERATION, KafkaRefusedError, False),
        (KafkaError._TIMED_OUT, KafkaUnavailableError, True),
        (KafkaError._STATE, KafkaUnavailableError, True),
    ],
    ids=["refused by the broker", "not answered", "refused by librdkafka after another failure"],
)
def test_only_a_brokers_refusal_says_that_none_are_on_their_way(
    code: int, expected: type[DualWriteError], in_flight: bool
) -> None:
    sent = SentOffsets()
    with pytest.raises(DualWriteError) as raised, sent.sending("send", "g"):
        raise KafkaException(KafkaError(code))
    assert type(raised.value) is expected
    assert (sent.groups, sent.may_be_in_flight) == ({"g"}, in_flight)


def test_another_error_leaves_them_on_their_way() -> None:
    sent = SentOffsets()
    with pytest.raises(KeyboardInterrupt), sent.sending("send", "g"):
        raise KeyboardInterrupt
    assert sent.may_be_in_flight
