"""The flusher: one fsync for many, and nothing acknowledged before it."""

import asyncio
import errno
import logging
import os
import re
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dualwrite.broker.process import ending
from dualwrite.broker.process.disk import DiskFile
from dualwrite.broker.process.ending import STOP_EXIT_CODE, stop_process
from dualwrite.broker.runtime.flusher import Flusher
from tests.support.broker.simulated import never, run

AT_ONCE_SECONDS = 20.0


class NumberLog:
    """A log of numbers. Its sync waits for nobody, but can be told to fail or to look around."""

    def __init__(self, flusher: Flusher) -> None:
        self.end_offset = 0
        self.syncs = 0
        self.durable = 0
        self.shown = 0
        self.during_sync: Callable[[], None] = lambda: None
        self._flusher = flusher

    def append(self) -> None:
        self.end_offset += 1
        self._flusher.touch(self)

    def sync(self) -> None:
        self.syncs += 1
        before = self.end_offset
        self.during_sync()
        self.durable = before

    def flushed(self, end_offset: int) -> None:
        self.shown = end_offset


class StoppedError(Exception):
    """What these tests have in place of the end of the process."""


class RecordedStop:
    def __init__(self) -> None:
        self.reasons: list[BaseException] = []

    def __call__(self, error: BaseException) -> NoReturn:
        self.reasons.append(error)
        raise StoppedError from error


def flushing(test: Callable[[Flusher], Coroutine[Any, Any, None]], durable: bool = True) -> None:
    async def main() -> None:
        flusher = Flusher(durable, on_failure=never)
        await test(flusher)
        await flusher.close()

    run(main())


def test_nothing_is_shown_that_was_appended_during_its_sync() -> None:
    """A reader would get a record that a power cut can still take back."""

    async def test(flusher: Flusher) -> None:
        log = NumberLog(flusher)
        log.append()
        log.during_sync = log.append
        await flusher.barrier()
        log.during_sync = lambda: None
        assert (log.durable, log.shown, log.end_offset) == (1, 1, 2)

    flushing(test)


@pytest.mark.parametrize("seed", range(20))
def test_requests_of_two_rounds_that_follow_each_other_are_woken_each_by_its_own_round(seed: int) -> None:
    async def main() -> None:
        flusher = Flusher(durable=True, on_failure=never)
        first, second = NumberLog(flusher), NumberLog(flusher)
        first.append()
        waiting = asyncio.ensure_future(flusher.barrier())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second.append()
        await asyncio.wait_for(flusher.barrier(), AT_ONCE_SECONDS)
        assert (first.durable, second.durable) == (1, 1)
        await asyncio.wait_for(waiting, AT_ONCE_SECONDS)
        await flusher.close()

    run(main(), seed)


def test_a_closed_flusher_has_no_threads_left() -> None:
    async def main() -> None:
        threads = ThreadPoolExecutor(1)
        await Flusher(durable=True, on_failure=never, threads=threads).close()
        with pytest.raises(RuntimeError, match="after shutdown"):
            threads.submit(int)

    asyncio.run(main())


def test_after_the_barrier_everything_appended_before_is_durable_and_shown() -> None:
    async def test(flusher: Flusher) -> None:
        one, other = NumberLog(flusher), NumberLog(flusher)
        one.append()
        other.append()
        assert (one.durable, one.shown) == (0, 0)
        await flusher.barrier()
        assert (one.durable, one.shown, other.durable, other.shown) == (1, 1, 1, 1)

    flushing(test)


def test_background_work_begins_once_what_was_appended_before_is_durable() -> None:
    """If it synced the same files, only one of two threads would get the failure of a disk."""

    async def main() -> list[int]:
        flusher = Flusher(durable=True, on_failure=never)
        log, found = NumberLog(flusher), []
        log.append()
        flusher.in_background(lambda: found.append(log.durable))
        await flusher.close()
        return found

    assert [run(main(), seed) for seed in range(8)] == [[1]] * 8


def test_files_are_synced_at_the_same_time() -> None:
    """Each waits until the other has begun: one after another, the first would wait in vain."""
    together = threading.Barrier(2, timeout=20)

    def meet() -> None:
        together.wait()

    async def main() -> None:
        flusher = Flusher(durable=True, on_failure=never)
        one, other = NumberLog(flusher), NumberLog(flusher)
        one.during_sync = other.during_sync = meet
        one.append()
        other.append()
        await flusher.barrier()
        assert (one.durable, other.durable) == (1, 1)
        await flusher.close()

    asyncio.run(main())  # with threads: the simulated loop has none


