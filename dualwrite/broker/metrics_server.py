"""The metrics over HTTP, in Prometheus' text format."""

import asyncio
import socket
from collections.abc import Iterable
from itertools import accumulate
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.metrics import METRICS, PREFIX, BrokerMetric
from dualwrite.broker.runtime.meters import Histogram
from dualwrite.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_PATIENCE_SECONDS = 10.0
_MOST_CONNECTIONS = 16
"""The most connections; the server closes further ones at once. Each takes a thread and an open file, which logs and
clients need."""


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_SECONDS
    """The limit for each read and write; the server disconnects slower clients."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name in the class above
        """Log nothing."""


class _HttpServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._room = BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """False closes the connection."""
        return self._room.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for the next connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing, for example if a client disconnects early."""


class MetricsServer(Collector):
    """Answers HTTP in threads of its own; the values are read on the event loop's thread.

    :raises ConfigurationError: if the address cannot be used.
    """

    def __init__(self, host: str, port: int, broker: BrokerContext) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server = _HttpServer(host, port)
        except OSError as error:
            raise ConfigurationError(f"cannot serve metrics on {host}:{port}: {error.strerror}") from None
        self._server.set_app(_at_its_path(make_wsgi_app(registry)))
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._server.server_port

    def collect(self) -> Iterable[Family]:
        """Every metric. The library calls it in its own thread."""
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(_PATIENCE_SECONDS)

    async def close(self) -> None:
        """Stop the server."""
        await self._loop.run_in_executor(None, self._server.shutdown)
        self._server.server_close()
        self._thread.join()

    async def _read(self) -> list[Family]:
        await self._broker.flusher.barrier()  # readers see the end of every transaction that was answered
        return [_family(metric, self._broker) for metric in METRICS]


def _at_its_path(answer: "WSGIApplication") -> "WSGIApplication":
    """``answer`` for /metrics, and 404 for other paths."""

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            return answer(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"the metrics are at /metrics\n"]

    return app


def _family(metric: BrokerMetric, broker: BrokerContext) -> Family:
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
