"""``dualwrite recover``: end the open transactions of an application's dead processes, like DualWrite.recover()."""

import argparse
from collections.abc import Mapping, Sequence

from dualwrite.cli.cluster import add_cluster, add_two_phase, cluster_config, require_cluster
from dualwrite.cli.database import add_database, database
from dualwrite.cli.printing import complain, counted, print_json, printable
from dualwrite.cli.transactions.output import heuristic_count
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.errors import ForeignClusterError
from dualwrite.operations.listing import IS_LOCKED
from dualwrite.operations.resolving import recover
from dualwrite.operations.wording import results


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_database(parser)
    parser.add_argument(
        "--application", required=True, metavar="NAME", help="the application; its slots in use stay unchanged"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    add_two_phase(parser)
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    """Recover, and print the results.

    :raises DualWriteError: if no slot could be recovered. The message is meant for the user.
    """
    config = cluster_config(arguments)
    with database(arguments.db, must_exist=True, schema=arguments.schema) as engine:
        require_cluster(config)
        done = recover(engine, config, arguments.application, two_phase=arguments.two_phase)
    failed = [error for error in done.errors if not isinstance(error, ForeignClusterError)]
    if failed and not done.outcomes:
        raise failed[0]
    for error in done.errors:
        complain(str(error))
    if arguments.json:
        errors = [str(error) for error in done.errors]
        print_json({"outcomes": done.outcomes, "errors": errors, "in_use": done.in_use, "missed": done.missed})
        return 1 if done.is_bad else 0
    for text in results({name: found for name, found in done.outcomes.items() if found is not Outcome.NOTHING}):
        print(printable(text))
    for name in done.missed:
        print(printable(f"{name}: not recovered: {IS_LOCKED.detail}"))
    for name, reason in done.in_use.items():
        print(printable(f"{name}: not touched: {reason}"))
    ended = sum(outcome in (Outcome.COMMITTED, Outcome.ABORTED) for outcome in done.outcomes.values())
    print(
        f"{counted(len(done.outcomes), 'slot')} checked; {counted(ended, 'transaction')} ended"
        f"{heuristic_count(done.outcomes)}{_missed_count(done.missed)}{_in_use_count(done.in_use)}"
    )
    return 1 if done.is_bad else 0


def _missed_count(missed: Sequence[str]) -> str:
    """The end of the summary; empty if no open transaction was left because its row is locked."""
    return f"; {counted(len(missed), 'transaction')} left open: run it again later" if missed else ""


def _in_use_count(in_use: Mapping[str, str]) -> str:
    """The end of the summary; empty if no slot in use has an open transaction."""
    return f"; {counted(len(in_use), 'slot')} in use: run it again when the lease is over" if in_use else ""
