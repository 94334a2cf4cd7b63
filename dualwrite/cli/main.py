"""The ``dualwrite`` command: imports only the module of the requested verb, and turns errors into one line.

A verb is a module with two functions: ``configure(parser)`` adds its arguments, ``run(arguments)`` does the work and
returns the exit code. Exit codes: 0 success; 1 the work is done, with a bad result; 2 the command failed, and one line
on stderr has the reason; 130 interrupted by Ctrl-C. Also 1, without a message, if stdout is closed. docs/operations.md
explains the exit codes of each verb for operators.
"""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from types import ModuleType
from typing import Any, NoReturn

from dualwrite.errors import DualWriteError, KafkaRefusedError
from dualwrite.extras import advice, missing_library
from dualwrite.operations.phrases import printable
from dualwrite.version import __version__

UNREAD = 1
FAILED = 2
INTERRUPTED = 130

VERBS = {
    "acls": "list, add and remove access control lists of a cluster",
    "broker": "run the bundled broker",
    "compare": "compare a table with a topic, key by key",
    "console": "serve a page that says whether anything is wrong, and why",
    "consume": "show the records of a topic, each with the state of its transaction",
    "db": "create, show, upgrade and downgrade the tables in a database",
    "demo": "load real rows through kill -9 and compare both sides",
    "doctor": "find problems of dual writes with a database and a cluster",
    "groups": "show consumer groups and their lag, move their offsets, and delete them",
    "load": "load a file into a table and a topic, each batch in both or in neither",
    "move": "move topics, consumer groups and applications to another Kafka cluster",
    "recover": "end the transactions of an application's dead processes, as the database decided",
    "topics": "list, create, describe and delete topics",
    "transactions": "show open transactions, and end them: as the database decided, or by force",
}

_ROOMS = {name: f"kafka.{name}" for name in ("acls", "consume", "groups", "topics")}
"""Where the modules of verbs are that are not beside this one."""

_LISTS = {
    "UNKNOWN_TOPIC_OR_PARTITION": "`dualwrite topics list`",
    "GROUP_ID_NOT_FOUND": "`dualwrite groups list`",
}
"""The command that lists what there is, by Kafka's name of the error for what there is not."""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, like every other error."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but first refuse an option that stands before the verb or action it belongs to: argparse would
        take the option's value for a verb."""
        if self._subparsers is not None:
            self._refuse_early_options(args or ())
        return super().parse_known_args(args, namespace)

    def _refuse_early_options(self, words: Sequence[str]) -> None:
        (verbs,) = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        for word in takewhile(lambda word: word != "--" and word not in verbs.choices, words):
            name = word.partition("=")[0]
            if name.startswith("--") and not any(known.startswith(name) for known in self._option_string_actions):
                self.error(f"unknown option {name} before {verbs.metavar}: an option follows what it belongs to")

    def error(self, message: str) -> NoReturn:
        print(f"dualwrite: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(FAILED)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (by default the process's arguments), and return its exit code.

    :raises SystemExit: after ``--help`` and ``--version``, and for invalid arguments.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell (>&-): also keeps a database's file from taking its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack a letter of a key or of a name
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _carried_out(words)
    except SystemExit as end:
        raise SystemExit(_written(int(end.code or 0))) from None
    except OSError as error:
        code = _unwritten(error)
        if not code:
            raise
        return code
    return _written(code)


def _carried_out(words: Sequence[str]) -> int:
    """Run the command in ``words``; return the exit code."""
    try:
        parser, verb = parser_for(words)
        arguments = parser.parse_args(words)
        if verb is None:
            parser.error("name a verb: " + ", ".join(VERBS))
        _require_text(parser, arguments)
        code: int = verb.run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except DualWriteError as error:
        return _failed(f"{error}{_next_step(error)}")
    except ModuleNotFoundError as error:
        library = missing_library(error)
        if library is None:
            raise
        return _failed(advice(library))
    return code


def parser_for(words: Sequence[str]) -> tuple[argparse.ArgumentParser, ModuleType | None]:
    """A parser with every verb's name, and with the arguments of the verb in ``words``."""
    parser = _Parser(prog="dualwrite", description="A SQL database and Kafka that commit together or not at all.")
    parser.add_argument("--version", action="version", version=f"dualwrite {__version__}")
    subparsers = parser.add_subparsers(title="verbs", metavar="VERB")
    chosen = next((word for word in words if not word.startswith("-")), None)
    verb = None
    for name, purpose in VERBS.items():
        subparser = subparsers.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        if name == chosen:
            verb = importlib.import_module(f"dualwrite.cli.{_ROOMS.get(name, name)}")
            verb.configure(subparser)
    return parser, verb


def _require_text(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse arguments that are not UTF-8, except paths: another program could not get them."""
    for value in vars(arguments).values():
        for word in value if isinstance(value, list) else [value]:
            if isinstance(word, str) and any("\ud800" <= letter <= "\udfff" for letter in word):
                parser.error(f"{word!r} is not UTF-8")


def _next_step(error: DualWriteError) -> str:
    """What to do about a right that is missing, or a topic or a group that does not exist."""
    if not isinstance(error, KafkaRefusedError):
        return ""
    if error.name in _LISTS:
        return f"; {_LISTS[error.name]} shows which there are"
    if not error.name.endswith("_AUTHORIZATION_FAILED"):
        return ""
    resource = error.name.removesuffix("_AUTHORIZATION_FAILED").replace("_", " ").lower()
    return f": grant a right on the {resource} with `dualwrite acls add`; docs/reference/acls.md says which"


def _failed(message: str) -> int:
    print("dualwrite: " + printable(" ".join(message.split())), file=sys.stderr)
    return FAILED


def _unwritten(error: OSError) -> int:
    """The exit code if ``error``, which ended a verb, came from stdout, else 0.

    A stream that failed once fails again, even if it is unbuffered and has dropped its data.
    """
    if error.filename is not None or sys.stdout is None:
        return 0
    try:
        print(flush=True)
    except OSError as again:
        return _lost(again, 0) if again.errno == error.errno else 0
    return 0


def _written(code: int) -> int:
    """Flush stdout. Return ``code``, or the exit code of a failed flush."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        return _lost(error, code)
    return code


def _lost(error: OSError, code: int) -> int:
    """The exit code after stdout failed with ``error``, instead of the verb's ``code``."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())  # the interpreter flushes once more when it ends
    os.close(devnull)
    if isinstance(error, BrokenPipeError):
        return code or UNREAD
    return _failed(f"cannot write to standard output: {error.strerror}")
