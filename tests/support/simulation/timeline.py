"""A run as a timeline: a column for each process, from top to bottom in time; as text, and as a picture in SVG."""

from collections.abc import Sequence
from html import escape

from tests.support.simulation.faults import APPLICATIONS, BROKER, DATABASE, OTHER_BROKER, lane_of

Event = tuple[float, str, str]
LANES = (*(lane_of(number) for number in range(APPLICATIONS)), BROKER, OTHER_BROKER, DATABASE, "last", "last-b")
_WIDTH, _ROW, _LEFT, _TOP = 260, 16, 90, 46
_LONGEST = 42
_CLASSES = (("fault:", "fault"), ("is killed", "fault"), ("stalls", "fault"), ("commit ", "decision"))
_STYLE = (
    "text{font:11px monospace;fill:#222}.lane{font-weight:bold}.time{fill:#777}.fault{fill:#c0392b;font-weight:bold}"
    ".decision{fill:#1e8449;font-weight:bold}line{stroke:#ccc}rect{fill:#fff}"
)


def lanes_of(events: Sequence[Event], lanes: dict[str, str]) -> list[Event]:
    """``events`` under the names of lanes.

    :param lanes: the number of each process -> its lane.
    """
    return [(time, lanes.get(where.partition(":")[0], where), event) for time, where, event in events]


def as_text(events: Sequence[Event]) -> str:
    """A line for each event: its time, its lane, and what happened."""
    return "\n".join(f"{time:12.6f}  {lane:<9} {event}" for time, lane, event in events)


def as_svg(events: Sequence[Event], title: str) -> str:
    """The same as a picture."""
    columns = [lane for lane in LANES if any(each == lane for _, each, _ in events)]
    height = _TOP + _ROW * (len(events) + 1)
    width = _LEFT + _WIDTH * len(columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}"/><text x="6" y="16">{escape(title)}</text>',
    ]
    for number, lane in enumerate(columns):
        x = _LEFT + _WIDTH * number
        parts.append(f'<text class="lane" x="{x}" y="34">{lane}</text>')
        parts.append(f'<line x1="{x - 6}" y1="24" x2="{x - 6}" y2="{height}"/>')
    for row, (time, lane, event) in enumerate(events):
        if lane not in columns:
            continue
        x, y = _LEFT + _WIDTH * columns.index(lane), _TOP + _ROW * (row + 1)
        kind = next((name for begin, name in _CLASSES if begin in event), "")
        shown = event if len(event) <= _LONGEST else f"{event[: _LONGEST - 1]}…"
        parts.append(f'<text class="time" x="6" y="{y}">{time:.6f}</text>')
        parts.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(shown)}</text>')
    return "\n".join([*parts, "</svg>\n"])
