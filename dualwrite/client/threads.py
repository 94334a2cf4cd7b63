"""Starts a thread safely where a signal handler may raise."""

import sys
import threading
from collections.abc import Callable
from typing import Any


def start_thread(target: Callable[..., object], name: str, *args: Any) -> threading.Thread:
    """A daemon thread that runs ``target(*args)``.

    ``Thread.start`` waits for an Event of its own. If an exception strikes there, the thread may or may not run. The
    exception may come before or after the thread began, and may leave the Event locked, so that the thread never calls
    ``target``.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    handled = sys.exc_info()[1]
    try:
        thread.start()
    except (RuntimeError, KeyError) as error:
        # CPython raises these in place of the exception that struck it: the Event raises "release unlocked lock" in the
        # middle of its wait, and start() a KeyError if the thread has taken itself off the list of starting threads.
        # A context that the caller is handling has struck before.
        if error.__context__ is not None and error.__context__ is not handled:
            raise error.__context__ from None
        raise
    return thread
