"""``ssl.principal.mapping.rules``: from the distinguished name of a certificate to the name of its principal.

Source: Kafka's SslPrincipalMapper (KIP-371). The first rule that matches the whole name applies.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

DEFAULT_RULES = "DEFAULT"

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(?:.*?)"
_SPLITTER = re.compile(rf"\s*({_RULE})\s*(?:,\s*|$)", re.ASCII)
_PARSER = re.compile(_RULE)
_NAMED_GROUP = re.compile(r"(?<!\\)\(\?<(?=[A-Za-z])")
_PART = re.compile(r"\\(.)|\$(\d+)|\$\{(\w+)\}|([^\\$]+)|(.)", re.DOTALL | re.ASCII)


class MappingRuleError(ValueError):
    """A rule is malformed. The message names it."""


class NoMatchingRuleError(ValueError):
    """No rule matches the name of a certificate, so that it has no principal."""


class _Rule(NamedTuple):
    """``RULE:pattern/replacement/case``. ``replacement`` is texts and groups."""

    pattern: re.Pattern[str]
    replacement: Sequence[str | int]
    case: str

    def apply(self, name: str) -> str | None:
        """The principal's name; None if the pattern does not match the whole ``name``."""
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self._replace_all(name)
        return {"L": mapped.lower, "U": mapped.upper}.get(self.case, lambda: mapped)()

    def _replace_all(self, name: str) -> str:
        """``name`` with every occurrence of the pattern replaced, as Java's replaceAll does it. Python's sub differs:
        after an empty match it tries a longer one at the same place."""
        parts, copied, start = [], 0, 0
        while start <= len(name) and (match := self.pattern.search(name, start)) is not None:
            parts += [name[copied : match.start()], self._expand(match)]
            copied = match.end()
            start = copied + (match.start() == copied)
        return "".join([*parts, name[copied:]])

    def _expand(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.replacement)


class PrincipalMapping:
    """The rules, in their order.

    :param rules: the value of ssl.principal.mapping.rules: ``DEFAULT`` and ``RULE:pattern/replacement/[LU]``, separated
        by commas. Patterns are regular expressions, in the syntax that Java and Python have in common.
    :raises MappingRuleError: if a rule is malformed.
    """

    def __init__(self, rules: str) -> None:
        self._rules = [rule for text in _split(rules) if (rule := _parse(text)) is not _IGNORED]

    def name_of(self, distinguished_name: str) -> str:
        """The principal's name for a certificate with ``distinguished_name``.

        :raises NoMatchingRuleError: if no rule matches.
        """
        for rule in self._rules:
            mapped = distinguished_name if rule is None else rule.apply(distinguished_name)
            if mapped is not None:
                return mapped
        raise NoMatchingRuleError(
            f"no rule of ssl.principal.mapping.rules matches its certificate {distinguished_name}"
        )


_IGNORED = _Rule(re.compile(""), (), "")
"""Stands for an empty rule."""


def _split(rules: str) -> list[str]:
    return [match[1] for match in _SPLITTER.finditer(rules.strip())]


def _parse(text: str) -> _Rule | None:
    """The rule; None for DEFAULT."""
    match = _PARSER.match(text)
    assert match is not None, "the last alternative matches every text"
    if match.end() != len(text):
        raise MappingRuleError(f"{text!r} is not DEFAULT or RULE:pattern/replacement/[LU]")
    if match[1] is not None:
        return None
    if match[2] is None:
        return _IGNORED
    try:
        pattern = re.compile(_NAMED_GROUP.sub("(?P<", match[2]), re.ASCII)
    except (re.error, OverflowError) as error:
        raise MappingRuleError(f"{text!r}: the pattern is not a regular expression: {error}") from None
    return _Rule(pattern, _replacement(match[3], pattern, text), match[4])


def _replacement(replacement: str, pattern: re.Pattern[str], rule: str) -> list[str | int]:
    """The parts of a replacement in Java's syntax: ``$1`` and ``${name}`` are groups, a backslash escapes."""
    parts: list[str | int] = []
    for escaped, number, name, text, other in _PART.findall(replacement):
        if number:
            parts += _group(number, pattern, rule)
        elif name:
            if name not in pattern.groupindex:
                raise MappingRuleError(f"{rule!r}: the pattern has no group {name}")
            parts.append(pattern.groupindex[name])
        elif other:
            raise MappingRuleError(f"{rule!r}: {other} is followed by no group; write \\{other} for the character")
        else:
            parts.append(escaped or text)
    return parts


def _group(digits: str, pattern: re.Pattern[str], rule: str) -> list[str | int]:
    """The group that ``$digits`` means, and the digits that do not belong to its number. A group that the pattern does
    not have is a text, as in Kafka."""
    for length in range(len(digits), 0, -1):
        number = int(digits[:length])
        if number <= pattern.groups:
            break
    else:
        if not pattern.groups:
            raise MappingRuleError(f"{rule!r}: the pattern has no group, so that ${digits} means nothing")
        return [f"${digits}"]
    if digits[0] == "0":  # group 0 is the whole match, and takes no further digit
        number, length = 0, 1
    return [number, digits[length:]]
