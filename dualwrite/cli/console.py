"""``dualwrite console``: one page in the browser that says whether anything is wrong."""

import argparse
import logging
import os
import socket
import sys
from ipaddress import ip_address
from math import isfinite
from pathlib import Path

from dualwrite.broker.clients.bind_errors import bind_refusal
from dualwrite.cli.cluster import add_cluster, add_two_phase, cluster_config
from dualwrite.cli.database import add_database, database
from dualwrite.errors import ConfigurationError, InputError
from dualwrite.extras import brought_by

PORT = 8939
MOST_CONNECTIONS = 256
"""Beyond them the answer is 503."""
PASSWORD_VARIABLE = "DUALWRITE_CONSOLE_PASSWORD"  # noqa: S105  the name of a variable


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_database(parser)
    add_cluster(parser)
    parser.add_argument("--application", metavar="NAME", help="show only the slots of this application")
    parser.add_argument(
        "--actions",
        action="store_true",
        help="offer to resolve, to terminate and to acknowledge; without it the console changes nothing",
    )
    add_two_phase(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="listen there (127.0.0.1)")
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help=f"listen there; 0 for any ({PORT})")
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name under which browsers reach the console, beside localhost and addresses; may be repeated",
    )
    secret = parser.add_mutually_exclusive_group()
    secret.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help=f"the console's password, at least 12 characters; else of the variable {PASSWORD_VARIABLE}",
    )
    secret.add_argument(
        "--no-password", action="store_true", help="serve all who reach it, also on another address than loopback"
    )
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (2)")
    parser.add_argument(
        "--long",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="report a transaction that is open for longer, although its owner is alive (60)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve the console until Ctrl-C.

    :raises DualWriteError: if an argument is wrong, or the address is in use. The message is meant for the user.
    """
    if arguments.application == "":
        raise InputError("--application is empty: name the application, or leave it out")
    for option, seconds in (("--interval", arguments.interval), ("--long", arguments.long)):
        if not (isfinite(seconds) and 0 < seconds <= 86400):
            raise InputError(f"{option} {seconds:g}: use a number of seconds above 0, up to 86400")
    if not 0 <= arguments.port < 65536:
        raise InputError(f"--port {arguments.port}: use 0 to 65535")
    config = cluster_config(arguments)
    password = _password(arguments)
    with brought_by("console"):
        import uvicorn

        from dualwrite.console.app import ConsoleSettings, console_app

    with database(arguments.db, must_exist=True, schema=arguments.schema) as engine:
        console = console_app(
            engine,
            config,
            application=arguments.application,
            two_phase=arguments.two_phase,
            actions=arguments.actions,
            password=password,
            anonymous=password is None,
            allowed_hosts=arguments.allowed_host,
            settings=ConsoleSettings(interval=arguments.interval, long_seconds=arguments.long),
        )

        class Server(uvicorn.Server):
            """Ends the live pages first: else it would wait for them."""

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                console.close()
                await super().shutdown(sockets)

        with _listening(arguments.host, arguments.port) as listener:
            port = listener.getsockname()[1]
            host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
            _show_log()
            print(f"the console is at http://{host}:{port}/ until Ctrl-C", flush=True)
            settings = uvicorn.Config(
                console,
                log_level="error",
                lifespan="off",
                server_header=False,
                ws="none",
                proxy_headers=False,  # a client could name another address, and guess passwords from each
                limit_concurrency=MOST_CONNECTIONS + 1,  # uvicorn refuses the one that reaches it
            )
            Server(settings).run(sockets=[listener])
    return 0


def _show_log() -> None:
    """Show on stdout who has done what in the console, and its unforeseen errors."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("dualwrite.console")
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def _password(arguments: argparse.Namespace) -> str | None:
    """The password; None to serve without one.

    :raises ConfigurationError: if the file cannot be read, or there is no password and others reach the address.
    """
    if arguments.no_password:
        return None
    if arguments.password_file is not None:
        try:
            return str(arguments.password_file.read_text(encoding="utf-8-sig")).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigurationError(f"--password-file {arguments.password_file}: {why}") from None
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None and not _is_loopback(arguments.host):
        raise ConfigurationError(
            f"--host {arguments.host} is reached from other machines: set a password with --password-file or "
            f"{PASSWORD_VARIABLE}, or serve all with --no-password"
        )
    return password


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    :raises ConfigurationError: if there is no such address, or it is in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"--host {host}: {error.strerror}") from None
    except UnicodeError:  # a label that is empty or too long, as in a..b
        raise ConfigurationError(f"--host {host}: this is no host name") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen at {host}:{port}: {bind_refusal(error, '--port')}") from None
    return listener
