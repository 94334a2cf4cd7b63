"""Text of clients in the log: a client.id, a transactional id or the name of a group may contain any character."""

_MOST_CHARACTERS = 100
_MOST_OF_A_NAME = 500


def shown(text: str) -> str:
    """``text`` between quotes, with escapes for what is not printable; shortened if it is long."""
    return repr(text) if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]!r}…"


def clipped(text: str) -> str:
    """``text``, shortened if it is longer than any name of a topic."""
    return text if len(text) <= _MOST_OF_A_NAME else f"{text[:_MOST_OF_A_NAME]}…"


def one_line(text: str) -> str:
    """``text`` with escapes for everything that is not printable, so that it is one line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
