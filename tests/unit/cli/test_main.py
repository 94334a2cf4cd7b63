"""The command: verbs, exit codes, and one line for every error."""

import argparse
import ast
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dualwrite.cli import main as command
from dualwrite.cli.main import VERBS, main
from dualwrite.errors import ConfigurationError, InputError
from dualwrite.extras import EXTRAS
from dualwrite.version import __version__
from tests.support.syntax_trees import parsed


def exit_code(*words: str) -> int:
    """What the process would exit with."""
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A verb ``try`` that does what the test tells it to."""
    module = ModuleType("dualwrite.cli.try")
    module.configure = lambda parser: parser.add_argument("--size", type=int)  # type: ignore[attr-defined]
    module.run = lambda arguments: arguments.size or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(VERBS, "try", "try something out")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def failing(error: BaseException) -> object:
    def run(arguments: argparse.Namespace) -> int:
        raise error

    return run


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"dualwrite {__version__}\n"


def test_the_version_needs_no_more_than_the_standard_library() -> None:
    code = (
        "import sys; from dualwrite.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'sqlalchemy', 'confluent_kafka', 'kafka', 'asyncio', 'crc32c'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"dualwrite {__version__}", "[]"]


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    shown = capsys.readouterr().out
    assert all(f"\n    {name}" in shown for name in VERBS)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(name, "--help") == 0
    assert f"usage: dualwrite {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["list", "describe", "resolve", "acknowledge", "terminate"])
def test_every_action_on_transactions_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("transactions", name, "--help") == 0
    _, description, *_ = capsys.readouterr().out.split("\n\n")
    assert description[0].isupper()
    assert description.endswith(".")


@pytest.mark.parametrize(
    "words",
    [
        *[("topics", action) for action in ("list", "create", "describe", "delete")],
        *[("groups", action) for action in ("list", "describe", "reset-offsets", "delete")],
        *[("acls", action) for action in ("list", "add", "remove")],
    ],
    ids=" ".join,
)
def test_every_action_on_a_cluster_explains_itself(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*words, "--help") == 0
    shown = capsys.readouterr().out
    assert "--bootstrap-servers HOST:PORT" in shown
    assert shown.split("\n\n")[1][0].isupper()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a verb: " + ", ".join(VERBS)),
        (("laod",), "argument VERB: invalid choice: 'laod'"),
        (("try", "--size", "big"), "argument --size: invalid int value: 'big'; see dualwrite try --help"),
        (("try", "--sise"), "unrecognized arguments: --sise"),
        (
            ("--size", "3", "try"),
            "unknown option --size before VERB: an option follows what it belongs to",
        ),
        (
            ("topics", "--bootstrap-servers", "localhost:9092", "list"),
            "unknown option --bootstrap-servers before ACTION: an option follows what it belongs to",
        ),
        (("broker", "--port=9093"), "unknown option --port before COMMAND: an option follows what it belongs to"),
        (("broker", "--data-dir", "d", "--port", "9093"), "unknown option --port before COMMAND"),
        (("load", "f.csv"), "the following arguments are required: --db, --table, --topic, --bootstrap-servers"),
    ],
)
@pytest.mark.usefixtures("verb")
def test_wrong_arguments_give_one_line_and_exit_code_2(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"dualwrite: {message}")
    assert (shown.out, shown.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("words", [("--name", "b\udcff"), ("one", "b\udcff")])
def test_a_name_that_is_not_utf_8_is_refused(
    verb: ModuleType, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--name")
        parser.add_argument("names", nargs="*")
        parser.add_argument("--file", type=Path)

    verb.configure = configure  # type: ignore[attr-defined]
    verb.run = lambda arguments: 0  # type: ignore[attr-defined]
    assert exit_code("try", "--file", "b\udcff") == 0
    assert exit_code("try", *words) == 2
    assert capsys.readouterr().err == "dualwrite: 'b\\udcff' is not UTF-8; see dualwrite --help\n"


def test_a_verbs_result_is_the_exit_code(verb: ModuleType) -> None:
    assert (exit_code("try"), exit_code("try", "--size", "1")) == (0, 1)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("f.csv, line 3: no"), "dualwrite: f.csv, line 3: no\n"),
        (ConfigurationError("on\nseveral\n  lines"), "dualwrite: on several lines\n"),
        (InputError("no slot of \u202eorders\x1b[2J"), "dualwrite: no slot of \\u202eorders\\x1b[2J\n"),
        (
            ModuleNotFoundError("No module named 're2'", name="re2"),
            "dualwrite: re2 is not installed; run pip install '.[broker]' in a clone of dualwrite\n",
        ),
        (
            ModuleNotFoundError("No module named 'psycopg'", name="psycopg"),
            "dualwrite: psycopg is not installed; run pip install '.[postgresql]' in a clone of dualwrite\n",
        ),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(
    verb: ModuleType, error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb.run = failing(error)  # type: ignore[attr-defined]
    assert exit_code("try") == 2
    assert capsys.readouterr() == ("", line)


BASE = {"alembic", "confluent_kafka", "cramjam", "crc32c", "kafka", "sqlalchemy"}
"""What an installation without extras has."""
WITHOUT_IT_SLOWER = {"uvloop"}
LOADS_IT = {"pytest"}  # only pytest itself imports the plugin


@pytest.mark.slow
def test_every_library_of_an_extra_is_known_by_its_name() -> None:
    package = Path(command.__file__).parents[1]
    imported = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(parsed(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    of_extras = imported - sys.stdlib_module_names - BASE - WITHOUT_IT_SLOWER - LOADS_IT - {"dualwrite", "_typeshed"}
    assert {"re2", "prometheus_client"} <= of_extras <= set(EXTRAS)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("library", "more"), [("re2", ()), ("prometheus_client", ("--metrics", "127.0.0.1:0"))], ids=["re2", "metrics"]
)
def test_a_broker_without_its_extra_says_what_to_install(library: str, more: tuple[str, ...], tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; from dualwrite.cli.main import main; sys.exit(main())"
    words = ("broker", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", *more)
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    line = f"dualwrite: {library} is not installed; run pip install '.[broker]' in a clone of dualwrite\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_an_unexpected_error_is_not_hidden(verb: ModuleType) -> None:
    verb.run = failing(ZeroDivisionError())  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        main(["try"])
    verb.run = failing(ModuleNotFoundError("No module named 'x'", name="x"))  # type: ignore[attr-defined]
    with pytest.raises(ModuleNotFoundError):
        main(["try"])


def test_ctrl_c_is_quiet(verb: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    verb.run = failing(KeyboardInterrupt())  # type: ignore[attr-defined]
    assert exit_code("try") == command.INTERRUPTED == 130
    assert capsys.readouterr() == ("", "")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "dualwrite", "nothing"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_terminal_that_lacks_a_letter_gets_its_code() -> None:
    """For example a key in the output, or a name in an error."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    program = "from dualwrite.cli.main import main\ntry:\n    main(['--version'])\nexcept SystemExit:\n    print('ü')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "\\xfc"


