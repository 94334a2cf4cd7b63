"""Transaction markers, against kafka-python's control records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import Record, iterate_records
from dualwrite.records.control import Marker, build_marker, read_coordinator_epoch, read_marker
from dualwrite.records.header import BatchFields, MalformedBatchError, peek_header
from tests.support.strategies import placed, producers, timestamps

PRODUCER = ProducerIdentity(77, 3)
CONTROL = BatchFields(PRODUCER, transactional=True, control=True)


@given(st.sampled_from(Marker), producers, st.integers(0, 2**31 - 1), timestamps)
def test_a_marker_survives_its_bytes(marker: Marker, producer: ProducerIdentity, epoch: int, timestamp: int) -> None:
    batch = build_marker(marker, producer, epoch, timestamp)
    header = peek_header(batch)
    assert read_marker(batch) is marker
    assert read_coordinator_epoch(batch) == epoch
    assert (header.is_control, header.is_transactional, header.producer) == (True, True, producer)
    assert (header.base_sequence, header.record_count, header.max_timestamp) == (-1, 1, timestamp)


@pytest.mark.parametrize("marker", Marker)
def test_kafka_python_sees_the_same_marker(marker: Marker) -> None:
    theirs = DefaultRecordBatch(build_marker(marker, PRODUCER, 1, 1000))
    assert theirs.is_control_batch
    assert theirs.validate_crc()
    record = next(theirs)
    assert (record.commit, record.abort) == (marker is Marker.COMMIT, marker is Marker.ABORT)


def test_an_abort_has_the_type_0_and_a_commit_the_type_1() -> None:
    """KIP-98's text has them the other way round; released Kafka does not."""
    for marker, key in ((Marker.ABORT, "0000 0000"), (Marker.COMMIT, "0000 0001")):
        (record,) = iterate_records(build_marker(marker, PRODUCER, 1, 1000))
        assert record.key == bytes.fromhex(key), "version 0, then the type"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record(b"\x00\x00\x00\x05", b""), "unknown type 5"),
        (Record(None, b""), "without a control record"),
        (Record(b"\x00\x00\x00", b""), "without a control record"),
    ],
)
def test_a_control_batch_without_a_known_marker_is_refused(record: Record, message: str) -> None:
    with pytest.raises(MalformedBatchError, match=message):
        read_marker(bytes(placed([record], fields=CONTROL)))


def test_a_marker_without_a_coordinator_epoch_is_refused() -> None:
    with pytest.raises(MalformedBatchError, match="without a coordinator epoch"):
        read_coordinator_epoch(bytes(placed([Record(b"\x00\x00\x00\x01", b"\x00")], fields=CONTROL)))
