"""The periodic tasks: a failure of one ends the broker, and each ends when the broker stops."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dualwrite.broker import chores
from dualwrite.broker.chores import begin_chores, fixed
from dualwrite.broker.current_options import CurrentOptions

STEPS = 10
WEEKS_MS = 2**31


class UnchangedOptions:
    """Options that no change of a setting changes."""

    def overridden(self, _: object) -> "UnchangedOptions":
        return self


class ChangingSettings:
    """A cluster whose settings clients change."""

    def __init__(self) -> None:
        self.configuration_listeners: list[Callable[[], None]] = []
        cluster: Any = SimpleNamespace(
            configuration_listeners=self.configuration_listeners, given_while_running=dict[str, str]
        )
        options: Any = UnchangedOptions()
        self.current = CurrentOptions(options, cluster)

    def change(self) -> None:
        for listener in self.configuration_listeners:
            listener()


async def steps(count: int = STEPS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def nothing() -> None:
    """A chore that has nothing to do."""


def test_a_chore_that_fails_ends_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would end alone, and transactions would be open for ever."""
    errors, runs = list[BaseException](), list[int]()

    def stop(error: BaseException) -> None:
        errors.append(error)
        raise asyncio.CancelledError

    async def fail() -> None:
        runs.append(len(runs))
        raise asyncio.CancelledError if runs[1:] else ZeroDivisionError("a bug")

    async def main() -> None:
        (chore,) = begin_chores(ChangingSettings().current, [(fail, fixed(0))])
        await asyncio.wait([chore])

    monkeypatch.setattr(chores, "stop_process", stop)
    asyncio.run(main())
    assert [str(error) for error in errors] == ["a bug"]


@pytest.mark.parametrize("steps_between", range(6))
def test_a_chore_ends_though_a_setting_was_changed_a_moment_before(steps_between: int) -> None:
    """A stop waits for every chore: one that overlooked its cancellation would run on until --stop-timeout."""

    async def main() -> bool:
        settings = ChangingSettings()
        (chore,) = begin_chores(settings.current, [(nothing, fixed(WEEKS_MS))])
        await steps()
        settings.change()
        await steps(steps_between)
        chore.cancel()
        await steps()
        return chore.cancelled()

    assert asyncio.run(main())


def test_a_changed_interval_counts_for_the_wait_in_progress() -> None:
    async def main() -> None:
        settings, interval_ms = ChangingSettings(), [WEEKS_MS]
        pause = asyncio.ensure_future(settings.current.pause(lambda _: interval_ms[0]))
        for given, is_over in ((WEEKS_MS - 1, False), (0, True)):
            interval_ms[0] = given
            settings.change()
            await steps()
            assert pause.done() is is_over

    asyncio.run(main())
