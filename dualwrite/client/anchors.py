"""What the cluster knows of a transaction that was kept, as far as a stored state needs it to be told from others."""

from dualwrite.client.control import ControlPlane
from dualwrite.ids import OngoingTransaction, PreparedTxnState, ProducerIdentity, TopicPartition


def ongoing_transaction(
    control: ControlPlane, transactional_id: str, ongoing: ProducerIdentity, state: PreparedTxnState
) -> OngoingTransaction:
    """The open transaction of ``ongoing``, with where it began if ``state`` has an anchor there (ids.py).

    :raises KafkaUnavailableError: if the coordinator or a leader gave no answer in time.
    """
    if state.anchor is None or state.producer != ongoing:
        return OngoingTransaction(ongoing)
    described = control.describe_transaction(transactional_id)
    partitions: frozenset[TopicPartition] = described.partitions if described is not None else frozenset()
    at_anchor = {partition for partition in partitions if state.anchor.is_in(partition)}
    return OngoingTransaction(ongoing, control.current_transaction_start_offsets(at_anchor, ongoing))
