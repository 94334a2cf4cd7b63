"""``dualwrite transactions``: show open transactions and the reason, and end them: as decided, or by force."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine

from dualwrite.cli.actions import run_action
from dualwrite.cli.cluster import add_cluster_action, add_two_phase, cluster_config, require_cluster
from dualwrite.cli.database import add_database, add_schema, database
from dualwrite.cli.printing import complain, counted, print_either, printable
from dualwrite.cli.transactions.listing import add_watch, run_list
from dualwrite.cli.transactions.output import as_json, paragraphs, resolution_json
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome, acknowledge, outcomes, require_name
from dualwrite.errors import InputError
from dualwrite.operations.copies import reason_to_leave
from dualwrite.operations.groups import grouped_forecasts, grouped_records
from dualwrite.operations.listing import describe_transaction
from dualwrite.operations.resolving import plan, require_known, resolve
from dualwrite.operations.terminating import contradicts, foresee, terminate
from dualwrite.operations.wording import (
    acknowledgement,
    described,
    is_to_end,
    plan_line,
    recorded,
    results,
    termination_meaning,
)

run = run_action


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's actions and their arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = add_cluster_action(
        actions, "list", run_list, "every slot, and the open transactions in Kafka that no row names"
    )
    listing.add_argument("--application", metavar="NAME", help="only its slots")
    add_watch(listing)
    describing = add_cluster_action(actions, "describe", _describe, "all details of one transactional id")
    describing.add_argument("transactional_id", metavar="ID", help="this transactional id")
    resolving = add_cluster_action(
        actions, "resolve", _resolve, "end the transactions of dead owners, as the database decided"
    )
    whose = resolving.add_mutually_exclusive_group(required=True)
    whose.add_argument("transactional_ids", metavar="ID", nargs="*", default=[], help="these transactional ids")
    whose.add_argument("--application", metavar="NAME", help="all slots of this application")
    add_two_phase(resolving)
    acknowledging = actions.add_parser(
        "acknowledge",
        help="record that an operator has resolved a heuristic outcome",
        description="Record that an operator has resolved a heuristic outcome. The outcome stays on record.",
    )
    acknowledging.set_defaults(action=_acknowledge)
    acknowledging.add_argument(
        "numbers", metavar="N", nargs="+", type=_numbers, help="an outcome's number in the list, or a range: 11-43"
    )
    acknowledging.add_argument("--by", required=True, metavar="NAME", help="the operator's name")
    terminating = add_cluster_action(
        actions, "terminate", _terminate, "abort a transaction in Kafka, EVEN IF it was decided to commit"
    )
    terminating.add_argument("transactional_id", metavar="ID", help="this transactional id")
    terminating.add_argument(
        "--by", metavar="NAME", help="the operator's name, for the record if the database has decided to commit"
    )
    for subparser in (listing, describing, resolving, acknowledging, terminating):
        subparser.add_argument("--json", action="store_true", help="for programs")
    for subparser in (resolving, terminating):
        subparser.add_argument("--yes", action="store_true", help="do it; without --yes, only print the plan")
    for subparser in (listing, describing, resolving, acknowledging):
        add_database(subparser)
    which_database = terminating.add_mutually_exclusive_group(required=True)
    which_database.add_argument("--db", metavar="URL", help="SQLAlchemy URL of the database that holds the decision")
    which_database.add_argument("--no-db", action="store_true", help="that database is lost, and its decision with it")
    add_schema(terminating)


@contextmanager
def _both(arguments: argparse.Namespace) -> Iterator[tuple[Engine, dict[str, Any]]]:
    """The engine and the client configuration, once the database is open and the cluster has answered."""
    config = cluster_config(arguments)
    with database(arguments.db, must_exist=True, schema=arguments.schema) as engine:
        require_cluster(config)
        yield engine, config


def _numbers(word: str) -> range:
    """The numbers in ``word``: one, or the first and the last of several."""
    first, _, last = word.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r}: give a number, or a range such as 11-43") from None


def _acknowledge(arguments: argparse.Namespace) -> int:
    """Acknowledge one by one. What was acknowledged before an error is printed, too."""
    done: list[HeuristicOutcome] = []
    try:
        with database(arguments.db, must_exist=True, schema=arguments.schema) as engine:
            for outcome in _acknowledged(engine, arguments.numbers, arguments.by):
                done.append(outcome)
    finally:
        if done:
            document = {"outcomes": [asdict(outcome) for outcome in done]}
            print_either(document, map(acknowledgement, done), is_json=arguments.json)
    return 0


def _acknowledged(engine: Engine, ranges: Sequence[range], by: str) -> Iterator[HeuristicOutcome]:
    waiting = [outcome.id for outcome in outcomes(engine)]
    for numbers in ranges:
        is_one = numbers.stop == numbers.start + 1  # an outcome that is acknowledged may be named again
        found = [numbers.start] if is_one else [number for number in waiting if number in numbers]
        if not found:
            raise InputError(f"no outcome from {numbers.start} to {numbers.stop - 1} waits to be acknowledged")
        for number in found:
            yield acknowledge(engine, number, by=by)


def _describe(arguments: argparse.Namespace) -> int:
    with _both(arguments) as (engine, config):
        obstacle = reason_to_leave(engine, config)
        view, ends = describe_transaction(engine, config, arguments.transactional_id, foretells=not obstacle)
        found = [each for each in outcomes(engine) if each.transactional_id == arguments.transactional_id]
    if not found:
        require_known([view])
    lines = [
        *paragraphs(view, ends, obstacle),
        *(f"on record          {recorded(each)}" for each in grouped_records(found)),
    ]
    document = {**as_json(view, ends), "outcomes": [asdict(each) for each in found]}
    print_either(document, lines, is_json=arguments.json)
    return 0


def _resolve(arguments: argparse.Namespace) -> int:
    with _both(arguments) as (engine, config):
        intentions = plan(
            engine, config, application=arguments.application, transactional_ids=arguments.transactional_ids
        )
        if not arguments.yes:
            todo = sum(is_to_end(intention) for intention in intentions)
            summary = f"nothing was done; {counted(todo, 'transaction')} would be ended with --yes"
            lines = [*map(plan_line, intentions), summary]
            print_either(resolution_json(intentions, None), lines, is_json=arguments.json)
            return 1 if grouped_forecasts(intention.view for intention in intentions) else 0
        if not arguments.json:
            for intention in intentions:
                if intention.obstacle or not intention.view.is_recoverable:
                    print(printable(plan_line(intention)))
        done = resolve(engine, config, intentions, two_phase=arguments.two_phase)
    lines = [*results(done.outcomes), *(f"{name}: not resolved" for name in done.missed)]
    print_either(resolution_json(intentions, done), lines, is_json=arguments.json)
    for error in done.errors:
        complain(str(error))
    return 1 if done.is_bad or any(intention.obstacle for intention in intentions) else 0


def _terminate(arguments: argparse.Namespace) -> int:
    if arguments.by is not None:
        require_name(arguments.by, "terminated by")  # in a dry run, too
    if arguments.no_db:
        config = cluster_config(arguments)
        require_cluster(config)
        return _terminated(None, config, arguments)
    with _both(arguments) as (engine, config):
        return _terminated(engine, config, arguments)


def _terminated(engine: Engine | None, config: dict[str, Any], arguments: argparse.Namespace) -> int:
    name = arguments.transactional_id
    if not arguments.yes:
        view = foresee(engine, config, name)
        instead = " `resolve` would commit it instead." if engine is not None and contradicts(view) else ""
        meaning = f"{termination_meaning(view, engine)}{instead}"
        line = f"{name}: would ABORT {described(view)}, regardless of the decision. {meaning}"
    else:
        try:
            view = terminate(engine, config, name, by=arguments.by)
        except KeyboardInterrupt:
            complain(
                f"interrupted: {name} may be aborted all the same; `dualwrite transactions describe` shows it, and "
                "whether a heuristic abort is on record"
            )
            raise
        line = f"{name}: aborted {described(view)}. {termination_meaning(view, engine)}"
    is_known = engine is not None and view.row is not None
    document = {
        "dry_run": not arguments.yes,
        "transaction": as_json(view),
        "contradicts_decision": contradicts(view) if is_known else None,
        "meaning": termination_meaning(view, engine),
    }
    print_either(document, [line], is_json=arguments.json)
    if not arguments.yes:
        raise InputError("nothing was done: terminate needs --yes")
    return 1 if contradicts(view) else 0
