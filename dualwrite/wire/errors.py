"""Every error code that a response holds, wherever it is in the message."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from dualwrite.wire.apis import Message


class _Plan(NamedTuple):
    """Where the codes of a structure are: its own fields, and its arrays with plans of their own."""

    codes: tuple[str, ...]
    arrays: tuple[tuple[str, "_Plan"], ...]


def error_codes(response: Message) -> Iterator[int]:
    """The codes in ``response`` other than 0."""
    message_class: Any = type(response)
    return _codes(response, _plan_of(message_class))


def _codes(message: Message, plan: _Plan) -> Iterator[int]:
    for name in plan.codes:
        code = getattr(message, name)
        if code:
            yield int(code)
    for name, inner in plan.arrays:
        for element in getattr(message, name) or ():
            yield from _codes(element, inner)


@cache
def _plan_of(message_class: Any) -> _Plan:
    return _plan(message_class.fields)


def _plan(fields: Mapping[str, Any]) -> _Plan:
    codes = tuple(name for name in fields if name == "error_code" or name.endswith("_error_code"))
    inner = {name: _plan(field.fields) for name, field in fields.items() if field.is_struct_array()}
    return _Plan(codes, tuple((name, plan) for name, plan in inner.items() if plan.codes or plan.arrays))
