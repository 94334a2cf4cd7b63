"""The metrics of transactions and producers."""

from collections import Counter
from collections.abc import Iterator

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.facts.transactions import NO_TIMEOUT, TransactionRecorded, TransactionStatus
from dualwrite.broker.metrics.metric import BrokerMetric, Value, metrics_into

METRICS: list[BrokerMetric] = []
_metric = metrics_into(METRICS)


def _ongoing(broker: BrokerContext) -> Iterator[TransactionRecorded]:
    entries = broker.coordinator.table.entries.values()
    return (entry for entry in entries if entry.status is TransactionStatus.ONGOING)


def _oldest_ms(broker: BrokerContext, entries: Iterator[TransactionRecorded]) -> int:
    """The age of the oldest of ``entries``; 0 without one, and after the clock was set back."""
    now_ms = broker.clock.wall_ms()
    return max(0, max((now_ms - entry.started_ms for entry in entries), default=0))


def _blocking(broker: BrokerContext) -> Iterator[tuple[int, TransactionRecorded | None]]:
    """The producer id of the first open transaction of each partition, which holds its readers back, and what the
    coordinator knows of that transaction."""
    for partition in broker.cluster.partitions():
        producer_id = next(iter(partition.state.open_transactions), None)
        if producer_id is not None:
            yield producer_id, broker.coordinator.table.owner_of(producer_id)


@_metric("gauge")
def producer_ids(broker: BrokerContext) -> Value:
    """Live producer ids, counted in each partition that remembers them (KIP-98; Kafka's ProducerIdCount)."""
    return sum(len(partition.state.producers) for partition in broker.cluster.partitions())


@_metric("gauge", "topic", "partition")
def last_stable_offset_lag(broker: BrokerContext) -> Value:
    """High watermark minus last stable offset: the records that open transactions hide from read_committed readers
    (KIP-98; Kafka's LastStableOffsetLag)."""
    return [
        (
            (partition.name.topic, str(partition.name.partition)),
            partition.state.high_watermark - partition.last_stable_offset,
        )
        for partition in broker.cluster.partitions()
    ]


@_metric("gauge")
def transactional_ids(broker: BrokerContext) -> Value:
    """Transactional ids that are known (KIP-98)."""
    return len(broker.coordinator.table.entries)


@_metric("gauge", "state")
def transactions(broker: BrokerContext) -> Value:
    """Transactional ids by the state of their transaction, under DescribeTransactions' names."""
    counts = Counter(entry.status for entry in broker.coordinator.table.entries.values())
    return [((status.kafka_name,), counts[status]) for status in TransactionStatus if status < TransactionStatus.DEAD]


@_metric("gauge")
def active_transaction_open_time_max_ms(broker: BrokerContext) -> Value:
    """Age of the oldest open transaction in milliseconds, 0 if there is none (KIP-939's
    ActiveTransactionOpenTimeMaxMs)."""
    return _oldest_ms(broker, _ongoing(broker))


@_metric("gauge")
def blocking_transaction_open_time_max_ms(broker: BrokerContext) -> Value:
    """Age of the oldest open transaction that holds read_committed readers back, in milliseconds, 0 if there is none.
    Unlike active_transaction_open_time_max_ms it does not count transactions behind another one, or without records."""
    known = (entry for _, entry in _blocking(broker) if entry is not None)
    return _oldest_ms(broker, (entry for entry in known if entry.status is TransactionStatus.ONGOING))


@_metric("gauge")
def hanging_transactions(broker: BrokerContext) -> Value:
    """Partitions whose readers are held back by a transaction that no transactional id owns: only an operator ends it,
    with ``kafka-transactions abort`` (KIP-664)."""
    return sum(entry is None for _, entry in _blocking(broker))


@_metric("gauge")
def in_doubt_transactions(broker: BrokerContext) -> Value:
    """Open transactions of two-phase commit: they wait for a decision, and no timeout ends them (KIP-939)."""
    return sum(entry.timeout_ms == NO_TIMEOUT for entry in _ongoing(broker))
