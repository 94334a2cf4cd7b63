"""Pictures of the tables in docs/reference/performance.md and growth.md, or in another report of the benchmarks.

    python -m benchmarks.plots [PAGE ...]

draws a picture for each table of figures into the folder ``plots`` beside the page, and shows it below the table. A
test fails if a picture does not show its table. The benchmarks do the same with the file of ``--markdown``.
"""

from argparse import ArgumentParser
from pathlib import Path

from benchmarks.page import PAGES
from benchmarks.plots.pictures import draw_page


def main() -> None:
    """Draw."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, metavar="PAGE")
    for page in parser.parse_args().pages:
        for picture in draw_page(page):
            print(picture)


if __name__ == "__main__":
    main()
