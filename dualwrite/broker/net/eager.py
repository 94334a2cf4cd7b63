"""Runs a coroutine at once, as far as it has not to wait. Python's own eager tasks need Python 3.12."""

from collections.abc import Awaitable, Coroutine, Generator
from types import coroutine
from typing import Any


def begun(work: Coroutine[Any, Any, None]) -> Awaitable[None] | None:
    """Run ``work`` until it has to wait, and return the rest of it, which a task must await; None if it is done.

    Until then ``work`` runs outside of any task, so it must not ask for the current one, as ``asyncio.timeout`` does.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return _rest_of(work, waits_for)


@coroutine
def _rest_of(work: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """``work`` from the point where it waits for the future ``waits_for``, or only for its next turn."""
    while True:
        try:
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001  a cancellation, too, is for the work
                waits_for = None  # a failed future refers to this frame by its error's traceback
                waits_for = work.throw(error)
            else:
                waits_for = work.send(value)
        except StopIteration:
            return
