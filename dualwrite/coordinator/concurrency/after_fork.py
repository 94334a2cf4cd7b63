"""What a forked child keeps of its parent, and the lock under which it begins anew."""

import os
import threading

INHERITED: list[object] = []
"""What a forked process got from its parent: units of work, and connections. A connection that is collected is rolled
back or closed, so they are kept for as long as the process lives."""


class _AfterFork:
    """The lock under which a child begins anew. It is new in every process: the parent's may be held for ever."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()


after_fork = _AfterFork()
