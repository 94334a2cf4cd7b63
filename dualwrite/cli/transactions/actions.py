"""``dualwrite transactions``: show open transactions and the reason, and end them: as decided, or by force."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine

from dualwrite.cli.actions import Action, add_action, run_action
from dualwrite.cli.cluster import add_cluster, add_two_phase, cluster_config, require_cluster
from dualwrite.cli.database import add_database, add_schema, database
from dualwrite.cli.printing import complain, counted, print_json
from dualwrite.cli.transactions.listing import add_watch, run_list
from dualwrite.cli.transactions.output import as_json, foretold, paragraphs, recovery, results
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision
from dualwrite.coordinator.sql.outcome_store import acknowledge, outcomes
from dualwrite.errors import InputError
from dualwrite.operations.copies import reason_to_leave
from dualwrite.operations.groups import grouped_forecasts
from dualwrite.operations.listing import describe_transaction
from dualwrite.operations.resolving import Intention, plan, require_known, resolve
from dualwrite.operations.terminating import contradicts, foresee, terminate
from dualwrite.operations.views import TransactionView

run = run_action


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's actions and their arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = _action(actions, "list", run_list, "every slot, and the open transactions in Kafka that no row names")
    listing.add_argument("--application", metavar="NAME", help="only its slots")
    add_watch(listing)
    describing = _action(actions, "describe", _describe, "all details of one transactional id")
    describing.add_argument("transactional_id", metavar="ID", help="this transactional id")
    resolving = _action(actions, "resolve", _resolve, "end the transactions of dead owners, as the database decided")
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
    terminating = _action(
        actions, "terminate", _terminate, "abort a transaction in Kafka, EVEN IF it was decided to commit"
    )
    terminating.add_argument("transactional_id", metavar="ID", help="this transactional id")
    for subparser in (listing, describing):
        subparser.add_argument("--json", action="store_true", help="for programs")
    for subparser in (resolving, terminating):
        subparser.add_argument("--yes", action="store_true", help="do it; without --yes, only print the plan")
    for subparser in (listing, describing, resolving, acknowledging):
        add_database(subparser)
    which_database = terminating.add_mutually_exclusive_group(required=True)
    which_database.add_argument("--db", metavar="URL", help="SQLAlchemy URL of the database that holds the decision")
    which_database.add_argument("--no-db", action="store_true", help="that database is lost, and its decision with it")
    add_schema(terminating)


def _action(actions: Any, name: str, action: Action, purpose: str) -> argparse.ArgumentParser:
    subparser = add_action(actions, name, action, purpose)
    add_cluster(subparser)
    return subparser


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
    with database(arguments.db, must_exist=True, schema=arguments.schema) as engine:
        waiting = [outcome.id for outcome in outcomes(engine)]
        for numbers in arguments.numbers:
            found = numbers if len(numbers) == 1 else [number for number in waiting if number in numbers]
            if not found:
                raise InputError(f"no outcome from {numbers.start} to {numbers.stop - 1} waits to be acknowledged")
            for number in found:
                outcome = acknowledge(engine, number, by=arguments.by)
                assert outcome.acknowledged_at is not None
                print(
                    f"{outcome.outcome.value} {outcome.id} of {outcome.transactional_id}: acknowledged by "
                    f"{outcome.acknowledged_by}, {outcome.acknowledged_at.isoformat(timespec='seconds')}"
                )
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    with _both(arguments) as (engine, config):
        obstacle = reason_to_leave(engine, config)
        view, ends = describe_transaction(engine, config, arguments.transactional_id, foretells=not obstacle)
    require_known([view])
    if arguments.json:
        print_json(as_json(view, ends))
    else:
        for text in paragraphs(view, ends, obstacle):
            print(text)
    return 0


def _resolve(arguments: argparse.Namespace) -> int:
    with _both(arguments) as (engine, config):
        intentions = plan(
            engine, config, application=arguments.application, transactional_ids=arguments.transactional_ids
        )
        for intention in intentions:
            if not arguments.yes or intention.obstacle or not intention.view.is_recoverable:
                print(_confirmation_text(intention))
        blocked = sum(bool(intention.obstacle) for intention in intentions)
        if not arguments.yes:
            todo = sum(_is_open(intention) for intention in intentions)
            print(f"nothing was done; {counted(todo, 'transaction')} would be ended with --yes")
            return 1 if grouped_forecasts(intention.view for intention in intentions) else 0
        done = resolve(engine, config, intentions, two_phase=arguments.two_phase)
    for text in results(done.outcomes):
        print(text)
    for name in done.missed:
        print(f"{name}: not resolved")
    for error in done.errors:
        complain(str(error))
    return 1 if blocked or done.is_bad else 0


def _confirmation_text(intention: Intention) -> str:
    view = intention.view
    if intention.obstacle:
        return f"{view.transactional_id}: not touched: {intention.obstacle}"
    if view.forecast is not None and (view.forecast.is_heuristic or view.forecast.outcome is None):
        return f"{view.transactional_id}: {foretold(view)}"
    if not _is_open(intention):
        return f"{view.transactional_id}: nothing is open"
    decided = (
        "the database has committed it"
        if view.verdict is RecoveryDecision.COMMIT
        else "the database has not committed it"
    )
    return f"{view.transactional_id}: would {recovery(view)} {_described(view)}: {decided}"


def _is_open(intention: Intention) -> bool:
    return intention.action in (RecoveryDecision.COMMIT, RecoveryDecision.ABORT)


def _described(view: TransactionView) -> str:
    assert view.kafka is not None
    return f"{view.kafka.producer}, in {counted(len(view.kafka.partitions), 'partition')}"


def _terminate(arguments: argparse.Namespace) -> int:
    name = arguments.transactional_id
    if arguments.no_db:
        config = cluster_config(arguments)
        require_cluster(config)
        return _terminated(None, config, name, arguments.yes)
    with _both(arguments) as (engine, config):
        return _terminated(engine, config, name, arguments.yes)


def _terminated(engine: Engine | None, config: dict[str, Any], name: str, do_it: bool) -> int:
    if not do_it:
        view = foresee(engine, config, name)
        instead = " `resolve` would commit it instead." if engine is not None and contradicts(view) else ""
        print(f"{name}: would ABORT {_described(view)}, regardless of the decision. {_meaning(view, engine)}{instead}")
        raise InputError("nothing was done: terminate needs --yes")
    view = terminate(engine, config, name)
    print(f"{name}: aborted {_described(view)}. {_meaning(view, engine)}")
    return 1 if contradicts(view) else 0


def _meaning(view: TransactionView, engine: Engine | None) -> str:
    if engine is None:
        return "Its database's decision is unknown: if it committed, read_committed consumers miss its records."
    if view.row is None:
        return "No row of this database names it: if another database committed it, its rows lose their records."
    if contradicts(view):
        return (
            "THE DATABASE HAS COMMITTED IT: its rows are there, and read_committed consumers will not see its records. "
            "That is a heuristic outcome, which `dualwrite transactions list` shows until it is acknowledged."
        )
    return "The database does not ask for its commit: recovery would abort it, too."
