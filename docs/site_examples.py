"""The examples of the site run as it is built, and what they print is shown below them.

A Python block behind ``<!-- output -->`` is run, and must print something. On a page with such a block, those behind
``<!-- run -->`` are run, too, and must print nothing. The blocks of a page share their names, as if a reader typed them
one after the other. A console's commands behind ``<!-- output -->`` must print what the page says. A block with a title
is a file in the page's directory; every page has the tutorial's ``shop.py``, and its tables.

An error fails the build. site_runner.py has the rest: a page is a process, and all pages share one broker. (The
README's example starts one of its own.) The code names ``127.0.0.1:9092``; the shared broker listens at a free port.
The two are exchanged in the code and in the output, and nothing else is: what would differ from build to build has no
place in an example.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

_HOME = Path(__file__).parents[1]
_MARKER = "<!-- output -->\n"
_BLOCK = re.compile(
    r'^(?P<markers>(?:<!-- (?:run|output) -->\n)*)```(?P<kind>\w+)(?: title="(?P<title>.*?)")?\n(?P<text>.*?)^```\n',
    re.MULTILINE | re.DOTALL,
)
_KINDS = ("python", "console")
_SHARED_PAGE, _SHARED_FILE = "tutorial.md", "shop.py"
_RESULTS: dict[str, list["Result"]] = {}
"""What each step of each page of this build did."""


@dataclass(frozen=True, slots=True)
class Step:
    """A block that is carried out: ``python``, or ``command`` of a console, or a ``file`` of the given name."""

    kind: str
    line: int
    text: str
    name: str = ""
    printed: str | None = None
    """What it must print; None if that is not written in the page."""
    is_shown: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What a step printed, and why it failed, in which line of the page."""

    output: str
    error: str | None = None
    line: int = 0


@event_priority(-50)
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Run the examples of all pages; after the pages that are made of other files are there.

    :raises PluginError: naming page and line of each example that failed, and of each marker without a block.
    """
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    pages = {name: text for name, text in texts.items() if _MARKER in text}
    shared = [step for step in steps_of(texts.get(_SHARED_PAGE, "")) if step.name == _SHARED_FILE]
    _RESULTS.clear()
    _RESULTS.update(run_examples(pages, shared))
    wrong = [line for name, text in pages.items() for line in wrong_results(name, text, _RESULTS[name])]
    if wrong:
        raise PluginError("examples failed:\n" + "\n".join(wrong))
    return files


@event_priority(50)
def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Show what the examples printed; before anything else changes the page's text."""
    results = _RESULTS.get(page.file.src_uri)
    return markdown if results is None else with_outputs(markdown, results)


def steps_of(page: str) -> list[Step]:
    """What the build carries out of ``page``, in its order."""
    return [step for block in _BLOCK.finditer(page) for step in _steps_of_block(page, block)]


def _steps_of_block(page: str, block: re.Match[str]) -> Iterator[Step]:
    kind, title, text = block["kind"], block["title"], block["text"]
    line = page.count("\n", 0, block.start("text")) + 1
    is_shown = _MARKER in block["markers"]
    if title:
        yield Step("file", line, text, title)
    elif kind == "console" and is_shown:
        for part in text.removeprefix("$ ").split("\n$ "):
            command, _, printed = part.partition("\n")
            yield Step("command", line, command, printed=printed.rstrip("\n"))
            line += part.count("\n") + 1
    elif kind == "python" and block["markers"]:
        yield Step("python", line, text, printed=None if is_shown else "", is_shown=is_shown)


def run_examples(pages: Mapping[str, str], shared: Iterable[Step] = ()) -> dict[str, list[Result]]:
    """Carry out the steps of each page, by its name. A page's results end with the first step that failed.

    :param shared: files that every page has.
    :raises PluginError: if the runner itself failed.
    """
    if not pages:
        return {}
    steps = {name: [asdict(step) for step in steps_of(text)] for name, text in pages.items()}
    job = {"shared": [asdict(step) for step in shared], "pages": steps}
    paths = os.pathsep.join(filter(None, [str(_HOME), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(  # noqa: S603  our own program, no shell
        [sys.executable, "-u", "-X", "utf8", str(_HOME / "docs" / "site_runner.py")],  # prints as at a terminal
        input=json.dumps(job),
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise PluginError(f"the examples could not be run: {done.stderr.strip()}")
    return {name: [Result(**each) for each in results] for name, results in json.loads(done.stdout).items()}


def wrong_results(name: str, page: str, results: Sequence[Result]) -> Iterator[str]:
    """One line for each step that failed, or printed something else than it must, and for markers without a block."""
    steps = steps_of(page)
    blocks = [block for block in _BLOCK.finditer(page) if block["kind"] in _KINDS and not block["title"]]
    if sum(_MARKER in block["markers"] for block in blocks) < page.count(_MARKER):
        yield f"{name}: <!-- output --> stands directly above Python or a console, without a title"
    is_cut_short = any(result.error is not None for result in results)
    for step, result in zip(steps, results, strict=not is_cut_short):
        if result.error is not None:
            yield f"{name}:{result.line or step.line}: {result.error}"
        elif step.is_shown and not result.output.strip():
            yield f"{name}:{step.line}: this example prints nothing"
        elif step.printed is not None and step.printed != result.output.rstrip("\n"):
            yield f"{name}:{step.line}: {_difference(step, result.output.rstrip())}"


def _difference(step: Step, output: str) -> str:
    assert step.printed is not None
    pairs = zip_longest(step.printed.splitlines(), output.splitlines(), fillvalue="nothing")
    written, printed = next((pair for pair in pairs if pair[0] != pair[1]), (step.printed, output))
    return f"{step.text.splitlines()[0]!r} printed {printed!r}, and the page says {written!r}"


def with_outputs(page: str, results: Iterable[Result]) -> str:
    """``page`` with the output below each block that has to show it."""
    rest = iter(results)

    def shown(block: re.Match[str]) -> str:
        done = [(step, next(rest)) for step in _steps_of_block(page, block)]
        text = block[0].replace(_MARKER, "")
        for step, result in done:
            if step.is_shown:
                text += f'\n```text {{ .output title="Output" }}\n{result.output.rstrip()}\n```\n'
        return text

    return _BLOCK.sub(shown, page)
