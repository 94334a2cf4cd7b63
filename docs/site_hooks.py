"""What mkdocs needs to make a site of pages that are also read in the repository.

There a page links to files that are no pages: an example, the README, the changes. On the site there are pages made
from those files; the README is the first one. The page of the command line is what ``--help`` says.

The site also has the Markdown of each page, and ``llms.txt``, a list of them for programs that read text
(https://llmstxt.org).
"""

import argparse
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from drawing.files import RECIPE_PAGE, outdated, undrawn
from drawing.moments_page import with_diagram
from dualwrite.cli.main import VERBS, parser_for
from site_tabs import with_tabs

_OF_THE_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "threat-model.md",  # security.md is the page about TLS and SASL
}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")

_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r"\[([^]]*)\](?:\([^)]*\)|\[[^]]*\])")
_MARKDOWN: dict[str, str] = {}
"""The Markdown of each page of this build, by its name in docs_dir."""


def on_pre_build(config: MkDocsConfig) -> None:
    """Look at the diagrams.

    :raises PluginError: if one is missing or old, or if no page shows it.
    """
    wrong = list(outdated(Path(config.docs_dir).parent))
    if wrong:
        raise PluginError("\n".join(wrong))


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
    """Let links to such files lead to their pages, make tabs, and let a reader of the recipe choose the moment of a
    crash.

    :raises PluginError: if the page has a diagram's source, which a browser would show as text, or malformed tabs.
    """
    if undrawn(markdown):
        raise PluginError(f"{page.file.src_uri} has a diagram that is not drawn: draw it in docs/drawing")
    source = PurePosixPath("docs", page.file.src_uri)
    text = markdown if page.file.generated_by else _linked(markdown, source)
    _MARKDOWN[page.file.src_uri] = text
    try:
        text = with_tabs(text)
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from None
    return with_diagram(text) if source == PurePosixPath(RECIPE_PAGE) else text


def on_post_build(config: MkDocsConfig) -> None:
    """Write the Markdown of the pages, and their list."""
    site = Path(config.site_dir)
    for name, text in _MARKDOWN.items():
        (site / name).write_text(text, encoding="utf-8")
    head = f"# {config.site_name}\n\n> {config.site_description}\n"
    lines = [head, *list_of_pages(config.nav or [], _MARKDOWN)]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def list_of_pages(navigation: list[Any], pages: Mapping[str, str]) -> Iterator[str]:
    """The lines of llms.txt: a heading for each section of the outermost level, a link for each page.

    :param pages: the Markdown of each page, by the name that ``navigation`` has for it.
    """
    for entry in navigation:
        title, place = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(place, str):
            yield f"- [{title or _heading(pages[place])}]({place}){_first_sentence(pages[place])}"
        else:
            yield f"\n## {title}\n"
            yield from (line for line in list_of_pages(place, pages) if line.startswith("- "))


def _heading(markdown: str) -> str:
    return markdown.lstrip().partition("\n")[0].lstrip("# ")


def _first_sentence(markdown: str) -> str:
    """That of the first paragraph of the page's beginning, as a link's description; nothing if there is none. Drawn
    pages begin by saying what draws them."""
    beginning = re.split(r"^## ", markdown.lstrip().partition("\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    for paragraph in re.split(r"\n\n+", _CODE.sub("", beginning).strip("\n")):
        text = _TARGET.sub(r"\1", " ".join(paragraph.split()))
        is_prose = re.match(r"`?[a-z]", text, re.IGNORECASE) and not paragraph.startswith(" ")  # indented is code
        if is_prose and "a test compares" not in text:
            return ": " + re.split(r"(?<=[.:])\s", text)[0].rstrip(".:")
    return ""


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
