"""Which diagrams there are, and which pages show them. ``make docs`` and a test ask whether they are up to date."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from drawing.machines import dual_write_chart, group_chart, transaction_chart
from drawing.moments_page import with_table
from drawing.sequence import recipe_picture, sentence

FOLDER = Path("docs", "pictures")
PICTURES: Mapping[str, Callable[[], str]] = {
    "recipe.svg": recipe_picture,
    "dual-write.svg": lambda: dual_write_chart().svg(),
    "transactional-id.svg": lambda: transaction_chart().svg(),
    "classic-group.svg": lambda: group_chart().svg(),
}
RECIPE_PAGE = Path("docs", "recipe.md")
_SHOWN = {
    Path("README.md"): (f"![{sentence()}](docs/pictures/recipe.svg)",),
    RECIPE_PAGE: (f"![{sentence()}](pictures/recipe.svg)",),
    Path("docs", "reference", "states.md"): tuple(
        f"](../pictures/{name})" for name in ("dual-write.svg", "transactional-id.svg", "classic-group.svg")
    ),
}
"""What each page has to contain."""
_SOURCE = re.compile(r"^ *(?:`{3,}|~{3,}) *\{? *\.?(?:mermaid|plantuml|dot|graphviz|d2)\b", re.MULTILINE)
AGAIN = "run: python docs/draw.py"


def draw_files(home: Path) -> None:
    """Write every diagram, and the table of the recipe's page."""
    folder = home / FOLDER
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in PICTURES:
            path.unlink()
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw(), encoding="utf-8")
    page = home / RECIPE_PAGE
    page.write_text(with_table(page.read_text(encoding="utf-8")), encoding="utf-8")


def outdated(home: Path) -> Iterator[str]:
    """Say of each diagram that is missing, old, not shown, or left over, what is wrong."""
    folder = home / FOLDER
    for name, draw in PICTURES.items():
        path = folder / name
        if not path.exists():
            yield f"{FOLDER / name} is missing; {AGAIN}"
        elif path.read_text(encoding="utf-8") != draw():
            yield f"{FOLDER / name} is not what the code says; {AGAIN}"
    for path in folder.glob("*"):
        if path.name not in PICTURES:
            yield f"{FOLDER / path.name} is left over; {AGAIN}"
    for page, parts in _SHOWN.items():
        text = (home / page).read_text(encoding="utf-8")
        yield from (f"{page} does not show its diagram: it lacks {part!r}" for part in parts if part not in text)
    text = (home / RECIPE_PAGE).read_text(encoding="utf-8")
    if with_table(text) != text:
        yield f"{RECIPE_PAGE}: the table of moments is not what the code says; {AGAIN}"


def undrawn(markdown: str) -> bool:
    """True if a page has a diagram's source in place of the diagram."""
    return _SOURCE.search(markdown) is not None
