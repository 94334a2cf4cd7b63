"""The cleaner's thread: it leaves time to the event loop, and ends with the broker."""

import asyncio
import sys
import threading
from collections.abc import Callable
from time import monotonic

import pytest

from dualwrite.broker.log.cleaner import Cleaned
from dualwrite.broker.process.cleaning_thread import CleaningThread, Pace
from dualwrite.broker.runtime.compaction import CleanerSettings, Compaction
from dualwrite.testing.files import MemoryFiles
from tests.support.broker.simulated import Rooms
from tests.support.waiting import PATIENCE_SECONDS


def test_a_pace_that_was_stopped_ends_the_work() -> None:
    pace = Pace()
    pace()
    pace.stop()
    with pytest.raises(InterruptedError):
        pace()


def test_the_event_loop_gets_its_turns_sooner_only_while_a_log_is_cleaned() -> None:
    usual, meanwhile = sys.getswitchinterval(), list[float]()

    def clean(_: Callable[[], None]) -> Cleaned:
        meanwhile.append(sys.getswitchinterval())
        raise OSError("no space left")

    thread = CleaningThread()
    with pytest.raises(OSError, match="no space left"):
        asyncio.run(thread.run(clean))
    thread.close()
    assert meanwhile[0] < usual
    assert sys.getswitchinterval() == usual


def test_a_close_ends_a_cleaning_in_progress_and_the_thread() -> None:
    before, began = set(threading.enumerate()), threading.Event()

    def clean(pause: Callable[[], None]) -> Cleaned:
        began.set()
        gives_up_at = monotonic() + PATIENCE_SECONDS
        while monotonic() < gives_up_at:
            pause()
        raise AssertionError("nothing has ended the cleaning")

    async def main() -> None:
        cleaning = asyncio.create_task(thread.run(clean))
        await asyncio.get_running_loop().run_in_executor(None, began.wait, PATIENCE_SECONDS)
        thread.close()
        with pytest.raises(InterruptedError):
            await cleaning

    thread = CleaningThread()
    asyncio.run(main())
    assert not set(threading.enumerate()) - before


def test_a_compaction_that_is_closed_ends_its_thread() -> None:
    async def main() -> None:
        files, thread = MemoryFiles(), CleaningThread()
        rooms = Rooms(files)
        compaction = Compaction(files, rooms.cluster, rooms.flusher, rooms.clock, CleanerSettings(), thread)
        compaction.close()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await thread.run(lambda _: Cleaned([], 0))

    asyncio.run(main())
