"""Objects that a forked child keeps from its parent, and the lock under which it reinitializes."""

import os
import threading
from weakref import WeakSet

INHERITED: list[object] = []
"""Units of work, connections and engines that a forked process got from its parent. Collecting a connection would roll
it back or close it, so they are kept for as long as the process lives."""


class _AfterFork:
    """The lock under which a child reinitializes. Every process has a new one: the parent's may be held forever."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()
        self.own_pools: WeakSet[object] = WeakSet()
        """The pools of engines that this process has made in place of its parent's: DualWrites may share an engine."""


after_fork = _AfterFork()
