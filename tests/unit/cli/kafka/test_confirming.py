"""What is lost for good is done only after a yes."""

import argparse
import io

import pytest

from dualwrite.cli.kafka.confirming import require_confirmation
from dualwrite.errors import InputError


class AnsweringTerminal(io.StringIO):
    """A standard input at which somebody sits."""

    def isatty(self) -> bool:
        return True


def ask(yes: bool = False) -> None:
    require_confirmation(argparse.Namespace(yes=yes), "delete it")


@pytest.mark.parametrize("answer", ["y\n", "YES\n", " yes \n"])
def test_a_yes_at_the_terminal_is_enough(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", AnsweringTerminal(answer))
    ask()
    assert capsys.readouterr() == ("", "delete it? [y/N] ")


@pytest.mark.parametrize("answer", ["\n", "n\n", "", "yesterday\n"])
def test_anything_else_at_the_terminal_is_a_no(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", AnsweringTerminal(answer))
    with pytest.raises(InputError, match="not confirmed: nothing was changed"):
        ask()


@pytest.mark.parametrize("stdin", [io.StringIO("yes\n"), None])
def test_without_a_terminal_nobody_is_asked(stdin: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(InputError, match="not confirmed: add --yes to delete it"):
        ask()


def test_yes_on_the_command_line_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", AnsweringTerminal("no\n"))
    ask(yes=True)
    assert capsys.readouterr() == ("", "")
