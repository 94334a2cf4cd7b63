"""The metrics over HTTP, in Prometheus' text format, and the probes of the broker's health, in JSON."""

import asyncio
import io
import json
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from itertools import accumulate
from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.clients.bind_errors import bind_refusal
from dualwrite.broker.metrics.catalogue import METRICS
from dualwrite.broker.metrics.health import Checks, Health
from dualwrite.broker.metrics.metric import PREFIX, BrokerMetric
from dualwrite.broker.runtime.meters import Histogram
from dualwrite.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

CLIENT_SECONDS = 10.0
"""For each read and write of a client."""
VALUES_SECONDS = 4.0
"""For the values of a scrape. Together with the look at the disk it takes less than Prometheus waits (10 seconds)."""
_MOST_CONNECTIONS = 16
"""The most connections; the server closes further ones at once. Each takes a thread and an open file, which logs and
clients need."""


class MetricsHandler(WSGIRequestHandler):
    """One connection, for one request."""

    timeout = CLIENT_SECONDS
    """The limit for each read and write; the server disconnects slower clients."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name in the class above
        """Log nothing."""

    def get_stderr(self) -> TextIO:
        """Where the traceback goes if a client does not read its answer: nowhere, because the log has lines of one
        format."""
        return io.StringIO()


class MetricsHttpServer(ThreadingMixIn, WSGIServer):
    """Takes connections, each into a thread of its own."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._room = BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((host, port), MetricsHandler)

    def server_bind(self) -> None:
        """Bind the socket, and do not ask for this machine's name, as the class above does: a start must not wait for a
        name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """False closes the connection."""
        return self._room.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for a connection.

        :raises RuntimeError: if the system has no thread left; the connection is closed then.
        """
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._room.release()
            raise

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

    It answers probes from the beginning, and metrics once :meth:`measure` was called.

    :raises ConfigurationError: if the address cannot be used.
    """

    def __init__(self, host: str, port: int, health: Health) -> None:
        self._broker: BrokerContext | None = None
        self._health = health
        self._loop = asyncio.get_running_loop()
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server = MetricsHttpServer(host, port)
        except OSError as error:
            raise ConfigurationError(
                f"cannot serve metrics on {host}:{port}: {bind_refusal(error, '--metrics')}"
            ) from None
        pages = {
            "/metrics": _once(lambda: self._broker is not None, make_wsgi_app(registry)),
            "/healthz": _probe(health.alive),
            "/readyz": _probe(health.ready),
        }
        self._server.set_app(_at_their_paths({path: _logged(path, page) for path, page in pages.items()}))
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._server.server_port

    def measure(self, broker: BrokerContext) -> None:
        """Serve the metrics of ``broker``, which has recovered, from now on."""
        self._broker = broker

    def collect(self) -> Iterable[Family]:
        """Every metric. The library calls it in its own thread.

        :raises TimeoutError: if the event loop does not answer.
        """
        broker = self._broker
        if broker is None:  # the library collects once when this is registered
            return []
        broker.meters.is_disk_writable = self._health.disk_trouble() is None
        reading = asyncio.run_coroutine_threadsafe(_read(broker), self._loop)
        try:
            return reading.result(VALUES_SECONDS)
        except FutureTimeoutError:
            reading.cancel()
            raise TimeoutError(f"no values within {VALUES_SECONDS:g} s") from None

    async def close(self) -> None:
        """Stop the server."""
        await self._loop.run_in_executor(None, self._server.shutdown)
        self._server.server_close()
        self._thread.join()


async def _read(broker: BrokerContext) -> list[Family]:
    if broker.meters.is_disk_writable:  # a disk that hangs must not keep its own metric back
        await broker.flusher.barrier()  # readers see the end of every transaction that was answered
    families = []
    for metric in METRICS:
        families.append(_family(metric, broker))
        await asyncio.sleep(0)  # serve requests between two metrics
    return families


def _at_their_paths(pages: "Mapping[str, WSGIApplication]") -> "WSGIApplication":
    """Each of ``pages`` at its path, and 404 for other paths."""

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if page is not None:
            return page(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"the metrics are at /metrics\n"]

    return app


def _logged(path: str, page: "WSGIApplication") -> "WSGIApplication":
    """``page``, and 503 with a line in the log if it fails."""

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        try:
            return page(environ, start_response)
        except Exception as error:  # noqa: BLE001  the thread has no other place for it
            logger.warning("%s was not answered: %s", path, error)
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"the broker does not answer; its log says why\n"]

    return app


def _once(is_there: Callable[[], bool], page: "WSGIApplication") -> "WSGIApplication":
    """``page``, and 503 before ``is_there`` returns true."""

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if is_there():
            return page(environ, start_response)
        start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"the broker is recovering\n"]

    return app


def _probe(look: Callable[[], Checks]) -> "WSGIApplication":
    """What ``look`` returns, as JSON: with 200 if nothing is in trouble, else with 503."""

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        checks = look()
        is_good = not any(checks.values())
        status = "200 OK" if is_good else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        shown = {name: trouble or "ok" for name, trouble in checks.items()}
        return [json.dumps({"status": "ok" if is_good else "failing", "checks": shown}).encode() + b"\n"]

    return app


def _family(metric: BrokerMetric, broker: BrokerContext) -> Family:
    name, value = PREFIX + metric.name, metric.read(broker)
    values = [((), value)] if isinstance(value, float | int | Histogram) else list(value)
    if metric.kind == "histogram":
        histograms = HistogramMetricFamily(name, metric.meaning, labels=metric.labels)
        for labels, histogram in values:
            assert isinstance(histogram, Histogram), metric.name
            bounds = [*map(str, histogram.bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
            histograms.add_metric(labels, buckets, histogram.total)
        return histograms
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, metric.meaning, labels=metric.labels)
    for labels, number in values:
        assert isinstance(number, float | int), metric.name
        family.add_metric(labels, number)
    return family
