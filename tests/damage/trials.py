"""One file damaged, the broker started again, and its answers compared with those from the undamaged directory."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from dualwrite.broker.log.layout import LOG, RECOVERY_POINT, read_recovery_point
from dualwrite.errors import CorruptLogError
from dualwrite.records.header import HEADER_SIZE, iterate_batches
from tests.damage.answers import REFUSED, BrokerAnswers, answers_of
from tests.damage.kinds import has_batches
from tests.damage.world import Contents, files_of
from tests.support.broker.simulated import run


class DamageOutcome(Enum):
    """What a start made of a damage, with the column's heading in the table."""

    SAME = "same answers"
    REBUILT = "rebuilt, same answers"
    READER_REFUSED = "error to the reader"
    START_REFUSED = "start refused, file named"
    CUT = "cut like a torn tail, with a warning"
    SHORTER = "shorter, without a sign"
    WRONG = "wrong answer"


class Damage(NamedTuple):
    """A flipped bit, or a truncation.

    :param length: the length to which the file is truncated; None for a bit.
    :param bit: the number of the bit in the file that is flipped.
    """

    length: int | None = None
    bit: int = 0

    def of(self, content: bytes) -> bytes:
        """``content`` with this damage."""
        if self.length is not None:
            return content[: self.length]
        damaged = bytearray(content)
        damaged[self.bit // 8] ^= 1 << self.bit % 8
        return bytes(damaged)

    @property
    def position(self) -> int:
        """The first damaged byte."""
        return self.bit // 8 if self.length is None else self.length

    def __str__(self) -> str:
        return f"bit {self.bit} flipped" if self.length is None else f"truncated to {self.length} bytes"


Trial = tuple[Path, Damage]


def flips(contents: Contents, rng: random.Random, most: int | None) -> Sequence[Trial]:
    """Bits to flip in files of one kind: a sample of all, and one of the headers of batches, if the files have batches.

    :param most: the size of each sample; None for every bit.
    """
    bits = [(path, bit) for path, content in contents.items() for bit in range(len(content) * 8)]
    if most is not None:
        headers = [(path, bit) for path, content in contents.items() for bit in _header_bits(path, content)]
        bits = sorted({*rng.sample(bits, min(most, len(bits))), *rng.sample(headers, min(most, len(headers)))})
    return [(path, Damage(bit=bit)) for path, bit in bits]


def _header_bits(path: Path, content: bytes) -> Iterator[int]:
    for start in _starts(content) if has_batches(path) else ():
        yield from range(start * 8, (start + HEADER_SIZE) * 8)


def truncations(contents: Contents, rng: random.Random, most: int | None) -> Sequence[Trial]:
    """Lengths to which files of one kind are truncated: a sample of all, and one of the ends of batches, if the files
    have batches.

    :param most: the size of each sample; None for every length.
    """
    lengths = [(path, length) for path, content in contents.items() for length in range(len(content))]
    if most is not None:
        logs = {path: content for path, content in contents.items() if has_batches(path)}
        ends = [(path, start) for path, content in logs.items() for start in _starts(content)]
        lengths = list({*rng.sample(lengths, min(most, len(lengths))), *rng.sample(ends, min(most, len(ends)))})
    return [(path, Damage(length=length)) for path, length in sorted(lengths)]


def _starts(content: bytes) -> list[int]:
    """Where the batches of ``content`` begin."""
    position, starts = 0, []
    for header, _ in iterate_batches(content):
        starts.append(position)
        position += header.size
    return starts


class DamageFinding(NamedTuple):
    """The outcome of one damage, with an explanation if it is wrong."""

    outcome: DamageOutcome
    detail: str = ""


@dataclass
class DamagedDirectory:
    """The trials on one data directory.

    :param contents: the undamaged files.
    """

    contents: Contents

    def __post_init__(self) -> None:
        self.known: BrokerAnswers = run(answers_of(files_of(self.contents)))
        self._cut: dict[tuple[Path, int], BrokerAnswers] = {}

    def try_out(self, path: Path, damage: Damage) -> DamageFinding:
        """Damage the file at ``path``, start, and judge."""
        damaged = {**self.contents, path: damage.of(self.contents[path])}
        files = files_of(damaged)
        try:
            first = run(answers_of(files, self.known))
            again = run(answers_of(files, self.known))  # the damage must not become durable by the first start
        except CorruptLogError as error:
            return _judge_refusal(path, str(error))
        except Exception as error:  # noqa: BLE001  a start has no other way to fail
            return DamageFinding(DamageOutcome.WRONG, repr(error))
        if first.whole != again.whole and not _differences(first, again) <= {REFUSED}:
            return DamageFinding(DamageOutcome.WRONG, f"the second start differs: {_first_difference(first, again)}")
        return self._judge(path, damage, first)

    def _judge(self, path: Path, damage: Damage, answers: BrokerAnswers) -> DamageFinding:
        is_rebuilt = bool(set(answers.warnings) - set(self.known.warnings))
        if answers.whole == self.known.whole:
            return DamageFinding(DamageOutcome.REBUILT if is_rebuilt else DamageOutcome.SAME)
        if answers.state == self.known.state and _differences(self.known, answers) == {REFUSED}:
            return DamageFinding(DamageOutcome.READER_REFUSED)
        start = self._cut_at(path, damage)
        is_seen = is_rebuilt or start == damage.length
        if start is not None and is_seen and answers.whole == self._answers_cut(path, start).whole:
            return DamageFinding(DamageOutcome.CUT if is_rebuilt else DamageOutcome.SHORTER)
        return DamageFinding(DamageOutcome.WRONG, _first_difference(self.known, answers))

    def _cut_at(self, path: Path, damage: Damage) -> int | None:
        """Where the damaged batch begins, if it may be cut like a torn tail: it is not below the recovery point."""
        is_last = path == max(each for each in self.contents if each.parent == path.parent and each.suffix == ".log")
        if not has_batches(path) or not is_last:
            return None
        content = self.contents[path]
        start = max((start for start in _starts(content) if start <= damage.position), default=None)
        point = 0
        if path.with_name(RECOVERY_POINT) in self.contents:
            point = read_recovery_point(files_of(self.contents), path.parent)
        bases = [header.base_offset for header, _ in iterate_batches(content)]
        return start if start is not None and bases[_starts(content).index(start)] >= point else None

    def _answers_cut(self, path: Path, start: int) -> BrokerAnswers:
        """The answers without the batches from byte ``start`` on."""
        if (path, start) not in self._cut:
            cut = {**self.contents, path: self.contents[path][:start]}
            self._cut[path, start] = run(answers_of(files_of(cut), self.known))
        return self._cut[path, start]


def _judge_refusal(path: Path, message: str) -> DamageFinding:
    later = path.with_name(path.name[:20] + LOG) if path.suffix == ".swap" else path  # as a start has renamed it
    if "\n" in message or str(later) not in message:
        return DamageFinding(DamageOutcome.WRONG, f"refused without the file's name: {message}")
    return DamageFinding(DamageOutcome.START_REFUSED)


def _differences(known: BrokerAnswers, answers: BrokerAnswers) -> set[str]:
    """The answers that differ from the known ones; "missing" for one that there is no more."""
    places = known.reads.keys() | answers.reads.keys()
    return {
        answers.reads.get(place, "missing")
        for place in places
        if answers.reads.get(place) != known.reads.get(place)
    }  # fmt: skip


def _first_difference(known: BrokerAnswers, answers: BrokerAnswers) -> str:
    for name, state in known.state.items():
        if answers.state.get(name) != state:
            return f"{name}: {_shortened(answers.state.get(name, 'missing'))} instead of {_shortened(state)}"
    for place in known.reads.keys() | answers.reads.keys():
        was, is_now = known.reads.get(place, "nothing"), answers.reads.get(place, "missing")
        if was != is_now and is_now != REFUSED:
            return f"{place}: {_shortened(is_now)} instead of {_shortened(was)}"
    return "no difference"


def _shortened(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:300]
