"""The options in effect: those of the start, overridden by the settings that clients have changed since.

The defaults of topic settings are not among them: the cluster itself has them (``Cluster.defaults``).
"""

import asyncio
from collections.abc import Callable

from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.settings.dynamic_settings import DYNAMIC_OWN


class CurrentOptions:
    """The options of a running broker. Made in the running event loop, to whose thread it belongs."""

    def __init__(self, options: BrokerOptions, cluster: Cluster) -> None:
        self._at_start = options
        self._cluster = cluster
        self._users: list[Callable[[BrokerOptions], None]] = []
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done at the next change, which wakes all that wait."""
        self.options = self._overridden()
        cluster.configuration_listeners.append(self._change)

    def keep(self, use: Callable[[BrokerOptions], None]) -> None:
        """Call ``use`` with the options now, and after every change."""
        self._users.append(use)
        use(self.options)

    async def pause(self, interval_ms: Callable[[BrokerOptions], int]) -> None:
        """Wait for the interval that the options say. A change during the wait makes it shorter or longer."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (seconds_left := began + interval_ms(self.options) / 1000 - loop.time()) > 0:
            # Up to Python 3.11 wait_for() may overlook a cancellation that comes with a change: a stop would hang.
            await asyncio.wait([self._changed], timeout=seconds_left)

    def _change(self) -> None:
        self.options = self._overridden()
        for use in self._users:
            use(self.options)
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    def _overridden(self) -> BrokerOptions:
        changed = self._cluster.given_while_running()
        return self._at_start.overridden({name: changed[name] for name in DYNAMIC_OWN & changed.keys()})
