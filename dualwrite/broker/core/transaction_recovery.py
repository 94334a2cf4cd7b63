"""What a start still has to do for transactions, from their facts and from the partitions' logs.

A power cut keeps of each log what was synced, and any part of the rest. So the facts of a transaction may lack what a
partition has, and the other way round. docs/decisions/0029 proves that these rules restore all that was acknowledged.
"""

from collections.abc import Iterator

from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.facts.transactions import TransactionFact, TransactionRecorded, TransactionVersion
from dualwrite.ids import ProducerIdentity, TopicPartition


class LastDecisions:
    """The last decision of every transactional id, if it is of TV2. Later facts may be on disk before its markers."""

    def __init__(self) -> None:
        self._by_id: dict[str, TransactionRecorded] = {}

    def note(self, fact: TransactionFact) -> None:
        """Remember ``fact`` if it is a decision. Facts come in the order of the journal."""
        if isinstance(fact, TransactionRecorded) and fact.is_ended:
            self._by_id[fact.transactional_id] = fact

    def __iter__(self) -> Iterator[TransactionRecorded]:
        return (fact for fact in self._by_id.values() if fact.version is TransactionVersion.TV2)


def lacks_marker(decision: TransactionRecorded, partition: PartitionState) -> bool:
    """True if the marker of ``decision`` may be missing in ``partition``, and no later fact of the id is known.

    Under TV2 the marker's epoch is above that of the records. So a partition with that epoch has the marker already: an
    open transaction with that epoch is the client's next one, which a second marker would end. Under TV1 the next one
    would have a fact.
    """
    writer = partition.producers.get(decision.producer.producer_id)
    if writer is None:
        return True
    if decision.version is TransactionVersion.TV2 or writer.epoch != decision.producer.epoch:
        return writer.epoch < decision.producer.epoch  # a later epoch: an operator has ended the transaction here
    return writer.transaction_start >= 0


def lost_marker(decision: TransactionRecorded, partition: PartitionState) -> bool:
    """True if the marker of ``decision``, which is of TV2 and perhaps not the last fact of its id, is missing in
    ``partition``: the records that it ends are open there."""
    writer = partition.producers.get(decision.producer.producer_id)
    is_open = writer is not None and writer.transaction_start >= 0
    return is_open and writer is not None and writer.epoch == decision.producer.epoch - 1


def lost_join(entry: TransactionRecorded, producer: ProducerIdentity, name: TopicPartition) -> bool:
    """True if the open transaction of ``producer`` in the partition ``name`` is that of ``entry``, which lacks the
    partition: the fact that added it was lost, and the records were not."""
    if entry.is_ended or entry.is_kept or name in entry.partitions:
        return False
    return producer == entry.client and entry.owns_epoch
