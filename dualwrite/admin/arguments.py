"""Refuses arguments of a wrong type, by their names. A request would write them as texts, or fail at its encoding."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from math import isnan
from numbers import Integral, Real
from typing import Any, TypeGuard

from dualwrite.broker.access.acls import Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType
from dualwrite.errors import InputError

_ENUMERATIONS = {
    "resource_type": ResourceType,
    "pattern_type": PatternType,
    "operation": AclOperation,
    "permission": Permission,
}
"""The types of an ACL's fields that are no texts."""


def require_text(**values: object) -> None:
    """Require that each of ``values`` is a text.

    :raises InputError: if not; it names the parameter.
    """
    for name, value in values.items():
        if not isinstance(value, str):
            raise InputError(f"{name} {value!r}: use a text")


def require_texts(**values: object) -> None:
    """Require that each of ``values`` is a collection of texts, and not a text itself, which is one of letters."""
    for name, value in values.items():
        if not _is_collection(value) or not all(isinstance(each, str) for each in value):
            raise InputError(f"{name} {value!r}: use a list of texts")


def require_integer(**values: object) -> None:
    """Require that each of ``values`` is an int or None."""
    for name, value in values.items():
        if value is not None and not _is_integer(value):
            raise InputError(f"{name} {value!r}: use an int")


def require_indexes(partitions: object) -> None:
    """Require a collection of ints, the indexes of partitions, or None."""
    if partitions is not None and not (_is_collection(partitions) and all(map(_is_integer, partitions))):
        raise InputError(f"partitions {partitions!r}: use a list of ints, such as [0]")


def require_config(config: object) -> None:
    """Require a mapping of settings, or None."""
    if config is not None and not isinstance(config, Mapping):
        raise InputError(f"config {config!r}: use a dict of settings")


def require_seconds(timeout: object) -> None:
    """Require a number of seconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or isnan(timeout):
        raise InputError(f"timeout {timeout!r}: use a number of seconds")


def require_acls(acls: object) -> None:
    """Require a collection of ACLs whose fields have their types."""
    if not _is_collection(acls) or not all(isinstance(each, Acl) for each in acls):
        raise InputError(f"acls {acls!r}: use a list of dualwrite.admin.acls.Acl")
    for acl in acls:
        _require_fields(acl)


def require_filter(found_by: object) -> None:
    """Require a filter of ACLs whose fields have their types."""
    if not isinstance(found_by, AclFilter):
        raise InputError(f"found_by {found_by!r}: use a dualwrite.admin.acls.AclFilter")
    _require_fields(found_by)


def _require_fields(entry: Acl | AclFilter) -> None:
    for name in (field.name for field in fields(entry)):
        value, enumeration = getattr(entry, name), _ENUMERATIONS.get(name)
        if enumeration is not None:
            if not isinstance(value, enumeration):
                raise InputError(f"{name} {value!r}: use one of {enumeration.__name__}")
        elif value is not None or isinstance(entry, Acl):
            require_text(**{name: value})


def _is_collection(value: object) -> TypeGuard[Collection[Any]]:
    return isinstance(value, Collection) and not isinstance(value, str | bytes)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)  # also NumPy's, of which partitions may be