def test_a_request_must_wait_until_what_was_appended_before_is_shown() -> None:
    """Also while the round of its append is in progress, and nothing else is appended."""

    async def main() -> None:
        flusher = Flusher(durable=True, on_failure=never)
        target = NumberLog(flusher)
        assert not flusher.must_wait
        target.append()
        waiting = asyncio.ensure_future(flusher.barrier())
        while not target.shown:
            assert flusher.must_wait
            await asyncio.sleep(0)
        await waiting
        assert not flusher.must_wait
        await flusher.close()

    for seed in range(8):
        run(main(), seed)


def test_many_files_are_all_synced_in_a_round() -> None:
    async def test(flusher: Flusher) -> None:
        targets = [NumberLog(flusher) for _ in range(11)]
        for target in targets:
            target.append()
        await flusher.barrier()
        assert [(target.durable, target.syncs) for target in targets] == [(1, 1)] * 11

    flushing(test)


def test_no_file_is_synced_twice_at_the_same_time() -> None:
    running: list[int] = []

    async def test(flusher: Flusher) -> None:
        one, other = NumberLog(flusher), NumberLog(flusher)

        def alone() -> None:
            assert not running
            running.append(1)
            running.pop()

        one.during_sync = alone
        for _ in range(50):
            one.append()
            other.append()
            barrier = asyncio.ensure_future(flusher.barrier())
            await asyncio.sleep(0)
            one.append()
            await barrier
        await flusher.barrier()
        assert one.durable == one.end_offset == 100

    flushing(test)


def test_a_barrier_with_nothing_to_flush_does_not_wait() -> None:
    async def test(flusher: Flusher) -> None:
        barrier = flusher.barrier()
        with pytest.raises(StopIteration):
            barrier.send(None)

    flushing(test)


def test_many_barriers_share_few_syncs() -> None:
    async def test(flusher: Flusher) -> None:
        target = NumberLog(flusher)

        async def client() -> None:
            for _ in range(10):
                target.append()
                end = target.end_offset
                await flusher.barrier()
                assert target.durable >= end

        await asyncio.gather(*(client() for _ in range(20)))
        assert target.end_offset == target.shown == 200
        assert target.syncs <= 2 * 10

    flushing(test)


def test_appends_during_a_sync_wait_for_the_next_one() -> None:
    async def test(flusher: Flusher) -> None:
        target = NumberLog(flusher)
        late: list[asyncio.Task[None]] = []

        async def append_late() -> None:
            await flusher.barrier()
            assert target.durable == 2

        def look_around() -> None:
            if not late:
                target.append()
                late.append(asyncio.get_running_loop().create_task(append_late()))

        target.during_sync = look_around
        target.append()
        await flusher.barrier()
        assert (target.durable, target.shown) == (1, 1), "the second append is not covered by the first sync"
        await late[0]
        assert (target.syncs, target.shown) == (2, 2)

    flushing(test)


def test_a_barrier_during_a_sync_waits_for_it_even_if_nothing_was_appended_since() -> None:
    """It may be about to tell what another connection appended."""

    async def test(flusher: Flusher) -> None:
        target = NumberLog(flusher)
        target.append()
        first = asyncio.ensure_future(flusher.barrier())
        await asyncio.sleep(0)
        assert target.durable == 0
        await flusher.barrier()
        assert target.durable == 1
        await first

    flushing(test)


def test_a_client_that_disconnects_at_a_barrier_leaves_the_others_waiting_for_the_sync() -> None:
    async def test(flusher: Flusher) -> None:
        target = NumberLog(flusher)
        target.append()
        leaving, staying = asyncio.ensure_future(flusher.barrier()), asyncio.ensure_future(flusher.barrier())
        await asyncio.sleep(0)
        leaving.cancel()
        await staying
        assert target.durable == 1
        assert leaving.cancelled()

    flushing(test)


def test_an_append_without_a_waiter_begins_no_round_and_goes_with_the_next_one() -> None:
    async def test(flusher: Flusher) -> None:
        unhurried, awaited = NumberLog(flusher), NumberLog(flusher)
        unhurried.append()
        for _ in range(50):
            await asyncio.sleep(0)
        assert (unhurried.syncs, unhurried.shown) == (0, 0)
        awaited.append()
        await flusher.barrier()
        assert (unhurried.syncs, unhurried.shown, awaited.shown) == (1, 1, 1)

    flushing(test)


def test_an_append_without_a_waiter_begins_no_round_behind_another_one_either() -> None:
    async def test(flusher: Flusher) -> None:
        unhurried, awaited = NumberLog(flusher), NumberLog(flusher)
        awaited.during_sync = unhurried.append
        awaited.append()
        await flusher.barrier()
        for _ in range(50):
            await asyncio.sleep(0)
        assert (unhurried.end_offset, unhurried.syncs) == (1, 0)

    flushing(test)


