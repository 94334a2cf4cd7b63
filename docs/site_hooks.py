"""What mkdocs needs to make a site of pages that are also read in the repository.

There a page links to files that are no pages: an example, the README, the changes. On the site there are pages made
from those files; the README is the first one. The page of the command line is what ``--help`` says.
"""

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from dualwrite.cli.main import VERBS, parser_for

_OF_THE_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "threat-model.md",  # security.md is the page about TLS and SASL
}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from other files."""
    home = Path(config.docs_dir).parent
    for example in sorted((home / "examples").glob("*.py")):
        code = example.read_text(encoding="utf-8")
        page = f"# {example.name}\n\n```python\n{code}```\n"
        files.append(File.generated(config, f"examples/{example.stem}.md", content=page))
    for name in _OF_THE_ROOT:
        text = _linked((home / name).read_text(encoding="utf-8"), PurePosixPath(name))
        files.append(File.generated(config, str(page_of(name)), content=text))
    files.append(File.generated(config, "reference/cli.md", content="\n".join(_command_line())))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings name a method as Sphinx does: leave the name."""
    return re.sub(r":(?:meth|func|class|attr|mod):(?=<code>)", "", html)


def _command_line() -> Iterator[str]:
    os.environ["COLUMNS"] = "110"
    yield "# Command line\n"
    yield "What `--help` says of each verb.\n"
    for verb in VERBS:
        parser, _ = parser_for([verb])
        for name, each in _parsers(parser):
            if name.split()[1:2] == [verb]:
                yield f"## {name}\n\n```text\n{each.format_help()}```\n"


def _parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and those of its actions, each with the words that lead to it."""
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _parsers(each)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links to such files lead to their pages."""
    if page.file.generated_by:
        return markdown
    return _linked(markdown, PurePosixPath("docs", page.file.src_uri))


def _linked(markdown: str, file: PurePosixPath) -> str:
    """``markdown`` of the repository's ``file``, for the site."""
    source = page_of(str(file)) or str(file)

    def link(found: re.Match[str]) -> str:
        target = page_of(normpath(str(file.parent / found[1])))
        if target is None:
            return found[0]
        return relpath(target, str(PurePosixPath(source).parent)) + (found[2] or "")

    return _LINK.sub(link, markdown)


def page_of(path: str) -> str | None:
    """Where on the site a file of the repository is; None if it is nowhere."""
    if path in _OF_THE_ROOT:
        return _OF_THE_ROOT[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("examples/") and path.endswith(".py"):
        return path.removesuffix(".py") + ".md"
    return None
