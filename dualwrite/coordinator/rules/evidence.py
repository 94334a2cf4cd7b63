"""Evidence: a text in the state row beside the transaction's identity. With it recovery recognizes the transaction if a
topic is gone, and finds how it ended.

For a state without an anchor the text is ``producerId:epoch:topic~id:partition:offset``: one of its records, and the id
of the topic. For a state with an anchor it is ``producerId:epoch@start~id``: when the transaction began, and the id of
the anchor's topic. Unknown parts are omitted. The text begins with the identity of the state that it belongs to. An old
release (tables of version 0001) writes a new state but not the evidence, so the row may still have the evidence of an
older state. The release after that one reads the first form, in which ``topic~id`` is a topic that it does not find,
and ignores the second form.
"""

import re

from dualwrite.ids import UNKNOWN_START, Anchor, PreparedTxnState

_LONGEST = 255
_MOMENT = re.compile(r"[0-9]{1,18}")
_ID_LENGTH = 22
"""The length of a topic id: 16 bytes in base 64. Anything else after a ~ is longer (Anchor.of)."""


def evidence(state: PreparedTxnState) -> str | None:
    """The evidence of ``state``; None if nothing is known."""
    topic_id = f"~{state.topic_id}" if state.topic_id else ""
    first = state.first_record
    if state.anchor is not None:
        start = "" if state.started_ms == UNKNOWN_START else f"@{state.started_ms}"
        return f"{state.producer}{start}{topic_id}" if start or topic_id else None
    if first is None:
        return None
    full = f"{state.producer}:{first.topic}{topic_id}:{first.partition}:{first.offset}"
    return full if len(full) <= _LONGEST else f"{state.producer}:{first}"


def with_evidence(state: PreparedTxnState, text: str) -> PreparedTxnState:
    """``state`` completed by the evidence ``text``; unchanged if the text belongs to another state.

    :raises ConfigurationError: if neither :func:`evidence` nor an earlier release wrote ``text``.
    """
    if state.anchor is not None:
        told, topic_id = _without_id(text)
        named, _, start = told.partition("@")
        if named != str(state.producer):
            return state
        started_ms = int(start) if _MOMENT.fullmatch(start) else UNKNOWN_START
        return PreparedTxnState(state.producer, state.anchor, started_ms=started_ms, topic_id=topic_id)
    seen = PreparedTxnState(text)
    if seen.producer != state.producer or seen.anchor is None:
        return state
    topic, topic_id = _without_id(seen.anchor.topic)
    first = Anchor(topic, seen.anchor.partition, seen.anchor.offset)
    return PreparedTxnState(state.producer, first_record=first, topic_id=topic_id)


def _without_id(text: str) -> tuple[str, str]:
    """``text`` without the topic id at its end, and the topic id."""
    rest, _, last = text.rpartition("~")
    return (rest, last) if len(last) == _ID_LENGTH and rest else (text, "")