def test_a_hurried_append_is_synced_without_a_waiter() -> None:
    async def test(flusher: Flusher) -> None:
        target = NumberLog(flusher)
        target.append()
        flusher.hurry()
        for _ in range(50):
            await asyncio.sleep(0)
        assert (target.durable, target.shown) == (1, 1)

    flushing(test)


def test_appends_without_a_waiter_are_synced_before_the_flusher_closes() -> None:
    async def main() -> None:
        flusher = Flusher(durable=True, on_failure=never)
        target = NumberLog(flusher)
        target.append()
        await flusher.close()
        assert (target.durable, target.shown) == (1, 1)

    run(main())


def test_a_flusher_closes_after_the_round_that_another_one_has_asked_for() -> None:
    """Or its failure would pass unnoticed: the system reports a failed fsync once."""

    async def test(flusher: Flusher) -> None:
        target = NumberLog(flusher)
        target.append()

        def append_once() -> None:
            target.during_sync = lambda: None
            target.append()
            flusher.hurry()

        target.during_sync = append_once
        await flusher.close()
        assert target.shown == 2

    flushing(test)


def test_each_target_is_synced_once_a_round() -> None:
    async def test(flusher: Flusher) -> None:
        one, other = NumberLog(flusher), NumberLog(flusher)
        for _ in range(5):
            one.append()
            other.append()
        await flusher.barrier()
        assert (one.syncs, other.syncs) == (1, 1)

    flushing(test)


def test_with_durability_os_everything_is_shown_at_once_and_never_synced() -> None:
    async def test(flusher: Flusher) -> None:
        target = NumberLog(flusher)
        target.append()
        assert target.shown == 1
        await flusher.barrier()
        assert target.syncs == 0

    flushing(test, durable=False)


@pytest.mark.parametrize("error", [OSError("disk"), ValueError("a bug")], ids=["disk", "bug"])
def test_a_failed_sync_stops_the_process_and_acknowledges_nothing(error: Exception) -> None:
    async def main() -> None:
        stop = RecordedStop()
        flusher = Flusher(durable=True, on_failure=stop)
        target = NumberLog(flusher)

        def fail() -> None:
            raise error

        target.during_sync = fail
        target.append()
        waiting = asyncio.ensure_future(flusher.barrier())
        await asyncio.sleep(0)
        (rounds,) = asyncio.all_tasks() - {asyncio.current_task(), waiting}
        with pytest.raises(StoppedError):
            await rounds
        assert stop.reasons == [error]
        assert not waiting.done()
        assert target.shown == 0

    run(main())


def test_a_failure_in_a_critical_section_stops_the_process() -> None:
    stop = RecordedStop()
    flusher = Flusher(durable=True, on_failure=stop)
    reason = AssertionError("memory and log disagree")
    with pytest.raises(StoppedError), flusher.critical():
        raise reason
    assert stop.reasons == [reason]


def test_a_cancellation_in_a_critical_section_is_no_failure() -> None:
    stop = RecordedStop()
    with pytest.raises(asyncio.CancelledError), Flusher(durable=True, on_failure=stop).critical():
        raise asyncio.CancelledError
    assert stop.reasons == []


def test_stop_process_exits_at_once_and_logs_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    codes: list[int] = []

    def leave(code: int) -> NoReturn:
        codes.append(code)
        raise StoppedError

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(ending.logging, "shutdown", lambda: None)
    with caplog.at_level(logging.CRITICAL), pytest.raises(StoppedError):
        stop_process(OSError("no space left"))
    assert codes == [STOP_EXIT_CODE]
    assert "the broker stops: no space left" in caplog.text


def test_a_full_disk_is_logged_with_the_file_and_advice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no disk that is always full")

    def leave(code: int) -> NoReturn:
        raise StoppedError

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(ending.logging, "shutdown", lambda: None)
    file = DiskFile(full)
    with pytest.raises(StoppedError), Flusher(durable=True, on_failure=stop_process).critical():
        file.append(b"x")
    file.close()
    (line,) = caplog.records
    cause = "[Errno 28] No space left on device: '/dev/full'"
    assert line.getMessage().startswith(f"the broker stops: {cause}; check the disk")
    assert line.exc_info is None, "an error that is no bug needs no trace"


def test_an_fsync_that_fails_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    file = DiskFile(tmp_path / "log")
    with pytest.raises(OSError, match=re.escape(f"Input/output error: '{tmp_path / 'log'}'")):
        file.sync()
    file.close()
