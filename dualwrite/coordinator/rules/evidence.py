"""What a state row keeps of a transaction beside its identity, as one text: by it recovery knows the transaction when a
topic is gone, and finds how it ended.

Of a state without an anchor the text is ``producerId:epoch:topic~id:partition:offset``: a record of it, and the id of
the topic. Of one with an anchor it is ``producerId:epoch@start~id``: when the transaction began, and the id of the
anchor's topic. What is not known is left out. The text begins with the state that it is true of: the release of version
0001, which writes states without it, leaves an older one behind. The release after that one reads the first form, in
which ``topic~id`` is no topic that it finds, and does not look at the second.
"""

from dualwrite.ids import UNKNOWN_START, Anchor, PreparedTxnState

_LONGEST = 255
_ID_LENGTH = 22
"""Of a topic id: 16 bytes in base 64. What else may follow a ~ is longer (Anchor.of)."""


def evidence(state: PreparedTxnState) -> str | None:
    """The text; None if nothing is known."""
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
    """``state`` with what ``text`` says of it; as it is, if that is another's.

    :raises ConfigurationError: if ``text`` is nothing that :func:`evidence` or an earlier release wrote.
    """
    if state.anchor is not None:
        told, topic_id = _without_id(text)
        named, _, start = told.partition("@")
        if named != str(state.producer):
            return state
        started_ms = int(start) if start.isdecimal() else UNKNOWN_START
        return PreparedTxnState(state.producer, state.anchor, started_ms=started_ms, topic_id=topic_id)
    seen = PreparedTxnState(text)
    if seen.producer != state.producer or seen.anchor is None:
        return state
    topic, topic_id = _without_id(seen.anchor.topic)
    first = Anchor(topic, seen.anchor.partition, seen.anchor.offset)
    return PreparedTxnState(state.producer, first_record=first, topic_id=topic_id)


def _without_id(text: str) -> tuple[str, str]:
    """``text`` without a topic id at its end, and that."""
    rest, _, last = text.rpartition("~")
    return (rest, last) if len(last) == _ID_LENGTH and rest else (text, "")
