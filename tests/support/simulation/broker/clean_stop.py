"""The clean stop of the simulated broker, in the order of ``broker/server.py`` and ``broker/broker.py``."""

import asyncio
from collections.abc import Mapping

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.connection import Connection

_GRACE = 1.0
"""Seconds that clients have to read their answers."""


async def stop_cleanly(context: BrokerContext, serving: Mapping["asyncio.Task[None]", Connection]) -> None:
    """Answer the requests in progress, close the connections, make everything durable, and store recovery points."""
    context.stopping.begin()
    context.groups.close()
    context.consumer_groups.close()
    for connection in serving.values():
        connection.finish()
    if serving:
        await asyncio.wait(list(serving), timeout=_GRACE)
    unfinished = list(serving)
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)
    context.coordinator.write_ends()
    await context.flusher.close()
    with context.flusher.critical():
        context.cluster.checkpoint()
