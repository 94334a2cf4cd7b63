"""An operator's requests about the markers of transactions: WriteTxnMarkers."""

from dualwrite.ids import ProducerIdentity
from dualwrite.wire.apis import Message, WriteTxnMarkersRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.raw_client import RawClient


def marker(
    producer: ProducerIdentity, *partitions: tuple[str, int], commit: bool = False, epoch: int = 0, version: int = 0
) -> Message:
    """One marker of a request, for partitions of topics that are all different."""
    entry = WriteTxnMarkersRequest.WritableTxnMarker
    return entry(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=commit,
        topics=[entry.WritableTxnMarkerTopic(name=name, partition_indexes=[index]) for name, index in partitions],
        coordinator_epoch=epoch,
        transaction_version=version,
    )


def write(client: RawClient, *markers: Message, version: int = 2) -> dict[tuple[int, str, int], ErrorCode]:
    """What is answered: (producer id, topic, partition) -> error."""
    answer = client.ask(WriteTxnMarkersRequest(markers=list(markers)), version)
    return {
        (result.producer_id, topic.name, entry.partition_index): ErrorCode(entry.error_code)
        for result in answer.markers
        for topic in result.topics
        for entry in topic.partitions
    }
