"""Carry out the examples of the site's pages: ``python docs/site_runner.py`` reads a job as JSON and writes results.

The job has the steps of each page, by the page's name, as site_examples.Step has them, and files that pages share. The
results are those of site_examples.Result, up to the first step that failed.

Each page has a directory and a process of its own, and so has each command of a console. They are forks of this
process, which has imported the library. Pages run one after the other. The broker is the bundled one, and empty when a
page begins; no page needs it if none names its address.
"""

import json
import os
import runpy
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, TypeAlias

from dualwrite.cli.main import main as dualwrite
from dualwrite.schema import upgrade_engine
from dualwrite.testing.kafka import KafkaBroker

_Step: TypeAlias = dict[str, Any]
_Result: TypeAlias = dict[str, Any]

_ADDRESS = "127.0.0.1:9092"
_SECONDS = 300  # of a page, and of a command: a machine may be busy
_SHOP = "shop.py"
_IMPORTED_ONCE = ("dualwrite.coordinator.aio.dual_write", "dualwrite.coordinator.dual_write", "sqlalchemy.orm")


def main() -> int:
    """Carry out the job on stdin, write the results to stdout."""
    text = sys.stdin.read()
    job = json.loads(text)
    for name in _IMPORTED_ONCE:
        import_module(name)
    with TemporaryDirectory(prefix="dualwrite-docs-") as home, ExitStack() as running:
        broker = running.enter_context(KafkaBroker(Path(home, "broker"))) if _ADDRESS in text else None
        results = {}
        for number, (name, steps) in enumerate(job["pages"].items()):
            results[name] = _page(name, steps, job["shared"], Path(home, str(number)), broker)
    json.dump(results, sys.stdout)
    return 0


def _page(
    name: str, steps: list[_Step], shared: list[_Step], directory: Path, broker: KafkaBroker | None
) -> list[_Result]:
    """What the steps of one page did, up to the first that failed."""
    directory.mkdir()
    address = _ADDRESS if broker is None else broker.bootstrap_servers
    files = {step["name"]: step for step in [*shared, *steps] if step["kind"] == "file"}
    for file, step in files.items():
        (directory / file).write_text(step["text"].replace(_ADDRESS, address), encoding="utf-8")
    makes_tables = _SHOP in files and files[_SHOP] not in steps  # a page that has the file makes them itself
    report, output = directory.with_suffix(".report"), directory.with_suffix(".output")
    report.touch()

    def prepare() -> None:
        if broker is not None:
            broker.reset()
        if makes_tables:
            _make_tables_of_the_shop()

    def carry_out() -> None:
        with report.open("w", encoding="utf-8") as file:
            for result in _results(name, [{**step, "text": step["text"].replace(_ADDRESS, address)} for step in steps]):
                result["output"] = result["output"].replace(address, _ADDRESS)
                file.write(json.dumps(result) + "\n")
                file.flush()

    def said() -> str:
        return output.read_text(encoding="utf-8", errors="replace").strip()[-2000:]

    if status := _forked(prepare, directory, output):
        raise SystemExit(f"{name}: {_end(status)}; {said()}")
    output.unlink()
    status = _forked(carry_out, directory, output)
    results = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    if status:
        results.append({"output": "", "error": f"the process ended: {_end(status)}; {said()}"})
    return results


def _make_tables_of_the_shop() -> None:
    shop = import_module(_SHOP.removesuffix(".py"))
    upgrade_engine(shop.engine)
    shop.metadata.create_all(shop.engine)


def _results(name: str, steps: list[_Step]) -> Iterator[_Result]:
    """What each step did, up to the first that failed."""
    module = sys.modules["__main__"] = ModuleType("__main__")
    for step in steps:
        before = _size()
        error, line = None, 0
        if step["kind"] == "python":
            code = "\n" * (step["line"] - 1) + step["text"]
            try:
                exec(compile(code, name, "exec"), module.__dict__)  # noqa: S102  what the page says
            except BaseException as raised:  # noqa: BLE001  a page may also raise SystemExit: it is reported
                error, line = _said(raised), _line_in(name, raised)
        elif step["kind"] == "command":
            status = _forked(partial(_command, shlex.split(step["text"])))
            if status == signal.SIGKILL:
                sys.stdout.write("Killed\n")  # as a shell says it
            elif status:
                error = f"{step['text']!r}: {_end(status)}; {_written_since(before)}"
        yield {"output": _written_since(before), "error": error, "line": line}
        if error is not None:
            return


def _command(words: list[str]) -> None:
    sys.argv = words[1:] if words[0] == "python" else words
    if words[0] == "dualwrite":
        sys.exit(dualwrite(words[1:]))
    elif words[:2] == ["python", "-c"]:
        exec(words[2], ModuleType("__main__").__dict__)  # noqa: S102  what the page says
    elif words[0] == "python":
        runpy.run_path(words[1], run_name="__main__")
    else:
        raise ValueError(f"{words[0]} is not a command of the examples")


def _forked(function: Callable[[], None], directory: Path | None = None, output: Path | None = None) -> int:
    """Call ``function`` in a child process, and wait for its end; return its wait status.

    :param directory: where it works.
    :param output: the file for all that it prints. None: it prints where this process does.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    code = 1
    try:
        signal.alarm(_SECONDS)
        if directory is not None:
            os.chdir(directory)
            sys.path[0] = str(directory)
        if output is not None:
            descriptor = os.open(output, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
        function()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001  the parent process hears of it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _size() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fstat(1).st_size


def _written_since(before: int) -> str:
    """What this process and its children have printed since the output had the size ``before``."""
    text = os.pread(1, _size() - before, before).decode(errors="backslashreplace")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def _end(status: int) -> str:
    if os.WIFEXITED(status):
        return f"exit code {os.WEXITSTATUS(status)}"
    ended_by = signal.Signals(os.WTERMSIG(status))
    return f"not done after {_SECONDS} seconds" if ended_by is signal.SIGALRM else f"{ended_by.name}"


def _said(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _line_in(name: str, error: BaseException) -> int:
    """The innermost line of the page in the traceback; 0 if there is none."""
    if isinstance(error, SyntaxError) and error.filename == name:
        return error.lineno or 0
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
    return (frames[-1].lineno or 0) if frames else 0


if __name__ == "__main__":
    sys.exit(main())
