"""Error codes are found wherever a response has them."""

import pytest

from dualwrite.wire.apis import (
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    Message,
    MetadataResponse,
    ProduceResponse,
)
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.errors import error_codes

TOPIC = ProduceResponse.TopicProduceResponse
ADDED = AddPartitionsToTxnResponse.AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult


def produced(*codes: ErrorCode) -> Message:
    partitions = [TOPIC.PartitionProduceResponse(index=index, error_code=code) for index, code in enumerate(codes)]
    return ProduceResponse(responses=[TOPIC(name="t", partition_responses=partitions)])


def added(code: ErrorCode) -> Message:
    partitions = [ADDED.AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=code)]
    topic = ADDED(name="t", results_by_partition=partitions)
    result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult(transactional_id="a", topic_results=[topic])
    return AddPartitionsToTxnResponse(error_code=ErrorCode.NONE, results_by_transaction=[result])


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("response", "codes"),
    [
        (EndTxnResponse(error_code=ErrorCode.NONE), []),
        (EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED), [ErrorCode.PRODUCER_FENCED]),
        (produced(ErrorCode.NONE, ErrorCode.NONE), []),
        (
            produced(ErrorCode.INVALID_RECORD, ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE),
            [ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE],
        ),
        (added(ErrorCode.INVALID_TXN_STATE), [ErrorCode.INVALID_TXN_STATE]),
        (ProduceResponse(responses=[]), []),
        (MetadataResponse(topics=None), []),
    ],
)
def test_every_code_but_none_is_found(response: Message, codes: list[ErrorCode]) -> None:
    assert list(error_codes(response)) == codes
