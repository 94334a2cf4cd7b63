"""``dualwrite compare``: which keys are in a table and not in a topic, and the other way round."""

import argparse

from dualwrite.cli.cluster import add_cluster, cluster_config, require_cluster
from dualwrite.cli.database import add_url, database
from dualwrite.cli.printing import complain, counted, print_json
from dualwrite.comparison.job import Comparison, ComparisonJob, Difference
from dualwrite.errors import InputError


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
        "--wait", type=float, default=5.0, metavar="SECONDS", help="look again so long at keys that differ (5)"
    )
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="the keys to show of each difference (20)")
    parser.add_argument("--json", action="store_true", help="for programs")
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare both sides, and print the differences; 1 if there are any.

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
    return 0 if result.is_equal else 1


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
    if result.rows_without_key:
        print(f"not compared: {counted(result.rows_without_key, 'row')} with NULL in {', '.join(job.key)}")
    if result.records_without_key:
        lack = f"without {', '.join(job.record_key)} in a JSON value" if job.record_key else "without a key"
        print(f"not compared: {counted(result.records_without_key, 'record')} {lack}")
    if result.differing[Difference.UNSETTLED]:
        complain(
            f"{counted(result.differing[Difference.UNSETTLED], 'key')} not settled: changed just now, or with records "
            "after the last stable offset; compare again later, or see dualwrite transactions list"
        )
    if result.differing[Difference.ONLY_IN_TABLE] and result.deleted_before:
        offsets = ", ".join(f"{offset:,} of partition {number}" for number, offset in result.deleted_before.items())
        complain(f"the topic has lost its records before offset {offsets}")
    print("both sides are the same" if result.is_equal else "THE TWO SIDES DIFFER")


def _as_json(result: Comparison) -> dict[str, object]:
    from dualwrite.comparison.key_text import shown

    return {
        "equal": result.is_equal,
        "rows": result.rows,
        "records": result.records,
        "rows_without_key": result.rows_without_key,
        "records_without_key": result.records_without_key,
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
