"""One administrative act, and the partitions that it names.

The line of an act that was done names everything: it is at most as long as the request. The line of a refused act is
shortened, because a client without rights may name anything.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from dualwrite.wire.apis import Message

_MOST_RANGES = 20


class Act(NamedTuple):
    """One administrative act.

    :param action: a verb and a noun, such as ``create topic``.
    :param resource_type: what kind of thing it changes.
    :param resource: the name of that thing.
    :param outcome: the error code of the answer; 0 if the act was done.
    :param detail: what else is worth knowing.
    """

    action: str
    resource_type: str
    resource: str
    outcome: int
    detail: str = ""


Acts = Callable[[Message, Message], Iterator[Act]]
"""Finds the acts in a request and its answer."""


def by_error(entries: Iterable[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    """The partitions of each error code, as ranges.

    :param entries: pairs of an error code and a partition.
    """
    partitions: dict[int, list[int]] = {}
    for error, index in entries:
        partitions.setdefault(error, []).append(index)
    return ((error, ranges(indexes) if error else all_ranges(indexes)) for error, indexes in partitions.items())


def ranges(numbers: Iterable[int]) -> str:
    """``numbers`` as a list of ranges, such as ``0-3,7``; shortened if there are many."""
    found = _ranges(numbers)
    return ",".join(found) if len(found) <= _MOST_RANGES else f"{','.join(found[:_MOST_RANGES])},…"


def all_ranges(numbers: Iterable[int]) -> str:
    """As :func:`ranges`, and not shortened."""
    return ",".join(_ranges(numbers))


def _ranges(numbers: Iterable[int]) -> list[str]:
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]