def with_stdout(stdout: int, *words: str, unbuffered: bool = False) -> tuple[int, str]:
    """The exit code and stderr of a process that writes to ``stdout``."""
    program = [sys.executable, "-m", "dualwrite", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    done = subprocess.run(
        program, stdout=stdout, stderr=subprocess.PIPE, env=environment, text=True, check=False, timeout=60
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_closed_stdout_ends_the_command_quietly(tmp_path: Path, unbuffered: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        upgraded = with_stdout(writer, "db", "upgrade", "--db", f"sqlite:///{tmp_path / 'x.db'}", unbuffered=unbuffered)
        assert upgraded == (1, "")
        assert with_stdout(writer, "db", "current", "--db", "nonsense")[0] == 2
    finally:
        os.close(writer)


def test_help_to_a_closed_stdout_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert with_stdout(writer, "--help") == (1, "")
    finally:
        os.close(writer)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_full_stdout_is_one_line_and_exit_code_2(tmp_path: Path, unbuffered: bool) -> None:
    with Path("/dev/full").open("w") as full:
        done = with_stdout(
            full.fileno(), "db", "upgrade", "--db", f"sqlite:///{tmp_path / 'x.db'}", unbuffered=unbuffered
        )
    assert done == (2, "dualwrite: cannot write to standard output: No space left on device\n")


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), FileNotFoundError(2, "No such file", "x")])
def test_an_error_that_is_not_of_stdout_is_not_hidden(verb: ModuleType, error: OSError) -> None:
    verb.run = failing(error)  # type: ignore[attr-defined]
    with pytest.raises(type(error)):
        main(["try"])
