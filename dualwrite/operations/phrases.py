"""Durations, counts and names in the words that operators read, on the command line and in the console."""

from datetime import datetime, timezone

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def since(moment: datetime | None, now: datetime | None = None) -> str:
    """The time since ``moment`` in its largest unit; empty for None."""
    if moment is None:
        return ""
    seconds = max(0, round(((now or datetime.now(timezone.utc)) - moment).total_seconds()))
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds // size} {unit}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 transaction``, ``2,000 transactions``; ``plural`` if it is not the noun with an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"


def printable(text: str) -> str:
    """``text`` in one line, with escapes for what a terminal would not print, or would obey."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )
