"""``dualwrite move``: topics, consumer groups and applications from one Kafka cluster to another, and back."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualwrite.cli.cluster import config_at, require_cluster
from dualwrite.cli.database import add_schema, database
from dualwrite.cli.printing import complain, counted, print_json, printable, table
from dualwrite.errors import InputError

if TYPE_CHECKING:
    from dualwrite.moving.copying import PartitionComparison
    from dualwrite.moving.move import ClusterMove
    from dualwrite.moving.results import MoveResult, SourceChanges

_MODES = ("dry_run", "finish", "check")
_MOST_REPLICAS = 2**15 - 1
"""As many as CreateTopics can say."""
PROGRESS_EVERY = 100_000
"""A line of progress for so many records."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--from", dest="source", required=True, metavar="HOST:PORT", help="a broker of the source")
    parser.add_argument("--to", dest="target", required=True, metavar="HOST:PORT", help="a broker of the target")
    for side in ("from", "to"):
        parser.add_argument(
            f"--{side}-config", type=Path, metavar="FILE", help=f"a file of client settings for --{side}, one per line"
        )
    parser.add_argument(
        "--topics", metavar="NAME", help="the topics to move, as a,b (all, without those that begin with __)"
    )
    parser.add_argument("--groups", metavar="NAME", help="the consumer groups to move, as a,b (all of these topics)")
    parser.add_argument(
        "--replication-factor", type=int, default=-1, metavar="N", help="of new topics (the target's default)"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the topics, and change nothing")
    parser.add_argument(
        "--finish",
        action="store_true",
        help="move the groups and the applications, too: all of them have stopped, and use the target from then on",
    )
    parser.add_argument("--check", action="store_true", help="only look for changes at the source since the move")
    parser.add_argument("--verify", action="store_true", help="compare every moved record on both sides")
    parser.add_argument(
        "--no-db", action="store_true", help="with --finish: no database has units of work with the source"
    )
    parser.add_argument(
        "--db",
        action="append",
        default=[],
        metavar="URL",
        help="with --finish: SQLAlchemy URL of a database with units of work; may be repeated",
    )
    add_schema(parser)
    parser.add_argument("--json", action="store_true", help="for programs")


def run(arguments: argparse.Namespace) -> int:
    """Move, and print what was done; 1 if the source has changed since, or the sides differ.

    :raises DualWriteError: if the move cannot be made or finished. The message is meant for the user.
    """
    from dualwrite.moving.plan import MoveJob

    chosen = [f"--{mode.replace('_', '-')}" for mode in _MODES if getattr(arguments, mode)]
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(chosen)}: use one of them")
    if arguments.verify and arguments.dry_run:
        raise InputError("--dry-run and --verify: use one of them")
    if arguments.db and not arguments.finish:
        raise InputError("--db: only --finish changes a database")
    if arguments.no_db and not arguments.finish:
        raise InputError("--no-db: only --finish changes a database")
    if arguments.groups and not arguments.finish:
        raise InputError("--groups: only --finish moves groups")
    if arguments.finish and bool(arguments.db) is arguments.no_db:
        raise InputError(
            "--finish: give --db for each database with units of work, or --no-db if there is none. If slots stay at "
            "the source, an application at the target finds a unit of work without its records"
        )
    if not (1 <= arguments.replication_factor <= _MOST_REPLICAS or arguments.replication_factor == -1):
        raise InputError(f"--replication-factor {arguments.replication_factor}: use 1 to {_MOST_REPLICAS}")
    job = MoveJob(
        _names("--topics", arguments.topics), _names("--groups", arguments.groups), arguments.replication_factor
    )
    source = config_at("--from", arguments.source, arguments.from_config)
    target = config_at("--to", arguments.target, arguments.to_config)
    with ExitStack() as stack:
        engines = [stack.enter_context(database(url, must_exist=True, schema=arguments.schema)) for url in arguments.db]
        from dualwrite.moving.move import ClusterMove  # here, as it imports a Kafka client

        for config in (source, target):
            require_cluster(config)
        move = ClusterMove(source, target, job)
        if arguments.dry_run:
            return _show_plan(move, as_json=arguments.json)
        return _run(move, arguments, engines)


def _run(move: "ClusterMove", arguments: argparse.Namespace, engines: list[Any]) -> int:
    progress = _CopyProgress()
    result: MoveResult | None = None
    if arguments.finish:
        result = move.finish(engines, progress, compares=arguments.verify)
    elif not arguments.check and not (arguments.verify and move.is_finished):
        result = move.copy(progress)
    comparisons = list(result.compared) if result is not None else []
    if arguments.verify and not comparisons:
        comparisons = list(move.compare())
    changes = move.changes() if arguments.finish or arguments.check else None
    if arguments.json:
        print_json(_as_json(move, result, comparisons, changes))
    else:
        _print(move, result, comparisons, changes)
    return 1 if changes or any(not comparison.is_equal for comparison in comparisons) else 0


def _names(option: str, words: str | None) -> tuple[str, ...]:
    if words is None:
        return ()
    names = tuple(word.strip() for word in words.split(","))
    if not all(names):
        raise InputError(f"{option}: name one, or several with commas between them")
    return names


