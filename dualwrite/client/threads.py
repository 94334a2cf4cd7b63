"""Starting a thread where a signal handler may raise."""

import threading
from collections.abc import Callable
from typing import Any


def start_thread(target: Callable[..., object], name: str, *args: Any) -> threading.Thread:
    """A daemon thread that runs ``target(*args)``.

    ``Thread.start`` waits for an Event of its own. If this raises, nobody knows whether the thread runs: an exception
    may strike before or after it began, and may leave the Event locked, so that the thread never comes to ``target``.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, KeyError) as error:
        # CPython raises these in place of what struck it: "release unlocked lock" by the Event, in the middle of its
        # wait; or a KeyError with the thread, which has taken itself off the list of those that are about to begin.
        if error.__context__ is not None:
            raise error.__context__ from None
        raise
    return thread
