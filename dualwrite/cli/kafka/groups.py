"""``dualwrite groups``: consumer groups, their members and their lag; moves their offsets, and deletes them."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from dualwrite.admin.views import GroupDetails, GroupListing, OffsetChange, PartitionLag
from dualwrite.cli.actions import Action, add_action, run_action
from dualwrite.cli.cluster import add_cluster, cluster_config, reached_cluster
from dualwrite.cli.kafka.confirming import add_yes, require_confirmation
from dualwrite.cli.kafka.starts import PLACES, parse_start
from dualwrite.cli.kafka.topic_output import number
from dualwrite.cli.printing import counted, print_json, printable, table
from dualwrite.ids import TopicPartition

run = run_action

_HEADS = ("TOPIC", "PARTITION", "COMMITTED", "STABLE", "END", "LAG", "UNREAD", "MEMBER")
_NONE = "-"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's actions and their arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = _action(actions, "list", _list, "every group that the brokers know")
    describing = _action(actions, "describe", _describe, "a group's members, and its lag in each partition")
    describing.add_argument("group", metavar="GROUP", help="the group's id")
    resetting = _action(
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
    deleting = _action(actions, "delete", _delete, "delete a group without members, with its offsets")
    deleting.add_argument("group", metavar="GROUP", help="the group's id")
    for subparser in (resetting, deleting):
        add_yes(subparser)
    for subparser in (listing, describing, resetting):
        subparser.add_argument("--json", action="store_true", help="for programs")


def _action(actions: Any, name: str, action: Action, purpose: str) -> argparse.ArgumentParser:
    subparser = add_action(actions, name, action, purpose)
    add_cluster(subparser)
    return subparser


def _list(arguments: argparse.Namespace) -> int:
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.groups import list_groups  # here and below, as it imports a Kafka client

    groups = list_groups(config)
    if arguments.json:
        print_json([asdict(group) for group in groups])
    elif groups:
        print("\n".join(table(("GROUP", "STATE", "KIND", "TYPE"), [_line(group) for group in groups])))
    else:
        print("no groups")
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
    if arguments.json:
        print_json(_as_json(group))
    else:
        print("\n".join(_paragraphs(group)))
    return 0


def _paragraphs(group: GroupDetails) -> Iterator[str]:
    yield f"group     {printable(group.group_id)}"
    yield f"state     {group.state or 'unknown'}{f', assignor {printable(group.assignor)}' if group.assignor else ''}"
    if group.members is None:
        yield "members   not shown: the group has the new protocol (KIP-848)"
    else:
        yield f"members   {len(group.members)}"
        for member in group.members:
            instance = f", instance {member.instance_id}" if member.instance_id else ""
            yield printable(
                f"  {member.member_id}: client {member.client_id}{instance} from {member.host.lstrip('/')}, "
                f"{counted(len(member.partitions), 'partition')}"
            )
    if not group.lags:
        yield "no offsets are committed, and no partitions are assigned"
        return
    yield from table(_HEADS, [_lag_line(lag) for lag in group.lags])
    yield from _explanations(group.lags)


def _lag_line(lag: PartitionLag) -> tuple[str, ...]:
    return (
        lag.partition.topic,
        str(lag.partition.partition),
        _NONE if lag.committed is None else str(lag.committed),
        number(lag.last_stable_offset),
        number(lag.high_watermark),
        number(lag.lag),
        number(lag.unread),
        printable(lag.member_id or _NONE),
    )


def _explanations(lags: tuple[PartitionLag, ...]) -> Iterator[str]:
    """What the numbers do not say by themselves."""
    empty = [lag for lag in lags if lag.lag and lag.unread == 0]
    if empty:
        yield (
            f"nothing is left to read in {_named(empty)}: the lag there is control records, which end transactions, or "
            "aborted records"
        )
    held_back = [lag for lag in lags if lag.held_back]
    if held_back:
        yield (
            f"an open transaction holds back {_named(held_back)}: read_committed consumers stop at STABLE; see "
            "dualwrite topics describe"
        )
    pending = [lag for lag in lags if lag.is_pending]
    if pending:
        yield f"an open transaction has newer offsets of this group for {_named(pending)}"
    deleted = [lag for lag in lags if lag.committed is not None and lag.committed < (lag.earliest or 0)]
    if deleted:
        yield f"records behind the committed offset are deleted in {_named(deleted)}: auto.offset.reset decides there"


def _named(lags: list[PartitionLag]) -> str:
    names = [str(lag.partition) for lag in lags]
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _as_json(group: GroupDetails) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "state": group.state,
        "kind": group.kind,
        "assignor": group.assignor,
        "members": None
        if group.members is None
        else [
            {**asdict(member), "partitions": [_place(partition) for partition in member.partitions]}
            for member in group.members
        ],
        "partitions": [
            {
                **_place(lag.partition),
                "committed": lag.committed,
                "is_pending": lag.is_pending,
                "earliest": lag.earliest,
                "last_stable_offset": lag.last_stable_offset,
                "high_watermark": lag.high_watermark,
                "lag": lag.lag,
                "unread": lag.unread,
                "held_back": lag.held_back,
                "member_id": lag.member_id,
            }
            for lag in group.lags
        ],
    }


def _place(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _reset(arguments: argparse.Namespace) -> int:
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.groups import reset_offsets

    if not arguments.dry_run:
        topic = f"topic {arguments.topic}"
        require_confirmation(arguments, f"move the offsets of group {printable(arguments.group)} in {topic}")
    changes = reset_offsets(
        config,
        arguments.group,
        arguments.topic,
        arguments.to,
        partitions=arguments.partitions,
        dry_run=arguments.dry_run,
    )
    if arguments.json:
        moved = [{**_place(change.partition), "before": change.before, "after": change.after} for change in changes]
        print_json({"dry_run": arguments.dry_run, "partitions": moved})
        return 0
    print("\n".join(table(("TOPIC", "PARTITION", "BEFORE", "AFTER"), [_change_line(change) for change in changes])))
    print("nothing was changed: a dry run" if arguments.dry_run else f"moved {counted(len(changes), 'offset')}")
    return 0


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
