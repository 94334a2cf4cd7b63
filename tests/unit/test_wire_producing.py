"""What the native producer encodes by hand is what kafka-python encodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.codec import read_body, write_request
from dualwrite.wire.producing import ProduceBatch, TransactionalProduce

NAMES = st.text("abcxyz.-_", min_size=1, max_size=200)
BATCHES = st.lists(
    st.builds(ProduceBatch, NAMES, st.integers(0, 2**31 - 1), st.binary(max_size=300)),
    min_size=1,
    max_size=6,
    unique_by=lambda batch: (batch.topic, batch.partition),
)


@given(transactional_id=st.text(min_size=1, max_size=200), timeout_ms=st.integers(0, 2**31 - 1), batches=BATCHES)
def test_produce_is_encoded_as_kafka_python_encodes_it(
    transactional_id: str, timeout_ms: int, batches: list[ProduceBatch]
) -> None:
    ours = TransactionalProduce(transactional_id, timeout_ms, batches)
    request = APIS[ApiKey.PRODUCE].request
    topic_class = request.TopicProduceData
    topics: dict[str, list[ProduceBatch]] = {}
    for batch in batches:
        topics.setdefault(batch.topic, []).append(batch)
    theirs = request(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=timeout_ms,
        topic_data=[
            topic_class(
                name=name,
                partition_data=[
                    topic_class.PartitionProduceData(index=batch.partition, records=batch.data) for batch in found
                ],
            )
            for name, found in topics.items()
        ],
    )
    assert ours.encode(version=12) == theirs.encode(version=12)
    written = write_request(ApiKey.PRODUCE, 12, 5, "me", ours)
    assert written == write_request(ApiKey.PRODUCE, 12, 5, "me", theirs)
    assert read_body(request, 12, ours.encode(version=12), 0) == theirs


def test_another_version_is_not_written() -> None:
    with pytest.raises(AssertionError):
        TransactionalProduce("app-0", 1, [ProduceBatch("t", 0, b"")]).flexible_version_q(8)