class _CopyProgress:
    """Prints a line on stderr for every PROGRESS_EVERY records of a topic."""

    def __init__(self) -> None:
        self._topic, self._records = "", 0

    def __call__(self, topic: str, records: int) -> None:
        if topic != self._topic:
            self._topic, self._records = topic, 0
        lines = self._records // PROGRESS_EVERY
        self._records += records
        if self._records // PROGRESS_EVERY > lines:
            print(f"{topic}: {self._records:,} records", file=sys.stderr, flush=True)


def _show_plan(move: "ClusterMove", *, as_json: bool) -> int:
    plans, left_out = move.plan(), move.left_out()
    if as_json:
        print_json(
            {
                "source": move.source_id,
                "target": move.target_id,
                "finished": move.is_finished,
                "left_out": left_out,
                "topics": {
                    plan.source.name: {
                        "partitions": plan.source.partitions,
                        "preparation": plan.preparation,
                        "settings": plan.settings,
                        "differing": plan.differences,
                        "replicas": plan.at_creation.replicas,
                    }
                    for plan in plans
                },
            }
        )
        return 0
    rows = [
        (
            plan.source.name,
            str(plan.source.partitions),
            plan.preparation.value,
            " ".join(f"{key}={value}" for key, value in plan.settings.items()),
        )
        for plan in plans
    ]
    for line in table(("TOPIC", "PARTITIONS", "AT THE TARGET", "SETTINGS"), rows):
        print(line)
    on_one_node = [plan.source.name for plan in plans if plan.is_on_one_node]
    _complain_of({plan.source.name: plan.differences for plan in plans}, on_one_node, left_out)
    print(f"from cluster {move.source_id} to {move.target_id}: nothing was changed")
    return 0


def _print(
    move: "ClusterMove",
    result: "MoveResult | None",
    comparisons: "list[PartitionComparison]",
    changes: "SourceChanges | None",
) -> None:
    from dualwrite.moving.results import describe_changes

    if result is not None:
        _print_result(result)
        _complain_of(result.differing, result.on_one_node, move.left_out())
    if comparisons:
        _print_comparisons(comparisons)
    if changes:
        complain(describe_changes(changes))
    elif changes is not None:
        print("the source has not changed since the move" if move.is_finished else "every record is copied")
    if move.is_finished and not changes:
        print(f"finished: use the target, cluster {move.target_id}")
    elif not move.is_finished and (result is not None or changes is not None):
        print(f"not finished: applications still use the source, cluster {move.source_id}")


def _print_result(result: "MoveResult") -> None:
    for topic, records in result.copied.items():
        if records:
            print(f"{topic}: {counted(records, 'record')} copied")
    for topic in result.waiting:
        complain(f"topic {topic} has an open transaction at the source: copied up to its beginning")
    for group in result.groups:
        print(f"group {printable(group)}: moved")
    if result.slots:
        print(f"{counted(result.slots, 'slot')} given to the target")
    for database_name in result.unchanged:
        print(f"{database_name}: no slot and no offset was of the source, so nothing was changed there")


def _complain_of(
    differing: Mapping[str, Mapping[str, tuple[str, str]]], on_one_node: Sequence[str], left_out: Sequence[str]
) -> None:
    for topic, settings in differing.items():
        for name, (source, target) in settings.items():
            complain(
                f"topic {topic}: {name} is {source} at the source and {target} at the target, where a move does not "
                "change it: the clusters may keep different records"
            )
    for topic in on_one_node:
        complain(f"topic {topic} has one replica at the target, and is lost with its node; see --replication-factor")
    if left_out:
        complain(f"not moved, because they begin with two underscores: {', '.join(left_out)}; --topics moves them")


def _print_comparisons(comparisons: "list[PartitionComparison]") -> None:
    differing = [comparison for comparison in comparisons if not comparison.is_equal]
    for comparison in differing:
        sides = ", ".join(
            f"{counted(count, 'record')} at the {side} (digest {digest})"
            for side, (count, digest) in (("source", comparison.source), ("target", comparison.target))
        )
        print(f"{comparison.topic}-{comparison.partition} DIFFERS: {sides}")
    if not differing:
        total = sum(comparison.source[0] for comparison in comparisons)
        print(f"compared {counted(total, 'record')} in {counted(len(comparisons), 'partition')}: both sides are equal")


def _as_json(
    move: "ClusterMove",
    result: "MoveResult | None",
    comparisons: "list[PartitionComparison]",
    changes: "SourceChanges | None",
) -> dict[str, object]:
    found: dict[str, object] = {
        "source": move.source_id,
        "target": move.target_id,
        "finished": move.is_finished,
    }
    if result is not None:
        found |= {
            "copied": result.copied,
            "waiting": result.waiting,
            "groups": result.groups,
            "slots": result.slots,
            "unchanged": result.unchanged,
            "differing": result.differing,
            "on_one_node": result.on_one_node,
            "left_out": move.left_out(),
        }
    if changes is not None:
        records = {str(partition): count for partition, count in changes.records.items()}
        found["changes"] = {"records": records, "groups": changes.groups}
    if comparisons:
        found["compared"] = [
            {
                "topic": comparison.topic,
                "partition": comparison.partition,
                "records": {"source": comparison.source[0], "target": comparison.target[0]},
                "digest": {"source": comparison.source[1], "target": comparison.target[1]},
                "equal": comparison.is_equal,
            }
            for comparison in comparisons
        ]
    return found
