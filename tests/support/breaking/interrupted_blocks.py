"""Interrupts that come where the end of a block in an event loop can do nothing about them.

CPython runs a signal handler between two instructions of the task. Where the second SIGINT comes after the block has
begun to end and before its end is a task of its own, nothing of the block's runs any more. No public call stands
between these two instructions, so the function between them is replaced.
"""

from typing import Any

import pytest

from dualwrite.coordinator.aio.transaction import AsyncBlock
from tests.support.user_errors import HandlerInterrupt


def interrupted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next block that is left be interrupted there, as by a second SIGINT."""
    to_the_end = AsyncBlock._to_the_end

    def interrupted(self: Any, act: Any, unit: Any) -> Any:
        monkeypatch.setattr(AsyncBlock, "_to_the_end", to_the_end)
        act.close()
        raise HandlerInterrupt

    monkeypatch.setattr(AsyncBlock, "_to_the_end", interrupted)
