"""A diagram that is missing, old or not drawn at all is reported: by a test, and by ``make docs``."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drawing import files
from drawing.files import FOLDER, PICTURES, RECIPE_PAGE, draw_files, outdated, undrawn
from drawing.moments_page import BEGIN
from drawing.sequence import sentence

HOME = Path(__file__).parents[3]
pictures = pytest.mark.parametrize("name", PICTURES)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What the diagrams are shown by, copied."""
    for path in (Path("README.md"), RECIPE_PAGE, Path("docs", "reference", "states.md")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HOME / path, tmp_path / path)
    shutil.copytree(HOME / FOLDER, tmp_path / FOLDER)
    return tmp_path


def test_the_diagrams_are_up_to_date() -> None:
    assert list(outdated(HOME)) == []


@pictures
def test_a_missing_diagram_is_reported_and_drawn(home: Path, name: str) -> None:
    (home / FOLDER / name).unlink()
    assert list(outdated(home)) == [f"{FOLDER / name} is missing; {files.AGAIN}"]
    draw_files(home)
    assert list(outdated(home)) == []
    assert (home / FOLDER / name).read_bytes() == (HOME / FOLDER / name).read_bytes()


@pictures
def test_an_old_diagram_is_reported(home: Path, name: str) -> None:
    path = home / FOLDER / name
    path.write_text(path.read_text(encoding="utf-8").replace("</text>", "!</text>", 1), encoding="utf-8")
    assert list(outdated(home)) == [f"{FOLDER / name} is not what the code says; {files.AGAIN}"]


def test_a_diagram_that_is_left_over_is_reported_and_removed(home: Path) -> None:
    (home / FOLDER / "former.svg").write_text("<svg/>")
    assert list(outdated(home)) == [f"{FOLDER / 'former.svg'} is left over; {files.AGAIN}"]
    draw_files(home)
    assert list(outdated(home)) == []


def test_a_page_that_does_not_show_its_diagram_is_reported(home: Path) -> None:
    readme = home / "README.md"
    readme.write_text(readme.read_text(encoding="utf-8").replace(sentence(), "The recipe"), encoding="utf-8")
    (reported,) = outdated(home)
    assert reported.startswith("README.md does not show its diagram: it lacks '![The application writes")


def test_an_old_table_of_moments_is_reported_and_written_again(home: Path) -> None:
    page = home / RECIPE_PAGE
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("**in both**", "**in neither**", 1), encoding="utf-8")
    assert list(outdated(home)) == [f"{RECIPE_PAGE}: the table of moments is not what the code says; {files.AGAIN}"]
    draw_files(home)
    assert page.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("fence", ["```mermaid", "~~~ mermaid", "   ```{.mermaid}", "````plantuml", "```dot"])
def test_the_source_of_a_diagram_is_noticed(fence: str) -> None:
    assert undrawn(f"# A page\n\n{fence}\nstateDiagram-v2\n")


@pytest.mark.parametrize("page", ["```python\nmermaid\n```", "The mermaid", "```dotenv\nA=1\n```", "```\nmermaid\n```"])
def test_other_code_is_no_source_of_a_diagram(page: str) -> None:
    assert not undrawn(page)


def test_no_page_has_the_source_of_a_diagram() -> None:
    pages = [*HOME.glob("*.md"), *HOME.glob("docs/**/*.md")]
    assert len(pages) > 50
    assert [page.name for page in pages if undrawn(page.read_text(encoding="utf-8"))] == []


# --- make docs ---

_SITE = """
site_name: a part of the site
docs_dir: docs
use_directory_urls: false
theme: {name: mkdocs}
plugins: []
hooks: ["%s"]
markdown_extensions: [attr_list, tables, pymdownx.superfences]
validation:
  nav: {omitted_files: ignore}
  links: {not_found: ignore, anchors: ignore, unrecognized_links: ignore}
"""


def build(home: Path) -> subprocess.CompletedProcess[str]:
    """What ``make docs`` runs, on the pages in ``home``."""
    pytest.importorskip("mkdocs")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        (home / name).write_text("# A page\n")
    (home / "mkdocs.yml").write_text(_SITE % (HOME / "docs" / "site_hooks.py"))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(HOME), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)


def test_the_site_shows_the_diagrams(home: Path) -> None:
    built = build(home)
    assert (built.returncode, built.stderr) == (0, "")
    recipe, states = ((home / "site" / page).read_text() for page in ("recipe.html", "reference/states.html"))
    assert recipe.count('<input type="radio" name="moment"') == recipe.count('class="moment-panel"') > 7
    assert BEGIN not in recipe
    assert "<th>Kafka holds</th>" not in recipe, "the diagram stands in place of the table"
    assert states.count("<img ") == 3
    assert 'src="pictures/recipe.svg"' in (home / "site" / "index.html").read_text()
    assert {path.name for path in (home / "site" / "pictures").iterdir()} == set(PICTURES)


def test_the_site_is_not_built_with_an_old_diagram(home: Path) -> None:
    (home / FOLDER / "recipe.svg").write_text("<svg/>")
    (home / FOLDER / "dual-write.svg").unlink()
    built = build(home)
    assert built.returncode != 0
    assert f"{FOLDER / 'recipe.svg'} is not what the code says; {files.AGAIN}" in built.stderr
    assert f"{FOLDER / 'dual-write.svg'} is missing; {files.AGAIN}" in built.stderr


def test_the_site_is_not_built_with_a_diagram_that_is_not_drawn(home: Path) -> None:
    (home / "docs" / "page.md").write_text("# A page\n\n```mermaid\nstateDiagram-v2\n```\n")
    built = build(home)
    assert built.returncode != 0
    assert "page.md has a diagram that is not drawn: draw it in docs/drawing" in built.stderr
