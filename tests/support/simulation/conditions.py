"""The conditions of a run that its seed decides, beside its faults: what is rare or slow in production comes soon."""

from random import Random
from typing import NamedTuple

from dualwrite.ids import MAX_PRODUCER_EPOCH

_WITH_OFFSETS = 0.4
"""The part of the runs whose units of work commit an offset of a consumer group, each of a group of its own."""
_COMPACTS = 0.25
"""The part of the runs whose broker compacts its own topics."""
_SEGMENT_BYTES = 500, 2500
"""The least and the most bytes of a segment of them then: some five to twenty facts about transactions."""
_RUNS_OUT = 0.1
"""The part of the runs in which producer ids have few epochs."""
_LAST_EPOCHS = 3, 9
"""The least and the highest last epoch then, which only markers have."""


class Conditions(NamedTuple):
    """The conditions.

    :param has_offsets: True if each unit of work commits an offset in its Kafka transaction.
    :param segment_bytes: the size of a segment of the broker's own topics; None for its default, which no run fills.
    :param last_epoch: of a producer id.
    """

    has_offsets: bool
    segment_bytes: int | None
    last_epoch: int


def conditions_of(seed: int) -> Conditions:
    """The conditions of the run of ``seed``."""
    compaction, epochs = Random(f"compaction of {seed}"), Random(f"epochs of {seed}")
    return Conditions(
        has_offsets=Random(f"offsets of {seed}").random() < _WITH_OFFSETS,
        segment_bytes=compaction.randint(*_SEGMENT_BYTES) if compaction.random() < _COMPACTS else None,
        last_epoch=epochs.randint(*_LAST_EPOCHS) if epochs.random() < _RUNS_OUT else MAX_PRODUCER_EPOCH,
    )
