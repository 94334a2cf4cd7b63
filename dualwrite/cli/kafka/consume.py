"""``dualwrite consume``: the records of a topic, each with the state of its transaction."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from dualwrite.admin.views import TopicRecord
from dualwrite.cli.cluster import add_cluster, cluster_config, reached_cluster
from dualwrite.cli.kafka.record_output import FORMATS, RecordLines
from dualwrite.cli.kafka.starts import PLACES, parse_start
from dualwrite.cli.printing import complain, counted, printable
from dualwrite.errors import InputError

_AT_ONCE = 100
"""The records whose columns are laid out together."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("topic", metavar="TOPIC", help="the topic's name")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--committed", action="store_true", help="the records that read_committed consumers see (the default)"
    )
    which.add_argument("--all", action="store_true", help="records of open and of aborted transactions, too")
    parser.add_argument("--markers", action="store_true", help="also control records, which end transactions")
    parser.add_argument(
        "--from", dest="start", type=parse_start, default="beginning", metavar="PLACE", help=f"{PLACES} (beginning)"
    )
    parser.add_argument(
        "--partition",
        dest="partitions",
        type=int,
        action="append",
        metavar="N",
        help="only this partition; may be repeated",
    )
    parser.add_argument("--max", dest="limit", type=int, metavar="N", help="stop after N records")
    parser.add_argument("--follow", action="store_true", help="go on with new records until Ctrl-C")
    parser.add_argument("--format", choices=FORMATS, default="text", help="how values and keys are shown (text)")
    parser.add_argument("--key-format", choices=FORMATS, help="how keys are shown, if not as values")
    parser.add_argument("--timestamps", action="store_true", help="also show the records' timestamps")
    parser.add_argument("--headers", action="store_true", help="also show the records' headers")
    parser.add_argument("--json", action="store_true", help="for programs: one line for each record, with everything")
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the records.

    :raises DualWriteError: if the topic cannot be read. The message is meant for the user.
    """
    if arguments.limit is not None and arguments.limit < 1:
        raise InputError(f"--max {arguments.limit}: use 1 or more")
    config = reached_cluster(cluster_config(arguments))
    from dualwrite.admin.records import read_records  # here, as it imports a Kafka client

    records = read_records(
        config,
        arguments.topic,
        partitions=arguments.partitions,
        start=arguments.start,
        committed=not arguments.all,
        markers=arguments.markers,
        limit=arguments.limit,
        follow=arguments.follow,
    )
    printed = _Printed(arguments)
    try:
        printed.print(records)
    except KeyboardInterrupt:
        sys.stdout.flush()
        complain(f"interrupted after {counted(printed.number, 'record')}")
        raise
    if not printed.number and not arguments.json:
        print("no records")
    if not arguments.all and printed.number != arguments.limit:
        sys.stdout.flush()
        _explain_end(config, arguments)
    return 0


class _Printed:
    """Prints records, and counts them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.number = 0
        self._is_followed = arguments.follow
        self._lines = RecordLines(
            arguments.key_format or arguments.format,
            arguments.format,
            timestamps=arguments.timestamps,
            headers=arguments.headers,
            is_json=arguments.json,
        )

    def print(self, records: Iterator[TopicRecord]) -> None:
        """Print all ``records``; each at once if new ones are waited for."""
        while batch := list(islice(records, 1 if self._is_followed else _AT_ONCE)):
            lines = list(self._lines.of(batch))
            heads = len(lines) - len(batch)
            for at, line in enumerate(lines):
                self.number += at >= heads  # first: Ctrl-C may come as soon as the line can be read
                print(line, flush=self._is_followed)


def _explain_end(config: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Say for each partition that an open transaction holds back that there may be more."""
    from dualwrite.admin.topics import describe_partitions

    for partition in describe_partitions(config, arguments.topic):
        if not partition.held_back or (arguments.partitions and partition.partition not in arguments.partitions):
            continue
        holder = partition.holder
        cause = f"transaction {printable(holder.name)}, which is open" if holder is not None else "an open transaction"
        complain(
            f"partition {partition.partition}: read_committed consumers stop at offset "
            f"{partition.last_stable_offset}, {counted(partition.held_back, 'offset')} before the end, because of "
            f"{cause}; --all shows what follows"
        )
