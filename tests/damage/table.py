"""The table of damage: how often each outcome was seen, for each kind of file."""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from dualwrite.broker.process.data_dir import FORMAT_FILE, FORMAT_VERSION
from dualwrite.broker.process.data_lock import exclusive
from dualwrite.errors import ConfigurationError
from tests.damage.kinds import FORMAT, KINDS, LEFT_CLEANED, LEFT_NOTE, LEFT_SWAP, kind_of
from tests.damage.trials import Damage, DamagedDirectory, DamageFinding, DamageOutcome, flips, truncations
from tests.damage.world import Contents, interrupted, killed, stopped

STOPPED, KILLED = "after a clean stop", "after a kill"
_CHUNK = 200
"""Trials that a process gets at once."""
_LEFT = (LEFT_NOTE, LEFT_CLEANED, LEFT_SWAP)
Row = tuple[str, str, str]
"""The directory's state, the kind of file, and the kind of damage."""


@dataclass
class DamageTable:
    """The counts, and the wrong answers one by one."""

    counts: Counter[tuple[Row, DamageOutcome]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, row: Row, path: Path, damage: Damage, finding: DamageFinding) -> None:
        """Count ``finding``."""
        self.counts[row, finding.outcome] += 1
        if finding.outcome is DamageOutcome.WRONG:
            self.wrong.append(f"{row[0]}, {path}, {damage}: {finding.detail}")

    @property
    def trials(self) -> int:
        """The number of starts with a damaged file."""
        return sum(self.counts.values())

    def rows(self) -> Iterator[tuple[Row, Mapping[DamageOutcome, int]]]:
        """Each row with its counts, in the order of the page."""
        present = {row for row, _ in self.counts}
        for state in (STOPPED, KILLED):
            for kind in KINDS:
                for how in ("bits", "lengths"):
                    row = (state, kind, how)
                    if row in present:
                        yield row, {outcome: self.counts[row, outcome] for outcome in DamageOutcome}


Progress = Callable[[str], None]


class _Work(NamedTuple):
    """A trial of the table.

    :param directory: the number of the directory among those of :func:`fill`.
    """

    row: Row
    directory: int
    path: Path
    damage: Damage


def fill(
    table: DamageTable, seed: int, most: int | None, progress: Progress = lambda _: None, processes: int = 1
) -> DamageTable:
    """Damage files of every kind in each directory.

    :param seed: decides which bits and lengths are tried.
    :param most: as for :func:`~tests.damage.trials.flips`; and the number of lengths for each kind.
    :param progress: called with each kind.
    :param processes: that try them out at once; the table is the same for any number.
    """
    rng = random.Random(seed)
    left = zip(_LEFT, interrupted(), strict=True)
    parts = [(STOPPED, KINDS, stopped()), (KILLED, KINDS, killed()), *((KILLED, [kind], each) for kind, each in left)]
    work: list[_Work] = []
    for directory, (state, kinds, contents) in enumerate(parts):
        for kind in kinds:
            files = {path: contents[path] for path in sorted(contents) if kind_of(path) == kind}
            for how, trials in (("bits", flips(files, rng, most)), ("lengths", truncations(files, rng, most))):
                work += (_Work((state, kind, how), directory, path, damage) for path, damage in trials)
    last: Row | None = None
    for each, finding in zip(work, _findings([part[-1] for part in parts], work, processes), strict=True):
        if each.row != last:
            last = each.row
            progress(f"{last[0]}: {last[1]}, {last[2]}")
        table.add(each.row, each.path, each.damage, finding)
    _fill_format(table)
    return table


def _findings(contents: Sequence[Contents], work: Sequence[_Work], processes: int) -> Iterator[DamageFinding]:
    if processes == 1:
        directories = [DamagedDirectory(each) for each in contents]
        yield from (directories[each.directory].try_out(each.path, each.damage) for each in work)
        return
    spawn = get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, initializer=_use, initargs=(contents,)) as pool:
        yield from pool.map(_try_out, work, chunksize=_CHUNK)


_directories: list[DamagedDirectory] = []
"""Those of this process, if it is one of several."""


def _use(contents: Sequence[Contents]) -> None:
    _directories.extend(DamagedDirectory(each) for each in contents)


def _try_out(work: _Work) -> DamageFinding:
    return _directories[work.directory].try_out(work.path, work.damage)


def _fill_format(table: DamageTable) -> None:
    """The file that a start reads before all others, on a real disk."""
    content, rng = b"%d\n" % FORMAT_VERSION, random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "data" / FORMAT_FILE
        path.parent.mkdir()
        files = {path: content}
        for how, trials in (("bits", flips(files, rng, None)), ("lengths", truncations(files, rng, None))):
            for _, damage in trials:
                path.write_bytes(damage.of(content))
                table.add((STOPPED, FORMAT, how), path, damage, _try_format(path))


def _try_format(path: Path) -> DamageFinding:
    try:
        with exclusive(path.parent, 0):
            return DamageFinding(DamageOutcome.WRONG, "accepted")
    except ConfigurationError as error:
        is_named = str(path) in str(error)
        return DamageFinding(DamageOutcome.START_REFUSED if is_named else DamageOutcome.WRONG, str(error))
