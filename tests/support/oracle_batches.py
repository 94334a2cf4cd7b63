"""Record batches that kafka-python builds."""

from collections.abc import Sequence

from kafka.record.default_records import DefaultRecordBatchBuilder

from dualwrite.records.batch import Record


def oracle_batch(records: Sequence[Record], compression: int = 0, headers: Sequence[tuple[str, bytes]] = ()) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=True,
        producer_id=9,
        producer_epoch=2,
        base_sequence=5,
        batch_size=1 << 20,
    )
    for delta, record in enumerate(records):
        builder.append(delta, record.timestamp, record.key, record.value, list(headers))
    return bytes(builder.build())
