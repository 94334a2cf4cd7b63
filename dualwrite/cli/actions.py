"""The actions of a verb, such as ``list`` of ``dualwrite transactions``."""

import argparse
from collections.abc import Callable
from typing import Any

Action = Callable[[argparse.Namespace], int]
"""Returns one of the exit codes that main.py lists."""


def add_action(actions: Any, name: str, action: Action, purpose: str) -> argparse.ArgumentParser:
    """Add an action that :func:`run_action` runs; return its parser."""
    subparser: argparse.ArgumentParser = actions.add_parser(
        name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}."
    )
    subparser.set_defaults(action=action)
    return subparser


def run_action(arguments: argparse.Namespace) -> int:
    """Run the action; return its exit code.

    :raises DualWriteError: if the action cannot be done; the message is meant for the user.
    """
    action: Action = arguments.action
    return action(arguments)
