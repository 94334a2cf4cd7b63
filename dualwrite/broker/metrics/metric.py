"""A metric: its name, its meaning, and how it is computed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.runtime.meters import Histogram

PREFIX = "dualwrite_broker_"

Value = float | Histogram | Iterable[tuple[tuple[str, ...], float | Histogram]]
Read = Callable[[BrokerContext], Value]


@dataclass(frozen=True, slots=True)
class BrokerMetric:
    """One metric.

    :param name: the name without the prefix.
    :param kind: gauge, counter or histogram, in the sense of Prometheus.
    :param read: returns the current value: a number or a histogram, or several with the values of ``labels``.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    read: Read


def metrics_into(metrics: list[BrokerMetric]) -> Callable[..., Callable[[Read], Read]]:
    """A decorator that adds a metric to ``metrics``. It takes the metric's kind and labels; the metric has the name of
    the function, and the docstring is its meaning."""

    def metric(kind: str, *labels: str) -> Callable[[Read], Read]:
        def register(read: Read) -> Read:
            assert read.__doc__ is not None, "a metric has a docstring"
            metrics.append(BrokerMetric(read.__name__, kind, labels, " ".join(read.__doc__.split()), read))
            return read

        return register

    return metric
