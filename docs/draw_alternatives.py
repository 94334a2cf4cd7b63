"""Copies the figures of units of work from the page of performance into the page about other ways.

Run ``python docs/draw_alternatives.py`` after new figures; a test fails until then.
"""

import re
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "alternatives.md"
FIGURES = DOCS / "reference" / "performance.md"
CONTENDERS = ("dualwrite, native", "naive pair", "Kafka transaction", "outbox")
COLUMNS = (
    ("throughput: PostgreSQL, the bundled broker, 1 thread, durability=os", "per second"),
    ("throughput: PostgreSQL, the bundled broker, 8 threads, durability=os", "per second"),
    ("latency: PostgreSQL, the bundled broker, 1 thread, durability=os", "p50 (ms)"),
    ("latency: PostgreSQL, the bundled broker, 1 thread, durability=os", "p99 (ms)"),
)
"""The section and the column of each figure."""
_DRAWN = re.compile(r"(\|---\|--:\|--:\|--:\|--:\|\n).*?(<!-- end -->)", re.DOTALL)


def alternatives_page() -> str:
    """The page with the figures of now."""
    text, figures = PAGE.read_text(encoding="utf-8"), FIGURES.read_text(encoding="utf-8")
    tables = [_table(figures, section, column) for section, column in COLUMNS]
    rows = "".join(f"| {name} | {' | '.join(table[name] for table in tables)} |\n" for name in CONTENDERS)
    return _DRAWN.sub(lambda drawn: f"{drawn[1]}{rows}{drawn[2]}", text)


def _table(figures: str, section: str, column: str) -> dict[str, str]:
    """The medians of ``column`` by contender."""
    lines = figures.partition(f"#### {section}\n")[2].partition("\n#")[0].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    place = table[0].index(column)
    return {row[0]: row[place].partition(" (")[0] for row in table[2:]}


if __name__ == "__main__":
    PAGE.write_text(alternatives_page(), encoding="utf-8")
