"""The dry run of a load: reads every row of the input, and asks neither the database nor Kafka."""

from dataclasses import dataclass

from dualwrite.errors import InputError
from dualwrite.loader.format import delimiter_hint
from dualwrite.loader.input import InputFile, MalformedRow
from dualwrite.loader.job import LoadJob

SHOWN_ROWS = 10


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of a dry run.

    :param rows: the number of rows that are well formed. Whether their values fit the table is not known.
    :param bad_rows: the number of rows that are not.
    :param first_bad: the messages of the first bad rows, each with its line.
    :param columns: the columns, in the order of the header, or of their first appearance in JSON lines.
    :param hint: an advice about the delimiter, or empty.
    """

    rows: int
    bad_rows: int
    first_bad: tuple[str, ...]
    columns: tuple[str, ...]
    hint: str

    def units(self, batch_size: int) -> int:
        """The number of units of work that would load the rows."""
        return -(-(self.rows + self.bad_rows) // batch_size)


def dry_run(job: LoadJob) -> DryRun:
    """Read every row of ``job``'s input. Writes nothing.

    :raises InputError: if the input cannot be read to its end, or has no column for the key.
    :raises ConfigurationError: if the job contradicts itself.
    """
    job.check()
    rows = bad = 0
    first_bad: list[str] = []
    columns: dict[str, None] = {}
    with InputFile(job.path, job.form) as source:
        header = source.columns
        if header is not None and job.key is not None and job.key not in header:
            raise InputError(f"key column {job.key!r} is not in {source.name}{delimiter_hint(header)}")
        columns.update(dict.fromkeys(header or ()))
        for item in source.items():
            message = None
            if isinstance(item, MalformedRow):
                message = item.message
            elif job.key is not None and job.key not in item.values:
                message = f"{source.name}, line {item.line}: key column {job.key!r} is missing"
            else:
                rows += 1
                if header is None:
                    columns.update(dict.fromkeys(item.values))
            if message is not None:
                bad += 1
                if len(first_bad) < SHOWN_ROWS:
                    first_bad.append(message)
    return DryRun(rows, bad, tuple(first_bad), tuple(columns), delimiter_hint(header or ()))
