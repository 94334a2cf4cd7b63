"""``python -m tests.damage``: damage every kind of file that the broker writes, and print the table of outcomes."""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from tests.damage.page import markdown
from tests.damage.table import DamageTable, fill

MOST = 25
"""The sample of bits and of lengths for each kind of file that the published table has."""


def main() -> int:
    """Fill the table; the exit code is 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="decides the samples (%(default)s)")
    parser.add_argument("--most", type=int, default=MOST, help="the sample for each kind of file (%(default)s)")
    parser.add_argument("--every", action="store_true", help="every bit and every length")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at once (%(default)s)")
    parser.add_argument("--markdown", type=Path, help="write the page of the documentation to this file, too")
    arguments = parser.parse_args()
    most = None if arguments.every else arguments.most
    progress = partial(print, file=sys.stderr, flush=True)
    table = fill(DamageTable(), arguments.seed, most, progress, arguments.processes)
    command = "python -m tests.damage" + (" --every" if arguments.every else f" --most {arguments.most}")
    command += f" --seed {arguments.seed} --markdown docs/reference/damage.md"
    page = markdown(table, command, is_sample=not arguments.every)
    print(page)
    if arguments.markdown is not None:
        arguments.markdown.write_text(page, encoding="utf-8")
    for line in table.wrong[:20]:
        print(line, file=sys.stderr)
    return 1 if table.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
