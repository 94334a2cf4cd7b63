"""``dualwrite doctor``: finds problems of dual writes with a database and a cluster, and gives advice."""

import argparse

from dualwrite.cli.cluster import add_cluster, add_two_phase, cluster_config
from dualwrite.cli.database import add_database, database
from dualwrite.cli.printing import print_json, printable
from dualwrite.errors import InputError
from dualwrite.operations.doctor import examine
from dualwrite.operations.findings import Finding, Level, worst


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_database(parser)
    parser.add_argument(
        "--application",
        metavar="NAME",
        help="also check its slots, and two-phase commit under the transactional id NAME-doctor",
    )
    parser.add_argument("--pool-size", type=int, metavar="N", help="as given to DualWrite, to find slots beyond it")
    parser.add_argument("--json", action="store_true", help="for programs")
    add_two_phase(parser)
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    """Examine both sides; 1 if a finding is a failure.

    :raises DualWriteError: if an argument is wrong. The message is meant for the user.
    """
    if arguments.application == "":
        raise InputError("--application is empty: name the application, or leave it out")
    if arguments.pool_size is not None and arguments.pool_size < 1:
        raise InputError(f"--pool-size {arguments.pool_size}: use 1 or more, as for DualWrite")
    config = cluster_config(arguments)
    findings = []
    with database(arguments.db, must_exist=True, schema=arguments.schema) as engine:
        for finding in examine(
            engine,
            config,
            application=arguments.application,
            pool_size=arguments.pool_size,
            two_phase=arguments.two_phase,
        ):
            findings.append(finding)
            if not arguments.json:
                print(_line(finding), flush=True)
    if arguments.json:
        print_json({"level": worst(findings), "findings": [_as_json(finding) for finding in findings]})
    return 1 if worst(findings) is Level.FAILURE else 0


def _line(finding: Finding) -> str:
    advice = f" -> {finding.advice}" if finding.advice else ""
    return printable(f"{finding.level.value:<8} {finding.check}: {' '.join(finding.message.split())}{advice}")


def _as_json(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "level": finding.level,
        "message": finding.message,
        "advice": finding.advice,
    }
