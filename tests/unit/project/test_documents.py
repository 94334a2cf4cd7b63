"""The documents lead where they say, and the map shows the whole house."""

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[3]
DOCUMENTS = sorted([*HOME.glob("*.md"), *HOME.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(HOME)))
def test_every_relative_link_has_a_target(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_documents_are_found() -> None:
    assert {"README.md", "CHANGELOG.md", "design.md"} <= {document.name for document in DOCUMENTS}


@pytest.mark.parametrize("decision", sorted(HOME.glob("docs/decisions/*.md")), ids=lambda path: path.stem)
def test_every_decision_has_a_status_and_what_would_reopen_it(decision: Path) -> None:
    text = decision.read_text(encoding="utf-8")
    assert text.startswith(f"# {decision.stem[:4]}: ")
    assert "\nStatus: " in text
    assert "**What would reopen it.**" in text


def test_the_map_shows_every_room() -> None:
    shown = (HOME / "docs" / "design.md").read_text(encoding="utf-8")
    rooms = [path.name for path in (HOME / "dualwrite").iterdir() if path.is_dir() and any(path.glob("*.py"))]
    assert [room for room in rooms if f"`{room}/" not in shown] == []


def test_the_lock_names_no_index() -> None:
    locks = list((HOME / "requirements").glob("*.txt"))
    assert len(locks) == 3
    assert not any("://" in lock.read_text(encoding="utf-8") for lock in locks)


def test_every_screenshot_is_small_and_shown_light_and_dark_with_its_text() -> None:
    page = (HOME / "docs" / "console.md").read_text(encoding="utf-8")
    shown = re.findall(
        r'<source media="\(prefers-color-scheme: dark\)" srcset="screenshots/(\w+)-dark\.webp">\n'
        r'  <img src="screenshots/(\w+)-light\.webp" alt="[^"]{40,}">',
        page,
    )
    assert len(shown) == page.count("<picture>") == 3
    assert all(dark == light for dark, light in shown)
    files = {path.name: path.read_bytes() for path in (HOME / "docs" / "screenshots").iterdir()}
    assert sorted(files) == sorted(f"{name}-{scheme}.webp" for name, _ in shown for scheme in ("light", "dark"))
    for content in files.values():
        assert content[:4] + content[8:12] == b"RIFFWEBP"
        assert len(content) < 100_000
