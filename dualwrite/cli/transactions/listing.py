"""``dualwrite transactions list``: what is open, what recovery would do, and the heuristic outcomes; once or again and
again."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from math import isfinite
from typing import NoReturn

from dualwrite.cli.cluster import cluster_config, require_cluster
from dualwrite.cli.database import database
from dualwrite.cli.printing import as_json_text, complain, counted, printable, table
from dualwrite.cli.transactions.output import HEADS, as_json, line
from dualwrite.coordinator.rules.slot_rules import named
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome, outcomes
from dualwrite.errors import DualWriteError, InputError
from dualwrite.operations.copies import reason_to_leave
from dualwrite.operations.groups import grouped_forecasts, grouped_records, unclear
from dualwrite.operations.listing import list_transactions
from dualwrite.operations.replays import awaiting_replay, replay_advice
from dualwrite.operations.resolving import unknown_application
from dualwrite.operations.views import Situation, TransactionView, foreign_cluster_message, used_elsewhere_message
from dualwrite.operations.wording import recorded

WATCH_SECONDS = 2.0
LONGEST_WATCH_SECONDS = 86400.0

_NOTHING = "no slot has a row, and no transaction is open"

_CLEAR = "\x1b[H\x1b[2J"
"""Moves a terminal's cursor to its first line, and clears it."""


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add ``--watch``."""
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"list again after each interval (default {WATCH_SECONDS:g}) until Ctrl-C; with --json, one line each",
    )


def run_list(arguments: argparse.Namespace) -> int:
    """List once, or until Ctrl-C with ``--watch``. Returns 1 if there are heuristic outcomes, foretold or on record, or
    if the database is a copy that no operator has declared.

    :raises DualWriteError: if the first list cannot be made; the message is meant for the user.
    """
    seconds: float | None = arguments.watch
    if seconds is None:
        text, code = _look(arguments)
        print(text)
        return code
    if not (isfinite(seconds) and 0 < seconds <= LONGEST_WATCH_SECONDS):
        raise InputError(f"--watch {seconds:g}: use a number of seconds above 0, up to {LONGEST_WATCH_SECONDS:g}")
    return _watch(lambda: _look(arguments)[0], seconds, is_json=arguments.json)


def _watch(look: Callable[[], str], seconds: float, *, is_json: bool) -> NoReturn:
    """Show ``look()`` every ``seconds``. An error of a later look is one line on stderr; further errors are silent
    until a look has succeeded again, as the reasons change while a server stops and starts."""
    text: str | None = look()
    while True:
        if text is not None:
            print(text if is_json else _framed(text), flush=True)
        time.sleep(seconds)
        before = text
        try:
            text = look()
        except DualWriteError as error:
            text = None
            if before is not None:
                complain(f"{error}; looking again every {seconds:g} s")


def _framed(text: str) -> str:
    """``text`` below the time: at the top of a terminal, elsewhere with an empty line behind it."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return f"{_CLEAR}{now}\n{text}" if sys.stdout.isatty() else f"{now}\n{text}\n"


def _look(arguments: argparse.Namespace) -> tuple[str, int]:
    """One list as text, and its exit code."""
    config = cluster_config(arguments)
    with database(arguments.db, must_exist=True, schema=arguments.schema) as engine:
        require_cluster(config)
        obstacle = reason_to_leave(engine, config)
        views = list_transactions(engine, config, application=arguments.application, foretells=not obstacle)
        nothing = _NOTHING
        if not views and arguments.application is not None:
            nothing = unknown_application(engine, arguments.application)
            if arguments.watch is None:
                raise InputError(nothing)
        found = outcomes(engine, arguments.application)
        kept = awaiting_replay(engine, found)
    code = 1 if found or obstacle or grouped_forecasts(views) else 0
    if arguments.json:
        document = {
            "transactions": [as_json(view) for view in views],
            "outcomes": [asdict(item) for item in found],
            "awaiting_replay": kept,
            "obstacle": obstacle or None,
        }
        return as_json_text(document, is_line=arguments.watch is not None), code
    lines = [*_lines(views, obstacle, found, nothing), *([replay_advice(kept)] if kept else [])]
    return "\n".join(map(printable, lines)), code


def _lines(
    views: Sequence[TransactionView], obstacle: str, found: Sequence[HeuristicOutcome], nothing: str
) -> Iterator[str]:
    if views:
        yield from table(HEADS, [line(view, in_copy=bool(obstacle)) for view in views])
    else:
        yield nothing
    left_behind = [view for view in views if view.situation is Situation.LEFT_BEHIND]
    if obstacle:
        yield f"nothing is recovered here: {obstacle}"
    elif left_behind:
        yield f"{counted(len(left_behind), 'transaction')} left behind: see dualwrite transactions resolve"
    foretold = grouped_forecasts(views)
    count = sum(len(group.members) for group in foretold)
    if foretold or found:
        yield (
            f"{counted(count + len(found), 'heuristic outcome')}: {count:,} that recovery would find, {len(found):,} "
            "on record and not acknowledged"
        )
    for group in foretold:
        yield f"recovery would find a {group.outcome.value} in {group.slots}: {group.detail}"
    for reason, names in unclear(views).items():
        yield f"what recovery would find is unclear in {named(names)}: {reason}"
    foreign = foreign_cluster_message(views)
    if foreign:
        yield foreign
    elsewhere = used_elsewhere_message(views)
    if elsewhere:
        yield elsewhere
    yield from map(recorded, grouped_records(found))
