"""``dualwrite compare``: which keys are in a table and not in a topic, and the other way round."""

import argparse
from collections.abc import Iterator

from dualwrite.cli.cluster import add_cluster, cluster_config, require_cluster
from dualwrite.cli.database import add_url, database
from dualwrite.cli.printing import complain, counted, print_json
from dualwrite.comparison.job import Comparison, ComparisonJob, Difference, Verdict
from dualwrite.errors import InputError

_LAST_LINES = {
    Verdict.SAME: "both sides are the same",
    Verdict.DIFFERENT: "THE TWO SIDES DIFFER",
    Verdict.UNKNOWN: "NOT KNOWN whether both sides are the same",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_url(parser)
    parser.add_argument("--table", required=True, help="the table, as table or schema.table; or a view")
    parser.add_argument("--topic", required=True, help="the topic, which is read up to its last stable offset")
    parser.add_argument(
        "--key",
        required=True,
        metavar="COLUMN",
        help="the column whose text is the records' key; a,b for several",
    )
    parser.add_argument(
        "--record-key",
        metavar="FIELD",
        help="the field of the records' JSON values that holds the key, as order.id; a,b for several columns",
    )
    parser.add_argument("--where", metavar="SQL", help="compare only rows with this condition; it is run as it stands")
    parser.add_argument(
        "--last",
        action="store_true",
        help="only the last record of a key counts: for a topic with a record for each change, or a compacted one",
    )
    parser.add_argument(
        "--values",
        action="store_true",
        help="also compare each record's value with its row, as dualwrite load writes it",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="wait so long for open transactions, and look again so long at keys that differ (5)",
    )
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="the keys to show of each difference (20)")
    parser.add_argument("--json", action="store_true", help="for programs")
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare both sides, and print the differences; 0 only if both sides are the same.

    :raises DualWriteError: if the two cannot be compared. The message is meant for the user.
    """
    job = ComparisonJob(
        table=arguments.table,
        topic=arguments.topic,
        key=_names(arguments.key),
        record_key=_names(arguments.record_key) if arguments.record_key is not None else (),
        where=arguments.where,
        last=arguments.last,
        values=arguments.values,
    )
    job.check()
    if not 0 <= arguments.wait < float("inf"):
        raise InputError(f"--wait {arguments.wait:g}: use 0 or more seconds")
    if arguments.limit < 0:
        raise InputError(f"--limit {arguments.limit}: use 0 or more")
    config = cluster_config(arguments)
    with database(arguments.db, must_exist=True) as engine:
        from dualwrite.comparison.compare import compare  # here, as it imports a Kafka client

        require_cluster(config)
        result = compare(engine, config, job, wait=arguments.wait, limit=arguments.limit)
    if arguments.json:
        print_json(_as_json(result))
    else:
        _print(result, job)
    return 0 if result.verdict is Verdict.SAME else 1


def _names(words: str) -> list[str]:
    return [word.strip() for word in words.split(",")]


def _print(result: Comparison, job: ComparisonJob) -> None:
    from dualwrite.comparison.key_text import shown

    print(f"{counted(result.rows, 'row')} in table {job.table}")
    print(f"{counted(result.records, 'record')} visible in topic {job.topic}")
    for difference, number in result.differing.items():
        if number:
            print(f"{difference.value}: {counted(number, 'key')}")
            examples = [example for example in result.examples if example.difference is difference]
            for example in examples:
                rows, records = counted(example.rows, "row"), counted(example.records, "record")
                print(f"  {shown(example.key)}  ({rows}, {records})")
            if examples and number > len(examples):
                print(f"  and {number - len(examples):,} more")
    for line in _not_compared(result, job):
        print(f"not compared: {line}")
    if result.differing[Difference.UNSETTLED] or result.after_stable:
        complain(
            "an open transaction, or a change just now, may be the reason; compare again later, or see dualwrite "
            "transactions list"
        )
    if result.differing[Difference.ONLY_IN_TABLE] and result.deleted_before:
        offsets = ", ".join(f"{offset:,} of partition {number}" for number, offset in result.deleted_before.items())
        complain(f"the topic has lost its records before offset {offsets}")
    print(_LAST_LINES[result.verdict])


def _not_compared(result: Comparison, job: ComparisonJob) -> Iterator[str]:
    if result.rows_without_key:
        yield f"{counted(result.rows_without_key, 'row')} with NULL or invalid Unicode in {', '.join(job.key)}"
    if result.first_without_key is not None:
        partition, offset = result.first_without_key
        fields = ", ".join(job.record_key)
        lack = f"without {fields} in a readable JSON value" if fields else "without a key"
        number = counted(result.records_without_key, "record")
        yield f"{number} {lack}; the first at offset {offset:,} of partition {partition}"
    if result.after_stable:
        number = counted(sum(result.after_stable.values()), "record")
        partitions = ", ".join(map(str, result.after_stable))
        yield f"up to {number} after the last stable offset of partition {partitions}"


def _as_json(result: Comparison) -> dict[str, object]:
    from dualwrite.comparison.key_text import shown

    return {
        "verdict": result.verdict.value,
        "rows": result.rows,
        "records": result.records,
        "rows_without_key": result.rows_without_key,
        "records_without_key": result.records_without_key,
        "first_without_key": result.first_without_key,
        "after_last_stable_offset": result.after_stable,
        "differing": {difference.name.lower(): number for difference, number in result.differing.items()},
        "keys": [
            {
                "difference": example.difference,
                "key": shown(example.key),
                "rows": example.rows,
                "records": example.records,
            }
            for example in result.examples
        ],
        "deleted_before": result.deleted_before,
    }
