"""Asks before something is lost for good."""

import argparse
import sys

from dualwrite.errors import InputError


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add ``--yes``."""
    parser.add_argument("--yes", action="store_true", help="do not ask; needed if standard input is no terminal")


def require_confirmation(arguments: argparse.Namespace, act: str) -> None:
    """Return if ``--yes`` was given, or if the person at the terminal agrees to ``act``.

    :param act: what will be done, such as "delete topic orders".
    :raises InputError: otherwise.
    """
    if arguments.yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError(f"not confirmed: add --yes to {act}")
    print(f"{act}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("not confirmed: nothing was changed")
