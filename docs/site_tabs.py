"""Tabs of the site, from text that a reader of the repository sees as one part after the other.

Between ``<!-- tabs -->`` and ``<!-- end of tabs -->`` each paragraph of one bold word or phrase begins a tab, which has
it as its label. Tabs with the same label are chosen together, on all pages.
"""

import re
from textwrap import indent

_GROUP = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- end of tabs -->\n", re.MULTILINE | re.DOTALL)
_LABEL = re.compile(r"^\*\*([^*\n]+)\*\*\n\n", re.MULTILINE)


def with_tabs(markdown: str) -> str:
    """``markdown`` with its groups as pymdownx.tabbed has them.

    :raises ValueError: if a group has fewer than two tabs, or text before its first one.
    """
    return _GROUP.sub(lambda group: _tabs(group[1]), markdown)


def _tabs(group: str) -> str:
    before, *parts = _LABEL.split(group)
    if before.strip() or len(parts) < 4:
        raise ValueError(f"tabs need two labels in bold or more, and nothing before them: {group!r:.80}")
    tabs = zip(parts[::2], parts[1::2], strict=True)
    return "".join(f'=== "{label}"\n\n{indent(content.strip(), "    ")}\n\n' for label, content in tabs)
