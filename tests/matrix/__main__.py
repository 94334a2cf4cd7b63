"""``python -m tests.matrix --kills 10000``: the crash matrix with real processes.

Kills, stops and cuts off the application, the broker and the database at each step of the recipe, in a seeded order of
cells, until so many processes were killed or the time is over. Writes ``runs-N.jsonl``, a line for each run;
``summary.json``; and ``summary.md``, the same as a page. Fails if anything diverged.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tests.matrix.cells import Cell, all_cells
from tests.matrix.context import begun_context, processor_seconds, spent
from tests.matrix.page import page_of
from tests.matrix.runs import MatrixRun, RunGoal, Share
from tests.matrix.summary import is_sound, read_logs, summarised, total

_SHARE = "import sys; from tests.matrix.__main__ import main; sys.exit(main())"
"""For ``python -c``. With ``-m`` each forked process would import this module again; that costs more than its death."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, or write the page of a former run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=10_000, help="end after so many (%(default)s)")
    parser.add_argument("--seconds", type=float, default=24 * 3600.0, help="end after this time, whatever was killed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that run cells (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of cells and all choices (%(default)s)")
    parser.add_argument("--only", nargs="+", default=[], metavar="AXIS=VALUE", help="as database=sqlite kind=SIGKILL")
    parser.add_argument("--directory", type=Path, default=Path("build/matrix"), help="of what is written")
    parser.add_argument("--page", type=Path, help="write the page of former runs to this file, and no more")
    parser.add_argument("--of", nargs="+", type=Path, metavar="DIRECTORY", help="the runs of --page, each with others")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.page is not None:
        write_page(options.of or [options.directory], options.page)
        return 0
    cells = chosen(options.only)
    if not cells:
        parser.error(f"no cell is {' '.join(options.only)}")
    if options.share is not None:
        signal.signal(signal.SIGTERM, _end)
        run_share(cells, options)
        return 0
    return run_all(options)


def _end(number: int, frame: object) -> NoReturn:
    """End as by an error: what was started is stopped."""
    raise SystemExit(128 + number)


def chosen(only: Sequence[str]) -> list[Cell]:
    """The cells whose values begin as ``only`` says."""
    wanted = dict(each.split("=", 1) for each in only)
    return [
        cell for cell in all_cells() if all(cell.as_json()[axis] in value.split("|") for axis, value in wanted.items())
    ]


def run_share(cells: Sequence[Cell], options: argparse.Namespace) -> None:
    """One process's part, with data that is removed at its end."""
    number, of = map(int, options.share.split("/"))
    log = options.directory / f"runs-{number}.jsonl"
    with tempfile.TemporaryDirectory(prefix="dw-matrix-") as directory:
        run = MatrixRun(cells, options.seed, Share(number, of), Path(directory), log)
        run.run(RunGoal(-(-options.kills // of), options.seconds))
        run.write({"processor_seconds": processor_seconds()})


def run_all(options: argparse.Namespace) -> int:
    """Start a process for each share, wait for all, and add up; the exit code."""
    directory: Path = options.directory
    directory.mkdir(parents=True, exist_ok=True)
    for former in directory.glob("runs-*.jsonl"):
        former.unlink()
    began, context = time.monotonic(), begun_context(options)
    command = [sys.executable, "-c", _SHARE, "--kills", str(options.kills), "--seconds", str(options.seconds)]
    command += ["--seed", str(options.seed), "--directory", str(directory)]
    command += ["--only", *options.only] if options.only else []
    processes = []
    for number in range(options.processes):
        with (directory / f"share-{number}.log").open("wb") as log:
            processes.append(subprocess.Popen([*command, "--share", f"{number}/{options.processes}"], stderr=log))
    try:
        codes = [process.wait() for process in processes]
    finally:  # each ends what it has started
        for process in processes:
            process.terminate()
            process.wait()
    summary = summarised(read_logs(directory.glob("runs-*.jsonl")))
    summary["ended"] = [f"process {number} ended with {code}" for number, code in enumerate(codes) if code]
    minutes = (time.monotonic() - began) / 60
    summary["contexts"] = [{**context, **spent(minutes, summary)}]
    (directory / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    (directory / "summary.md").write_text(page_of(summary), encoding="utf-8")
    counts = total(summary)
    print(
        f"{counts['deaths']} killed in {minutes:.1f} minutes, {counts['faults']} faults at the named step, "
        f"{counts['missed']} missed, {counts['divergences']} divergences, {counts['errors']} errors: {directory}"
    )
    return 0 if is_sound(summary) else 1


def write_page(directories: Sequence[Path], page: Path) -> None:
    """Write the page of the runs in ``directories``, and the summary of all beside it."""
    summary = summarised(read_logs(log for directory in directories for log in directory.glob("runs-*.jsonl")))
    former = [json.loads((each / "summary.json").read_text(encoding="utf-8")) for each in directories]
    summary["contexts"] = [context for each in former for context in each["contexts"]]
    summary["ended"] = [line for each in former for line in each["ended"]]
    page.write_text(page_of(summary), encoding="utf-8")
    page.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main())
