"""``dualwrite groups``: consumer groups, their members and their lag; moves their offsets, and deletes them."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from dualwrite.admin.views import GroupListing, OffsetChange, Start
from dualwrite.cli.actions import run_action
from dualwrite.cli.cluster import add_cluster_action, cluster_config, reached_cluster
from dualwrite.cli.kafka.confirming import add_yes, require_confirmation
from dualwrite.cli.kafka.group_output import as_json, paragraphs, place
from dualwrite.cli.kafka.starts import PLACES, parse_start
from dualwrite.cli.printing import complain, counted, print_either, print_json, printable, table

run = run_action

_NONE = "-"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's actions and their arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = add_cluster_action(actions, "list", _list, "every group that the brokers know")
    describing = add_cluster_action(actions, "describe", _describe, "a group's members, and its lag in each partition")
    describing.add_argument("group", metavar="GROUP", help="the group's id")
    resetting = add_cluster_action(
        actions, "reset-offsets", _reset, "move the offsets of a group without members to another place of a topic"
    )
    resetting.add_argument("group", metavar="GROUP", help="the group's id")
    resetting.add_argument("--topic", required=True, help="the topic")
    resetting.add_argument(
        "--partition",
        dest="partitions",
        type=int,
        action="append",
        metavar="N",
        help="only this partition; may be repeated",
    )
    resetting.add_argument("--to", required=True, type=parse_start, metavar="PLACE", help=PLACES)
    resetting.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    deleting = add_cluster_action(actions, "delete", _delete, "delete a group without members, with its offsets")
    deleting.add_argument("group", metavar="GROUP", help="the group's id")
    for subparser in (resetting, deleting):
        add_yes(subparser)
    for subparser in (listing, describing, resetting):
        subparser.add_argument("--json", action="store_true", help="for programs")


def _list(arguments: argparse.Namespace) -> int:
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.groups import list_groups  # here and below, as it imports a Kafka client

    groups = list_groups(config)
    lines = table(("GROUP", "STATE", "KIND", "TYPE"), [_line(group) for group in groups]) if groups else ["no groups"]
    print_either([asdict(group) for group in groups], lines, is_json=arguments.json)
    return 0


def _line(group: GroupListing) -> tuple[str, ...]:
    return (
        printable(group.group_id),
        group.state or "?",
        group.kind or "?",
        printable(group.protocol_type) or _NONE,
    )


def _describe(arguments: argparse.Namespace) -> int:
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.groups import describe_group

    group = describe_group(config, arguments.group)
    print_either(as_json(group), paragraphs(group), is_json=arguments.json)
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    """Show what changes, and change it after a yes."""
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.groups import apply_reset, reset_offsets

    changes = reset_offsets(
        config, arguments.group, arguments.topic, arguments.to, partitions=arguments.partitions, dry_run=True
    )
    if not arguments.json:
        lines = table(("TOPIC", "PARTITION", "BEFORE", "AFTER"), [_change_line(change) for change in changes])
        print("\n".join(lines), flush=True)
    _complain_of_places(changes, arguments.to)
    if not arguments.dry_run:
        new = "" if any(change.before is not None for change in changes) else ", which has none in this topic yet"
        name = printable(arguments.group)
        require_confirmation(arguments, f"move {counted(len(changes), 'offset')} of group {name}{new}")
        apply_reset(config, arguments.group, changes)
    if arguments.json:
        moved = [{**place(change.partition), "before": change.before, "after": change.after} for change in changes]
        print_json({"dry_run": arguments.dry_run, "partitions": moved})
    else:
        print("nothing was changed: a dry run" if arguments.dry_run else f"moved {counted(len(changes), 'offset')}")
    return 0


def _complain_of_places(changes: Sequence[OffsetChange], wanted: Start) -> None:
    """Name the partitions that do not have the offset ``wanted``: it may be mistyped, or a date that looks like one."""
    for change in changes:
        if isinstance(wanted, int) and change.after != wanted:
            where = "behind the end" if change.after < wanted else "before the beginning"
            complain(f"partition {change.partition}: offset {wanted} is {where}, so it is {change.after}")


def _change_line(change: OffsetChange) -> tuple[str, ...]:
    before = _NONE if change.before is None else str(change.before)
    return change.partition.topic, str(change.partition.partition), before, str(change.after)


def _delete(arguments: argparse.Namespace) -> int:
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.groups import delete_group, describe_group

    known = describe_group(config, arguments.group, counts=False)
    offsets = sum(lag.committed is not None for lag in known.lags)
    name = printable(arguments.group)
    require_confirmation(arguments, f"delete group {name} with {counted(offsets, 'committed offset')}")
    delete_group(config, arguments.group)
    print(f"group {name}: deleted")
    return 0
