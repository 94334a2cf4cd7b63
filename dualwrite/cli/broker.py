"""``dualwrite broker``: run the bundled broker in the foreground."""

import argparse
import logging
from pathlib import Path
from typing import Any


class _ListConfig(argparse.Action):
    """Prints every setting and exits, as ``--help`` does, without the required arguments."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from dualwrite.broker.core.broker_settings import SETTINGS

        for name, setting in sorted(SETTINGS.items()):
            default = "not set" if setting.default is None else setting.default
            print(f"{name} ({default})\n    {setting.documentation}\n    {setting.allowed}")
        parser.exit()


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="where everything is kept")
    parser.add_argument(
        "--listen", default="127.0.0.1:9092", metavar="HOST:PORT", help="port 0 picks a free one (%(default)s)"
    )
    parser.add_argument(
        "--durability",
        choices=("fsync", "os"),
        default="fsync",
        help="acknowledge what is on disk, or what the operating system has taken (%(default)s)",
    )
    parser.add_argument(
        "--config", action="append", nargs="+", default=[], metavar="KEY=VALUE", help="a setting by Kafka's name"
    )
    parser.add_argument(
        "--list-config", action=_ListConfig, nargs=0, help="print every setting: its default, meaning, allowed values"
    )
    parser.add_argument("--ready-file", type=Path, metavar="PATH", help="gets HOST:PORT once connections are accepted")
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="answer Prometheus at http://HOST:PORT/metrics (default: not at all)"
    )
    parser.add_argument("--embedded", action="store_true", help=argparse.SUPPRESS)  # set by EmbeddedBroker


def run(arguments: argparse.Namespace) -> int:
    """Run the broker until it is stopped."""
    from dualwrite.broker.broker import serve
    from dualwrite.broker.config import BrokerOptions, parse_config, parse_listen
    from dualwrite.broker.data_dir import parse_data_dir

    host, port = parse_listen(arguments.listen)
    config = parse_config(pair for pairs in arguments.config for pair in pairs)
    options = BrokerOptions(
        data_dir=parse_data_dir(arguments.data_dir),
        host=host,
        port=port,
        durability=arguments.durability,
        config=config,
        ready_file=arguments.ready_file,
        metrics=parse_listen(arguments.metrics, "metrics address") if arguments.metrics is not None else None,
        embedded=arguments.embedded,
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve(options)
    return 0
