"""The HTTP server of the metrics when something is wrong: the values, the disk, the client, the name server."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dualwrite.broker.metrics import health as health_module
from dualwrite.broker.metrics import http
from dualwrite.broker.metrics.health import BrokerStage, DiskProbe, Health
from dualwrite.broker.metrics.http import MetricsServer
from dualwrite.broker.metrics.logs import disk_writable
from dualwrite.broker.metrics.metric import BrokerMetric
from dualwrite.broker.runtime.meters import Meters
from tests.support.monitoring.measured import fetch
from tests.support.waiting import PATIENCE_SECONDS


class HangingFlusher:
    """Whose disk hangs or does not."""

    def __init__(self) -> None:
        self.hangs = False
        self.waiting = 0

    async def barrier(self) -> None:
        self.waiting += 1
        try:
            if self.hangs:
                await asyncio.Event().wait()
        finally:
            self.waiting -= 1


def metric(name: str, read: Callable[[Any], Any], meaning: str = "for a test") -> BrokerMetric:
    return BrokerMetric(name, "gauge", (), meaning, read)


def with_server(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    metrics: list[BrokerMetric],
    use: Callable[[str, HangingFlusher], Awaitable[None]],
) -> None:
    monkeypatch.setattr(http, "METRICS", metrics)

    async def main() -> None:
        flusher, health = HangingFlusher(), Health(DiskProbe(directory), asyncio.get_running_loop())
        health.stage = BrokerStage.SERVING
        server = MetricsServer("127.0.0.1", 0, health)
        server.measure(SimpleNamespace(meters=Meters(), flusher=flusher))  # type: ignore[arg-type]
        try:
            await use(f"http://127.0.0.1:{server.port}", flusher)
        finally:
            await server.close()

    asyncio.run(main())


async def get(url: str) -> tuple[int, str]:
    return await asyncio.to_thread(fetch, url)


def test_values_that_cannot_be_read_are_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Any) -> float:
        raise OSError(5, "Input/output error", "the volume")

    async def use(url: str, _: HangingFlusher) -> None:
        status, text = await get(f"{url}/metrics")
        assert (status, text) == (503, "the broker does not answer; its log says why\n")
        assert (await get(f"{url}/healthz"))[0] == 200

    with_server(monkeypatch, tmp_path, [metric("broken", fail)], use)
    (record,) = caplog.records
    assert record.getMessage() == "/metrics was not answered: [Errno 5] Input/output error: 'the volume'"
    assert capfd.readouterr().err == ""


def test_a_scrape_that_waits_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "VALUES_SECONDS", 0.05)

    async def use(url: str, flusher: HangingFlusher) -> None:
        flusher.hangs = True
        for _ in range(3):
            assert (await get(f"{url}/metrics"))[0] == 503
        while flusher.waiting:  # scrapes that were given up wait no more
            await asyncio.sleep(0)

    with_server(monkeypatch, tmp_path, [], use)
    assert [record.getMessage() for record in caplog.records] == [
        "/metrics was not answered: no values within 0.05 s"
    ] * 3


def test_a_disk_that_cannot_be_written_is_a_metric_even_while_its_fsyncs_hang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(health_module, "FRESH_SECONDS", 0)
    directory = tmp_path / "data"

    async def use(url: str, flusher: HangingFlusher) -> None:
        async def writable() -> float:
            status, text = await get(f"{url}/metrics")
            assert status == 200, text
            (family,) = text_string_to_metric_families(text)
            (sample,) = family.samples
            return sample.value

        flusher.hangs = True
        assert await writable() == 0
        directory.mkdir()
        flusher.hangs = False
        assert await writable() == 1

    with_server(monkeypatch, directory, [metric("disk_writable", disk_writable)], use)


def test_a_client_that_does_not_read_is_disconnected_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http.MetricsHandler, "timeout", 0.05)
    long = metric("long", lambda _: 1.0, "x" * 32_000_000)
    given_up, answer = Event(), http.MetricsHttpServer.process_request_thread

    def note_the_end(server: Any, request: Any, client_address: Any) -> None:
        answer(server, request, client_address)
        given_up.set()

    def read_late(port: int) -> int:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert given_up.wait(PATIENCE_SECONDS)
            return sum(iter(lambda: len(client.recv(1 << 20)), 0))

    async def use(url: str, _: HangingFlusher) -> None:
        assert 0 < await asyncio.to_thread(read_late, int(url.rpartition(":")[2])) < 32_000_000

    monkeypatch.setattr(http.MetricsHttpServer, "process_request_thread", note_the_end)
    with_server(monkeypatch, tmp_path, [long], use)
    assert capfd.readouterr().err == ""


def test_a_start_asks_no_name_server_for_its_own_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(_: str = "") -> str:
        raise AssertionError("asked")

    monkeypatch.setattr(socket, "getfqdn", fail)

    async def use(url: str, _: HangingFlusher) -> None:
        assert (await get(f"{url}/readyz"))[0] == 200

    with_server(monkeypatch, tmp_path, [], use)


def test_connections_that_got_no_thread_take_no_room_from_later_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    async def use(url: str, _: HangingFlusher) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ThreadingMixIn, "process_request", fail)
            for _ in range(40):  # more than the server takes at a time
                with pytest.raises(OSError, match=r"closed|reset"):
                    await get(f"{url}/healthz")
        assert (await get(f"{url}/healthz"))[0] == 200

    with_server(monkeypatch, tmp_path, [], use)
