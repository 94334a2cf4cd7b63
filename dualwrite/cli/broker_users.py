"""``dualwrite broker users``: the users of a running broker, or of a stopped one's data directory."""

import argparse
import getpass
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from dualwrite.broker.access.scram_credentials import (
    DEFAULT_ITERATIONS,
    LEAST_ITERATIONS,
    MECHANISMS,
    MOST_ITERATIONS,
    ScramHash,
)
from dualwrite.broker.core.credential_changes import CredentialResult, DescribedUser
from dualwrite.cli.actions import Action, add_action
from dualwrite.cli.cluster import add_settings, cluster_config
from dualwrite.cli.printing import counted, print_json, table
from dualwrite.errors import ConfigurationError
from dualwrite.wire.error_codes import ErrorCode


class Users(Protocol):
    """The users of a broker."""

    def describe(self) -> list[DescribedUser]:
        """All users."""

    def put(self, user: str, scrams: Sequence[ScramHash], iterations: int, password: bytes) -> list[CredentialResult]:
        """Set the credentials of ``user`` for ``scrams``."""

    def delete(self, user: str, scrams: Sequence[ScramHash]) -> list[CredentialResult]:
        """Delete the credentials of ``user`` for ``scrams``."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = _action(actions, "list", _list, "every user with its mechanisms")
    listing.add_argument("--json", action="store_true", help="for programs")
    setting = _action(actions, "set", _set, "create a user, or change its password")
    setting.add_argument("user", metavar="USER", help="the user's name")
    setting.add_argument(
        "--password-file", type=Path, metavar="FILE", help="a file whose first line is the password (default: asks)"
    )
    setting.add_argument(
        "--iterations",
        type=_iterations,
        default=DEFAULT_ITERATIONS,
        metavar="N",
        help=f"{LEAST_ITERATIONS} to {MOST_ITERATIONS}: more make passwords harder to guess (%(default)s)",
    )
    deleting = _action(actions, "delete", _delete, "delete a user; its open connections remain")
    deleting.add_argument("user", metavar="USER", help="the user's name")
    for subparser in (setting, deleting):
        subparser.add_argument(
            "--mechanism",
            action="append",
            choices=sorted(MECHANISMS),
            help="only this mechanism; may be repeated (default: both)",
        )


def _action(actions: Any, name: str, action: Action, purpose: str) -> argparse.ArgumentParser:
    subparser = add_action(actions, name, action, purpose)
    where = subparser.add_mutually_exclusive_group(required=True)
    where.add_argument("--data-dir", metavar="DIR", help="the data directory of a broker that is not running")
    where.add_argument(
        "--bootstrap-server",
        "--bootstrap-servers",
        dest="bootstrap_servers",
        metavar="HOST:PORT",
        help="a running broker",
    )
    add_settings(subparser)
    return subparser


def _iterations(text: str) -> int:
    if not text.isdecimal() or not LEAST_ITERATIONS <= int(text[:9]) <= MOST_ITERATIONS:
        raise argparse.ArgumentTypeError(f"{text!r}: use {LEAST_ITERATIONS} to {MOST_ITERATIONS}")
    return int(text)


def _list(arguments: argparse.Namespace) -> int:
    with _users(arguments) as users:
        described = sorted(users.describe())
    rows = [(user.user, scram.mechanism, iterations) for user in described for scram, iterations in user.credentials]
    if arguments.json:
        print_json([{"user": user, "mechanism": name, "iterations": iterations} for user, name, iterations in rows])
    elif rows:
        print("\n".join(table(("USER", "MECHANISM", "ITERATIONS"), [(*row[:2], str(row[2])) for row in rows])))
    else:
        print("no users")
    return 0


def _set(arguments: argparse.Namespace) -> int:
    if not arguments.user:
        raise ConfigurationError("user '': name one")
    password = _password(arguments)
    scrams = _mechanisms(arguments)
    with _users(arguments, create=True) as users:
        _require_success(users.put(arguments.user, scrams, arguments.iterations, password.encode()))
    print(f"user {arguments.user}: set {', '.join(scram.mechanism for scram in scrams)}")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with _users(arguments) as users:
        known = {user.user: [scram for scram, _ in user.credentials] for user in users.describe()}
        scrams = [scram for scram in _mechanisms(arguments) if scram in known.get(arguments.user, ())]
        if not scrams:
            names = ", ".join(arguments.mechanism or sorted(MECHANISMS))
            raise ConfigurationError(f"user {arguments.user!r} has no credential for {names}")
        _require_success(users.delete(arguments.user, scrams))
    print(f"user {arguments.user}: deleted {counted(len(scrams), 'credential')}")
    return 0


def _mechanisms(arguments: argparse.Namespace) -> list[ScramHash]:
    return sorted({MECHANISMS[name] for name in arguments.mechanism or MECHANISMS})


def _password(arguments: argparse.Namespace) -> str:
    """The new password, from a file, from a pipe, or typed twice."""
    origin = "the password"
    try:
        if arguments.password_file is not None:
            origin = f"--password-file {arguments.password_file}"
            password = _first_line(arguments.password_file)
        elif sys.stdin is None:
            raise ConfigurationError(
                "standard input is closed: give the password there, or in a file (--password-file)"
            )
        elif not sys.stdin.isatty():
            origin = "standard input"
            password = sys.stdin.readline().rstrip("\r\n")
        else:
            password = getpass.getpass(f"Password of {arguments.user}: ")
            if getpass.getpass("Again: ") != password:
                raise ConfigurationError("the passwords differ")
        password.encode()
    except UnicodeError:  # in some locales a byte that is not UTF-8 is found as it is encoded again
        raise ConfigurationError(f"{origin}: it is not UTF-8") from None
    except EOFError:
        raise ConfigurationError("no password was typed: nothing was changed") from None
    if not password or "\0" in password:
        raise ConfigurationError(f"{origin}: the password is empty, or has a zero byte")
    return password


def _first_line(file: Path) -> str:
    try:
        return (file.read_text(encoding="utf-8-sig").splitlines() or [""])[0]
    except OSError as error:
        raise ConfigurationError(f"--password-file {file}: {error.strerror}") from None


def _require_success(results: Sequence[CredentialResult]) -> None:
    for result in results:
        if result.error is not ErrorCode.NONE:
            raise ConfigurationError(f"user {result.user}: {result.message or result.error.name}")


@contextmanager
def _users(arguments: argparse.Namespace, create: bool = False) -> Iterator[Users]:
    """The users of the broker that the arguments name."""
    if arguments.data_dir is None:
        from dualwrite.cli.cluster_users import ClusterUsers

        yield ClusterUsers(cluster_config(arguments))
        return
    from dualwrite.broker.offline_users import open_users
    from dualwrite.broker.process.data_dir import parse_data_dir

    if arguments.command_config is not None or arguments.settings:
        raise ConfigurationError("--command-config and -X are for --bootstrap-server: --data-dir needs no connection")
    with open_users(parse_data_dir(arguments.data_dir), create) as users:
        yield users
