"""The broker's metrics: their names, their meaning, and how each is computed.

A scrape reads all metrics from the broker's state, on the event loop's thread, so a request costs only a few additions.
Each function below is a metric. docs/reference/metrics.md is made from its name, its docstring and its labels.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.groups import GroupState
from dualwrite.broker.facts.transactions import NO_TIMEOUT, TransactionRecorded, TransactionStatus
from dualwrite.broker.runtime.meters import Histogram
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import error_name

PREFIX = "dualwrite_broker_"

Labelled = Iterable[tuple[tuple[str, ...], float]]
Value = float | Labelled | Histogram
Read = Callable[[BrokerContext], Value]


@dataclass(frozen=True, slots=True)
class BrokerMetric:
    """One metric.

    :param name: the name without the prefix.
    :param kind: gauge, counter or histogram, in the sense of Prometheus.
    :param read: returns the current value: a number, numbers with the values of ``labels``, or a histogram.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    read: Read


METRICS: list[BrokerMetric] = []
"""Every metric, in the order of the answer."""


def _metric(kind: str, *labels: str) -> Callable[[Read], Read]:
    def register(read: Read) -> Read:
        assert read.__doc__ is not None, "a metric has a docstring"
        METRICS.append(BrokerMetric(read.__name__, kind, labels, " ".join(read.__doc__.split()), read))
        return read

    return register


# --- transactions


def _ongoing(broker: BrokerContext) -> Iterator[TransactionRecorded]:
    entries = broker.coordinator.table.entries.values()
    return (entry for entry in entries if entry.status is TransactionStatus.ONGOING)


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
    now_ms = broker.clock.wall_ms()
    return max((now_ms - entry.started_ms for entry in _ongoing(broker)), default=0)


@_metric("gauge")
def in_doubt_transactions(broker: BrokerContext) -> Value:
    """Open transactions of two-phase commit: they wait for a decision, and no timeout ends them (KIP-939)."""
    return sum(entry.timeout_ms == NO_TIMEOUT for entry in _ongoing(broker))


# --- groups


@_metric("gauge", "state")
def groups(broker: BrokerContext) -> Value:
    """Consumer groups by their state, under ListGroups' names."""
    counts = Counter(group.state for group in broker.groups.groups())
    return [((state.value,), counts[state]) for state in GroupState if state is not GroupState.DEAD]


@_metric("gauge")
def group_members(broker: BrokerContext) -> Value:
    """Members of all consumer groups."""
    return sum(len(group.members) for group in broker.groups.groups())


# --- requests


@_metric("counter", "api")
def requests_total(broker: BrokerContext) -> Value:
    """Requests that were handled."""
    return [((ApiKey(key).name,), count) for key, count in broker.meters.requests.items()]


@_metric("counter", "api", "error")
def request_errors_total(broker: BrokerContext) -> Value:
    """Error codes in answers. One answer may have many, for example one for each partition."""
    return [((ApiKey(key).name, error_name(code)), count) for (key, code), count in broker.meters.errors.items()]


@_metric("counter")
def bytes_received_total(broker: BrokerContext) -> Value:
    """Bytes of requests."""
    return broker.meters.bytes_received


@_metric("counter")
def bytes_sent_total(broker: BrokerContext) -> Value:
    """Bytes of answers."""
    return broker.meters.bytes_sent


@_metric("gauge")
def connections(broker: BrokerContext) -> Value:
    """Connections that are open."""
    return broker.meters.connections


@_metric("counter", "mechanism", "result")
def authentications_total(broker: BrokerContext) -> Value:
    """Authentications by SASL, re-authentications included; the result is ``success`` or ``failure`` (Kafka's
    successful-authentication-total and failed-authentication-total)."""
    counts = broker.meters.authentications.items()
    return [((mechanism, "success" if is_success else "failure"), count) for (mechanism, is_success), count in counts]


# --- logs


@_metric("gauge")
def partitions(broker: BrokerContext) -> Value:
    """Partitions of all topics, including the broker's own topics."""
    return sum(1 for _ in broker.cluster.partitions())


@_metric("histogram")
def fsync_round_seconds(broker: BrokerContext) -> Value:
    """Seconds for each round of fsyncs, including the wait for an fsync thread; no rounds with durability=os."""
    return broker.meters.fsyncs
