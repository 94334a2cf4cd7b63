"""Serves other requests while a long one is being answered: a request may contain a hundred thousand names."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

EntryT = TypeVar("EntryT")

_AT_A_TIME = 50
"""The number of entries between two turns. To look up so many takes less time than one fsync."""


async def in_turns(entries: Iterable[EntryT]) -> AsyncIterator[EntryT]:
    """Yield ``entries`` one by one. Every few entries, other tasks get a turn, so the state may change."""
    for number, entry in enumerate(entries, start=1):
        yield entry
        if number % _AT_A_TIME == 0:
            await asyncio.sleep(0)
