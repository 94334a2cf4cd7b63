"""A probe says whether the broker must be started again, and whether it answers clients now; and if not, why."""

import asyncio
import errno
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import pytest

from dualwrite.broker.metrics import health as module
from dualwrite.broker.metrics.health import BrokerStage, Checks, DiskProbe, Health
from dualwrite.broker.metrics.http import MetricsServer
from tests.support.frozen import freeze, thaw
from tests.support.monitoring.measured import MeasuredBroker, fetch, measured_broker
from tests.support.requests.calls import metadata
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS, eventually

NO_TURN = "no turn within 0.05 s"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    with measured_broker(tmp_path_factory.mktemp("health")) as broker:
        yield broker


def test_a_running_broker_is_healthy_and_ready(measured: MeasuredBroker) -> None:
    with RawClient(measured.address) as client:
        metadata(client)
    assert measured.probe("/healthz") == (200, {"event_loop": "ok"}, "ok")
    ready = {"recovery": "ok", "listeners": "ok", "disk": "ok", "event_loop": "ok"}
    assert measured.probe("/readyz") == (200, ready, "ok")


def test_a_probe_leaves_no_file_behind(measured: MeasuredBroker) -> None:
    assert measured.probe("/readyz")[0] == 200
    assert not (measured.log.parent / "data" / ".health-probe").exists()


def test_many_probes_at_once_are_answered(measured: MeasuredBroker) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: measured.probe("/readyz")[0], range(40)))
    assert set(answers) == {200}


def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    assert DiskProbe(tmp_path).trouble() is None
    assert DiskProbe(tmp_path / "gone").trouble() == os.strerror(errno.ENOENT)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "fsync", refuse)
    assert DiskProbe(tmp_path).trouble() == "No space left on device"
    assert list(tmp_path.iterdir()) == [], "the file of the trial is gone"


def test_a_trial_that_could_not_begin_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    probe = DiskProbe(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(module, "Thread", NoThread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            probe.trouble()
    assert probe.trouble() is None


def test_a_disk_that_hangs_keeps_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, released = [], Event()

    def hang(_: int) -> None:
        begun.append(1)
        released.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(module.os, "fsync", hang)
    monkeypatch.setattr(module, "FRESH_SECONDS", 0)
    probe = DiskProbe(tmp_path)
    assert [probe.trouble(0.01) for _ in range(5)] == ["no answer within 0.01 s"] * 5
    assert len(begun) == 1
    released.set()
    assert eventually(probe.trouble, lambda trouble: trouble is None) is None


def test_one_look_at_the_disk_answers_the_probes_of_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(module.os, "fsync", synced.append)
    monkeypatch.setattr(module, "FRESH_SECONDS", 1e9)
    probe = DiskProbe(tmp_path)
    assert [probe.trouble() for _ in range(10)] == [None] * 10
    assert len(synced) == 1


def in_each_stage(tmp_path: Path, look: Callable[[Health], Checks]) -> dict[BrokerStage, Checks]:
    async def main() -> dict[BrokerStage, Checks]:
        loop = asyncio.get_running_loop()
        health, seen = Health(DiskProbe(tmp_path), loop), {}
        for stage in BrokerStage:
            health.stage = stage
            seen[stage] = await loop.run_in_executor(None, look, health)
        return seen

    return asyncio.run(main())


def test_only_a_serving_broker_is_ready_and_every_stage_is_healthy(tmp_path: Path) -> None:
    assert set(map(str, in_each_stage(tmp_path, Health.alive).values())) == {"{'event_loop': None}"}
    assert in_each_stage(tmp_path, Health.ready) == {
        BrokerStage.RECOVERING: {
            "recovery": "in progress",
            "listeners": "not accepting: the broker is recovering",
            "disk": None,
            "event_loop": None,
        },
        BrokerStage.SERVING: {"recovery": None, "listeners": None, "disk": None, "event_loop": None},
        BrokerStage.STOPPING: {
            "recovery": None,
            "listeners": "not accepting: the broker is stopping",
            "disk": None,
            "event_loop": None,
        },
    }


def test_a_broker_without_a_disk_is_not_ready_and_is_left_alive(tmp_path: Path) -> None:
    """A restart would take away the readers, too, and not bring the disk back."""
    gone = tmp_path / "gone"
    trouble = os.strerror(errno.ENOENT)
    assert {stage: checks["disk"] for stage, checks in in_each_stage(gone, Health.ready).items()} == dict.fromkeys(
        BrokerStage, trouble
    )
    assert set(map(str, in_each_stage(gone, Health.alive).values())) == {"{'event_loop': None}"}


def test_a_hanging_disk_is_not_mistaken_for_a_loop_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = Event()
    monkeypatch.setattr(module.os, "fsync", lambda _: released.wait(PATIENCE_SECONDS))
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.2)
    assert in_each_stage(tmp_path, Health.ready)[BrokerStage.SERVING] == {
        "recovery": None,
        "listeners": None,
        "disk": "no answer within 0.2 s",
        "event_loop": None,
    }
    released.set()


def test_a_loop_that_is_closed_serves_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    loop = asyncio.new_event_loop()
    loop.close()
    health = Health(DiskProbe(tmp_path), loop)
    health.stage = BrokerStage.STOPPING
    assert health.alive() == {"event_loop": NO_TURN}


def test_a_loop_that_does_not_turn_is_reported_unless_it_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)

    async def main() -> None:
        """Holds the loop itself, as a recovery does."""
        health = Health(DiskProbe(tmp_path), asyncio.get_running_loop())
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(health.alive).result()["event_loop"] is None
            health.stage = BrokerStage.SERVING
            assert thread.submit(health.alive).result()["event_loop"] == NO_TURN
            assert thread.submit(health.ready).result()["event_loop"] == NO_TURN

    asyncio.run(main())


def test_probes_are_answered_while_the_broker_recovers_and_metrics_are_not(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = MetricsServer("127.0.0.1", 0, Health(DiskProbe(tmp_path), loop))
        address = f"http://127.0.0.1:{server.port}"
        with ThreadPoolExecutor(1) as thread:  # the loop does not turn meanwhile

            def get(path: str) -> tuple[int, str]:
                return thread.submit(fetch, address + path).result()

            assert get("/healthz")[0] == 200
            status, text = get("/readyz")
            assert (status, json.loads(text)["status"]) == (503, "failing")
            assert json.loads(text)["checks"]["recovery"] == "in progress"
            assert get("/metrics") == (503, "the broker is recovering\n")
        await server.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_stopped_process_is_not_healthy(tmp_path: Path) -> None:
    """SIGSTOP stops every thread, so that the probe gets no answer at all."""
    with measured_broker(tmp_path) as broker:
        assert broker.probe("/healthz")[0] == 200
        freeze(broker.process.pid)
        with pytest.raises(OSError, match="timed out"):
            fetch(broker.url.removesuffix("/metrics") + "/healthz", seconds=0.2)
        thaw(broker.process.pid)
        assert broker.probe("/healthz")[0] == 200
