"""All metrics of the broker.

A scrape reads them from the broker's state, on the event loop's thread. docs/reference/metrics.md is made from their
names, docstrings and labels.
"""

from dualwrite.broker.metrics import clients, groups, logs, requests, transactions
from dualwrite.broker.metrics.metric import BrokerMetric

METRICS: tuple[BrokerMetric, ...] = (
    *transactions.METRICS,
    *groups.METRICS,
    *requests.METRICS,
    *clients.METRICS,
    *logs.METRICS,
)
"""Every metric, in the order of the answer."""
