"""The metrics of consumer groups."""

import heapq
from collections import Counter
from collections.abc import Iterator

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.consumer_groups.group import ConsumerGroupState
from dualwrite.broker.core.groups import GroupState
from dualwrite.broker.metrics.metric import BrokerMetric, Value, metrics_into

METRICS: list[BrokerMetric] = []
_metric = metrics_into(METRICS)

MOST_LAGS = 1000
"""The most series of group_lag: clients choose the names of groups, and make as many as they like."""
LONGEST_GROUP = 249
"""The most characters of a group's name in a label, as many as a topic's name may have."""

_Lag = tuple[int, str, str, int]


def _lags(broker: BrokerContext) -> Iterator[_Lag]:
    for group, positions in broker.offsets.table.groups.items():
        for name, position in positions.items():
            partition = broker.cluster.partition(name)
            if partition is not None:
                lag = max(0, partition.state.high_watermark - position.offset)
                yield lag, group, name.topic, name.partition


@_metric("gauge", "state")
def groups(broker: BrokerContext) -> Value:
    """Consumer groups by their state, under ListGroups' names."""
    counts = Counter(group.state.value for group in broker.groups.groups())
    counts.update(group.state.value for group in broker.consumer_groups.groups())
    states = dict.fromkeys(state.value for state in GroupState if state is not GroupState.DEAD)
    states.update(dict.fromkeys(state.value for state in ConsumerGroupState))
    return [((state,), counts[state]) for state in states]


@_metric("gauge")
def group_members(broker: BrokerContext) -> Value:
    """Members of all consumer groups."""
    consumers = sum(len(group.subscriptions) for group in broker.consumer_groups.groups())
    return consumers + sum(len(group.members) for group in broker.groups.groups())


@_metric("gauge", "group", "topic", "partition")
def group_lag(broker: BrokerContext) -> Value:
    """High watermark minus committed offset: the offsets that the group has not finished. Markers of transactions are
    among them: a client that commits the offset after its last record, and not its position, stays at 1. Computed at
    each scrape, and only the 1000 highest; the names of groups are shortened to 249 characters."""
    shown: dict[tuple[str, ...], int] = {}
    for lag, group, topic, partition in heapq.nlargest(MOST_LAGS, _lags(broker)):
        shown.setdefault((group[:LONGEST_GROUP], topic, str(partition)), lag)  # the highest of those named alike
    return list(shown.items())


@_metric("gauge")
def group_lags_left_out(broker: BrokerContext) -> Value:
    """Pairs of a group and a partition that group_lag leaves out, because they are too many."""
    return max(0, sum(1 for _ in _lags(broker)) - MOST_LAGS)
