"""Readers of a partition see the end of every transaction that was answered.

The broker answers EndTxn of TV2 once the decision is on disk. The markers follow with the next round of fsyncs, which a
reader's request begins.
"""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import TopicPartition


async def settled_partition(name: TopicPartition, broker: BrokerContext) -> Partition | None:
    """The partition ``name``, if it exists, once the transactions that have ended there are visible to readers."""
    partition = broker.cluster.partition(name)
    if partition is None or not partition.state.has_unseen_end:
        return partition
    await broker.flusher.barrier()
    return broker.cluster.partition(name)  # it may have been deleted meanwhile
