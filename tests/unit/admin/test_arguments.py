"""An argument of a wrong type is refused by the parameter's name, and no request is sent."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from numbers import Integral
from typing import Any

import pytest

from dualwrite.admin import acls, groups, records, topics
from dualwrite.admin.acls import EVERY_ACL, Acl, AclOperation, PatternType, Permission, ResourceType
from dualwrite.admin.arguments import require_indexes, require_integer, require_seconds
from dualwrite.errors import InputError
from dualwrite.wire.apis import ApiKey
from tests.support.client.scripted_broker import ScriptedBroker, scripted

READ = Acl(ResourceType.TOPIC, "orders", PatternType.PREFIXED, "User:a", "*", AclOperation.READ, Permission.ALLOW)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted() as running:
        yield running


change: Any = replace
"""Without its types, which the wrong values are not of."""

WRONG: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (topics.create_topic, (b"t",), {}, "name b't': use a text"),
    (topics.delete_topic, (None,), {}, "name None: use a text"),
    (topics.describe_topic, (5,), {}, "name 5: use a text"),
    (topics.describe_partitions, (None,), {}, "name None: use a text"),
    (topics.missing_topics, ("orders",), {}, "names 'orders': use a list of texts"),
    (topics.create_topic, ("t",), {"partitions": "3"}, "partitions '3': use an int"),
    (topics.create_topic, ("t",), {"replicas": True}, "replicas True: use an int"),
    (topics.create_topic, ("t",), {"config": [("a", "b")]}, "config [('a', 'b')]: use a dict of settings"),
    (groups.describe_group, (None,), {}, "group_id None: use a text"),
    (groups.delete_group, (b"g",), {}, "group_id b'g': use a text"),
    (groups.reset_offsets, (b"g", "t", "end"), {}, "group_id b'g': use a text"),
    (groups.reset_offsets, ("g", None, "end"), {}, "topic None: use a text"),
    (groups.reset_offsets, ("g", "t", "end"), {"partitions": 0}, "partitions 0: use a list of ints"),
    (records.read_records, (["t"],), {}, "topic ['t']: use a text"),
    (records.read_records, ("t",), {"partitions": "0"}, "partitions '0': use a list of ints"),
    (records.read_records, ("t",), {"partitions": [0.0]}, "partitions [0.0]: use a list of ints"),
    (records.read_records, ("t",), {"limit": "5"}, "limit '5': use an int"),
    (acls.list_acls, ("User:a",), {}, "found_by 'User:a': use a dualwrite.admin.acls.AclFilter"),
    (acls.remove_acls, (READ,), {}, "found_by Acl("),
    (acls.remove_acls, (change(EVERY_ACL, operation="READ"),), {}, "operation 'READ': use one of AclOperation"),
    (acls.remove_acls, (change(EVERY_ACL, host=5),), {}, "host 5: use a text"),
    (acls.add_acls, (READ,), {}, "acls Acl("),
    (acls.add_acls, ([change(READ, principal=None)],), {}, "principal None: use a text"),
    *(
        (topics.list_topics, (), {"timeout": seconds}, f"timeout {seconds!r}: use a number of seconds")
        for seconds in ("5", None, True, float("nan"))
    ),
]


@pytest.mark.parametrize(("function", "arguments", "options", "message"), WRONG, ids=[each[-1] for each in WRONG])
def test_an_argument_of_a_wrong_type_is_named(
    broker: ScriptedBroker, function: Any, arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        list(function({"bootstrap.servers": broker.bootstrap_servers}, *arguments, **options))
    assert str(caught.value).startswith(message)
    assert not broker.seen


class OtherInteger:
    """An integer that is no int, as NumPy's are: it is registered like them."""


Integral.register(OtherInteger)


def test_other_kinds_of_numbers_are_numbers() -> None:
    """Indexes of partitions may come from a data frame."""
    require_integer(limit=OtherInteger())
    require_indexes({OtherInteger(): "a partition"}.keys())
    require_seconds(Fraction(5, 2))


def test_true_is_not_taken_for_the_offset_1(broker: ScriptedBroker) -> None:
    broker.topics = {"t": 1}
    with pytest.raises(InputError, match="True: use beginning, end, an offset or a time"):
        groups.reset_offsets({"bootstrap.servers": broker.bootstrap_servers}, "g", "t", True)
    assert not broker.requests(ApiKey.OFFSET_COMMIT)
