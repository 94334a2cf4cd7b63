"""``python -m tests.mutation``: change the code of pure rooms in small ways, and see which changes no test notices.

It prints the score of each room and every survivor that ``explained.yaml`` does not explain; the exit code is 1 if
there is one. A run that was stopped goes on where it was; ``--afresh`` begins anew.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.explanations import read_explanations
from tests.mutation.mutants import HOME, STATS, MutantFate, MutmutError, mutate, read_mutants
from tests.mutation.page import markdown
from tests.mutation.results import RoomResult, store, summed_up
from tests.mutation.rooms import ROOMS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say; the exit code."""
    options = _parsed(arguments)
    results = []
    for room in options.rooms:
        try:
            result = _result(room, options)
        except MutmutError as error:
            print(error, file=sys.stderr)
            return 2
        print(result.line, *(f"  {line}" for line in result.unexplained), sep="\n", flush=True)
        results.append(result)
    store(results, options.directory / "results.json")
    for path, text in ((options.markdown, markdown(results)), (options.directory / "summary.md", markdown(results))):
        if path is not None:
            path.write_text(text, encoding="utf-8")
    if options.json is not None:
        store(results, options.json)
    return int(any(result.unexplained for result in results))


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS), help="which (all)")
    parser.add_argument("--processes", type=int, default=2, help="mutants at once (%(default)s)")
    parser.add_argument("--directory", type=Path, default=HOME / "build" / "mutation", help="for the copies")
    parser.add_argument("--afresh", action="store_true", help="forget what the directory has from a run before")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="mutants of these names, with wildcards")
    parser.add_argument("--again", action="store_true", help="those that no test has failed for, with the tests of now")
    parser.add_argument("--read", action="store_true", help="run nothing: print what the last run found")
    parser.add_argument("--markdown", type=Path, help="write the page of the documentation there")
    parser.add_argument("--json", type=Path, help="write what the page is made from there")
    return parser.parse_args(arguments)


def _result(name: str, options: argparse.Namespace) -> RoomResult:
    room, directory = ROOMS[name], options.directory / name.replace("/", "-")
    if options.afresh and directory.exists():
        shutil.rmtree(directory)
    names = list(options.only)
    if options.again:
        done = (MutantFate.KILLED, MutantFate.UNFINISHED)
        names = [each.name for each in read_mutants(room, directory) if each.fate not in done]
        (directory / "mutants" / STATS).unlink(missing_ok=True)  # a test of the same name may call something else now
    if not options.read and (names or not options.again):
        mutate(room, directory, options.processes, names)
    return summed_up(name, read_mutants(room, directory), read_explanations())


if __name__ == "__main__":
    sys.exit(main())
