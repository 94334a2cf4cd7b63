"""``dualwrite broker``: run the bundled broker in the foreground; ``dualwrite broker users``: change its users."""

import argparse
import sys
from pathlib import Path
from typing import Any

from dualwrite.cli import broker_users
from dualwrite.cli.actions import run_action
from dualwrite.errors import ConfigurationError


class _ListConfig(argparse.Action):
    """Prints every setting and exits, as ``--help`` does, without the required arguments."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from dualwrite.broker.settings.broker_settings import SETTINGS

        for name, setting in sorted(SETTINGS.items()):
            default = "not set" if setting.default is None else setting.default
            print(f"{name} ({default})\n    {setting.documentation}\n    {setting.allowed}")
        parser.exit()


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.set_defaults(refuse=parser.error, users=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    users = commands.add_parser("users", help="list, set and delete users, instead of running a broker")
    users.set_defaults(users=run_action)
    broker_users.configure(users)
    parser.add_argument("--data-dir", metavar="DIR", help="the directory for all data (required)")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="short for --config listeners=PLAINTEXT://HOST:PORT; port 0 picks a free one (127.0.0.1:9092)",
    )
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="allow a listener that other machines reach and that authenticates no client",
    )
    parser.add_argument(
        "--durability",
        choices=("fsync", "os"),
        default="fsync",
        help="acknowledge records once they are on disk, or once the operating system has them (%(default)s)",
    )
    parser.add_argument(
        "--config", action="append", nargs="+", default=[], metavar="KEY=VALUE", help="a setting by Kafka's name"
    )
    parser.add_argument(
        "--config-file",
        type=Path,
        metavar="PATH",
        help="settings in the form of Kafka's server.properties, so that no password is on a command line;"
        " --config takes precedence",
    )
    parser.add_argument(
        "--list-config", action=_ListConfig, nargs=0, help="print every setting: its default, meaning, allowed values"
    )
    parser.add_argument(
        "--ready-file", type=Path, metavar="PATH", help="gets HOST:PORT of each listener once the broker is ready"
    )
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve Prometheus metrics at http://HOST:PORT/metrics (default: none)"
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="the format of the log on standard error: lines of text, or one JSON object a line (%(default)s)",
    )
    parser.add_argument(
        "--audit-log",
        type=Path,
        metavar="PATH",
        help="append the lines about administrative acts to this file, instead of the log",
    )
    parser.add_argument(
        "--stop-timeout", type=float, default=10.0, metavar="SECONDS", help="the longest time for a stop (%(default)s)"
    )
    parser.add_argument("--embedded", action="store_true", help=argparse.SUPPRESS)  # set by EmbeddedBroker


def _refuse(problems: list[str]) -> None:
    """Report every problem with the settings, each in a line.

    :raises ConfigurationError: with the last one, if there is one.
    """
    for problem in problems[:-1]:
        print(f"dualwrite: {problem}", file=sys.stderr)
    if problems:
        raise ConfigurationError(problems[-1])


def run(arguments: argparse.Namespace) -> int:
    """Run the broker until it is stopped; or list or change its users."""
    if arguments.users is not None:
        code: int = arguments.users(arguments)
        return code
    from dualwrite.broker.api.auditing.audit_log import AUDIT_LOGGER
    from dualwrite.broker.broker import serve
    from dualwrite.broker.config import (
        BrokerOptions,
        parse_config,
        parse_listen,
        read_config_file,
        setting_problems,
        with_data_dir,
        with_listen,
    )
    from dualwrite.broker.process.data_dir import parse_data_dir
    from dualwrite.broker.process.log_lines import log_to_file, log_to_standard_error

    in_file = read_config_file(arguments.config_file) if arguments.config_file is not None else {}
    given = {**in_file, **parse_config(pair for pairs in arguments.config for pair in pairs)}
    config, directory = with_data_dir(given, arguments.data_dir)
    if directory is None:
        directory = arguments.refuse("the following arguments are required: --data-dir")
    _refuse(list(setting_problems(config)))
    options = BrokerOptions(
        data_dir=parse_data_dir(directory),
        durability=arguments.durability,
        config=with_listen(config, arguments.listen),
        ready_file=arguments.ready_file,
        metrics=parse_listen(arguments.metrics, "metrics address") if arguments.metrics is not None else None,
        stop_timeout=arguments.stop_timeout,
        embedded=arguments.embedded,
        allow_anonymous=arguments.allow_anonymous,
    )
    log_to_standard_error(arguments.log_format)
    if arguments.audit_log is not None:
        log_to_file(AUDIT_LOGGER, arguments.audit_log, arguments.log_format)
    serve(options)
    return 0
