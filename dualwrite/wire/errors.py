"""Finds every error code in a response, in all structures of the message."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from dualwrite.wire.apis import Message
from dualwrite.wire.producing import AddedPartitions, EndTxnResult, Produced


class _Plan(NamedTuple):
    """The places of the codes in a structure: its own fields, and its arrays with their own plans."""

    codes: tuple[str, ...]
    arrays: tuple[tuple[str, "_Plan"], ...]


def error_codes(response: Message) -> list[int]:
    """The codes in ``response`` other than 0."""
    message_class: Any = type(response)
    if message_class is EndTxnResult:
        return [response.error_code] if response.error_code else []
    if message_class is Produced:
        entries = (entry for topic in response.responses for entry in topic.partition_responses)
        return [entry.error_code for entry in entries if entry.error_code]
    if message_class is AddedPartitions:
        results = (entry for topic in response.results_by_topic_v3_and_below for entry in topic.results_by_partition)
        return [entry.partition_error_code for entry in results if entry.partition_error_code]
    found: list[int] = []
    _collect(response, _plan_of(message_class), found)
    return found


def _collect(message: Message, plan: _Plan, found: list[int]) -> None:
    for name in plan.codes:
        code = getattr(message, name)
        if code:
            found.append(int(code))
    for name, inner in plan.arrays:
        for element in getattr(message, name) or ():
            _collect(element, inner, found)


@cache
def _plan_of(message_class: Any) -> _Plan:
    return _plan(message_class.fields)


def _plan(fields: Mapping[str, Any]) -> _Plan:
    codes = tuple(name for name in fields if name == "error_code" or name.endswith("_error_code"))
    inner = {name: _plan(field.fields) for name, field in fields.items() if field.is_struct_array()}
    return _Plan(codes, tuple((name, plan) for name, plan in inner.items() if plan.codes or plan.arrays))
