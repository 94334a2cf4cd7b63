"""The metrics over HTTP, in Prometheus' text format."""

import asyncio
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.metrics import METRICS, PREFIX, Metric
from dualwrite.broker.runtime.meters import Histogram
from dualwrite.errors import ConfigurationError

_PATIENCE_SECONDS = 10.0


class MetricsServer(Collector):
    """Answers HTTP in threads of its own; the values are read on the event loop's thread.

    :raises ConfigurationError: if the address cannot be listened on.
    """

    def __init__(self, host: str, port: int, broker: BrokerContext) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigurationError(f"cannot serve metrics on {host}:{port}: {error.strerror}") from None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._server.server_port

    def collect(self) -> Iterable[Family]:
        """Every metric; called by the library, in a thread of its own."""
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(_PATIENCE_SECONDS)

    async def close(self) -> None:
        """Answer no more."""
        await self._loop.run_in_executor(None, self._server.shutdown)
        self._server.server_close()
        self._thread.join()

    async def _read(self) -> list[Family]:
        return [_family(metric, self._broker) for metric in METRICS]


def _family(metric: Metric, broker: BrokerContext) -> Family:
    name, value = PREFIX + metric.name, metric.read(broker)
    if isinstance(value, Histogram):
        bounds = [*map(str, value.bounds), "+Inf"]
        return HistogramMetricFamily(
            name, metric.meaning, list(zip(bounds, accumulate(value.counts), strict=True)), value.total
        )
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, metric.meaning, labels=metric.labels)
    for labels, number in [((), value)] if isinstance(value, float | int) else value:
        family.add_metric(labels, number)
    return family
