"""What to compare, and the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from dualwrite.errors import InputError
from dualwrite.ids import is_legal_topic


@dataclass(frozen=True, slots=True)
class ComparisonJob:
    """A table and a topic, and which of their keys belong together.

    :param table: ``table`` or ``schema.table``; or a view.
    :param key: the columns that identify a row. The text of one column is the key of its records.
    :param record_key: for keys that are in the records' values: the path of a JSON field (``order.id``) for each column
        of ``key``. Empty if the key is the record's key.
    :param where: an SQL condition for the rows to compare. It is used as it stands.
    :param last: only the last record of a key counts, as in a compacted topic: a key may have several records.
    :param values: compare also the record's value, as JSON, with the row.
    """

    table: str
    topic: str
    key: Sequence[str]
    record_key: Sequence[str] = ()
    where: str | None = None
    last: bool = False
    values: bool = False

    def check(self) -> None:
        """Check the job by itself.

        :raises InputError: if it contradicts itself; the message names the option.
        """
        if not all(self.key) or not self.key:
            raise InputError("--key: name a column, or several with commas between them")
        if not all(self.record_key):
            raise InputError("--record-key: name a field of the value, or several with commas between them")
        if self.record_key and len(self.record_key) != len(self.key):
            raise InputError(
                f"--record-key names {len(self.record_key)} fields and --key {len(self.key)} columns: "
                "name a field for each column"
            )
        if len(self.key) > 1 and not self.record_key:
            raise InputError(
                f"--key {','.join(self.key)}: several columns have no agreed form as a record's key; name the fields "
                "of the value with --record-key"
            )
        if not is_legal_topic(self.topic):
            raise InputError(f"--topic {self.topic!r}: this is not a topic's name")


class Difference(Enum):
    """The ways in which the two sides of a key differ."""

    ONLY_IN_TABLE = "only in the table"
    ONLY_IN_TOPIC = "only in the topic"
    NOT_EQUALLY_OFTEN = "not equally often"
    OTHER_VALUE = "with another value"
    UNSETTLED = "not settled"
    """The key differs, but its row has changed between two looks, or one of its records may be in a transaction that is
    still open."""


@dataclass(frozen=True, slots=True)
class DifferingKey:
    """A key whose two sides differ, with the number of its rows and of its visible records."""

    difference: Difference
    key: bytes
    rows: int
    records: int


class Verdict(Enum):
    """What a comparison knows."""

    SAME = "same"
    """Every row and every record was compared, and no key differs."""
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """No key is known to differ, but some are not settled, or rows or records could not be compared."""


@dataclass(slots=True)
class Comparison:
    """The result.

    :param rows: the rows that were compared.
    :param records: the records that a read_committed consumer sees.
    :param rows_without_key: rows with NULL, or a text that is not valid Unicode, in a column of the key. They cannot be
        compared.
    :param records_without_key: records without a key, or without readable fields that hold it.
    :param first_without_key: the partition and the offset of one such record; None if there is none.
    :param after_stable: for each partition that has them, how many offsets after the last stable offset were not
        compared. An open transaction, and records behind it, are there.
    :param differing: how many keys differ in each way.
    :param examples: the first keys of each way, in the order of their bytes.
    :param deleted_before: the first offset of each partition whose log does not begin at 0: retention, for example, has
        deleted the records before it.
    """

    rows: int = 0
    records: int = 0
    rows_without_key: int = 0
    records_without_key: int = 0
    first_without_key: tuple[int, int] | None = None
    after_stable: Mapping[int, int] = field(default_factory=dict)
    differing: Mapping[Difference, int] = field(default_factory=dict)
    examples: Sequence[DifferingKey] = ()
    deleted_before: Mapping[int, int] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Whether both sides are the same."""
        if any(number for difference, number in self.differing.items() if difference is not Difference.UNSETTLED):
            return Verdict.DIFFERENT
        if any(self.differing.values()) or self.after_stable or self.rows_without_key or self.records_without_key:
            return Verdict.UNKNOWN
        return Verdict.SAME
