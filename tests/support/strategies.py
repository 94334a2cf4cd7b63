"""Hypothesis strategies and builders that several tests share."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.header import BatchFields, place_batch
from tests.support.wire_schemas import fields_of, structure_of

LATEST_TIMESTAMP = 2**42

ResultT = TypeVar("ResultT")
RefusalT = TypeVar("RefusalT", bound=Exception)

timestamps = st.integers(0, LATEST_TIMESTAMP)
maybe_bytes = st.none() | st.binary(max_size=40)
records = st.builds(Record, maybe_bytes, maybe_bytes, timestamps, st.just(0))
record_lists = st.lists(records, min_size=1, max_size=5)
producers = st.builds(ProducerIdentity, st.integers(0, 2**63 - 1), st.integers(0, 32767))
batch_fields = st.builds(
    BatchFields,
    producer=producers,
    base_sequence=st.integers(0, 2**31 - 1),
    transactional=st.booleans(),
    control=st.booleans(),
)


def placed(records: Sequence[Record], offset: int = 0, fields: BatchFields | None = None) -> bytearray:
    """A batch of ``records`` whose first one has ``offset``."""
    batch = bytearray(build_batch(records, fields))
    place_batch(batch, offset, leader_epoch=0)
    return batch


def attempt(action: Callable[[], ResultT], refusal: type[RefusalT]) -> ResultT | RefusalT:
    """What ``action`` returns, or the one kind of exception that it may raise."""
    try:
        return action()
    except refusal as error:
        return error


_SIMPLE = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(0, 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False),  # which is equal to nothing
    "string": st.text(st.characters(codec="utf-8"), max_size=12),
    "bytes": st.binary(max_size=20),
    "records": st.binary(max_size=20),
    "uuid": st.uuids(),
    "bitfield": st.sets(st.integers(0, 31)).filter(lambda bits: bits != {31}),  # -2147483648, which stands for null
}


def messages(message: Any, version: int) -> st.SearchStrategy[Any]:
    """Messages of a kafka-python class, every field of ``version`` drawn from the schema's type."""
    return _structs(message, structure_of(message), version)


def _structs(container: Any, struct: Any, version: int) -> st.SearchStrategy[Any]:
    fields = {field.name: _values(field, version) for field in fields_of(struct, version)}
    return st.fixed_dictionaries(fields).map(lambda values: container(version=version, **values))


def _values(field: Any, version: int) -> st.SearchStrategy[Any]:
    if field.is_struct_array():
        return st.lists(_structs(field.data_class, field.array_of, version), max_size=2)
    if field.is_struct():
        return _structs(field.data_class, field, version)
    if field.type_str.startswith("[]"):
        return st.lists(_SIMPLE[field.type_str[2:]], max_size=3)
    return _SIMPLE[field.type_str]
