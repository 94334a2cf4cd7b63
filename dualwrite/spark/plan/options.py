"""The options of a write: their list, and their parser.

Each option has a name in Spark's style, for ``.option(…)``, and a name for Python's keywords. Values may be texts, as
Spark passes them on, or Python values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

from dualwrite.client.config.reading import BOOTSTRAP_KEY
from dualwrite.errors import ConfigurationError
from dualwrite.ids import is_legal_topic

KAFKA_PREFIX = "kafka."
_LONGEST_NAME = 255
_NOT_OURS = frozenset({"checkpointlocation", "queryname"})
"""Spark's own options of a stream, which it passes on together with ours."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options of a write. OPTIONS describes them. repr() omits the URL and Kafka's settings, which may
    contain passwords.

    :param kafka: librdkafka's settings, sorted by name.
    """

    url: str = field(repr=False)
    dbtable: str
    application: str
    kafka: tuple[tuple[str, str], ...] = field(repr=False)
    topic: str | None = None
    job: str | None = None
    batch_id: int | None = None
    upsert_keys: tuple[str, ...] = ()
    table_columns: tuple[str, ...] | None = None
    value_columns: tuple[str, ...] | None = None
    batchsize: int = 10_000
    driver_bytes: int = 16 * 2**20
    pool_size: int = 1024
    acquire_timeout: float = 60.0
    lease_timeout: float = 30.0
    database_timeout: float = 60.0
    run_timeout: float = 3600.0
    keep_batches: int = 100
    known_batch: Literal["compare", "skip"] = "compare"
    producer: Literal["native", "librdkafka"] | None = None
    two_phase: Literal["keep-prepared", "resume"] = "keep-prepared"

    @property
    def kafka_config(self) -> dict[str, str]:
        """``kafka`` as a new dict for DualWrite."""
        return dict(self.kafka)

    def require_job(self) -> str:
        """The job's name, for writes that need one.

        :raises ConfigurationError: if it is not given.
        """
        if self.job is None:
            raise ConfigurationError(f"option 'job' is missing: {_BY_KEYWORD['job'].doc}")
        return self.job


class Option(NamedTuple):
    """One option: its two names, its parser, its default as a text, and its description."""

    name: str
    keyword: str
    read: Callable[[Any], Any]
    default: str | None
    doc: str
    is_required: bool = False


def options_of(options: Mapping[str, Any]) -> WriteOptions:
    """Parse ``options``. Names of either kind may be in upper or lower case, as Spark's are. None means not given.

    :raises ConfigurationError: naming the first option that is unknown, missing, given twice or has a wrong value.
    """
    kafka: dict[str, str] = {}
    parsed: dict[str, Any] = {}
    for name, value in options.items():
        if name == "kafka" and isinstance(value, Mapping):
            for key, setting in value.items():
                _put(kafka, key, _setting(key, setting), f"{KAFKA_PREFIX}{key}")
        elif name.lower().startswith(KAFKA_PREFIX):
            key = name.lower().removeprefix(KAFKA_PREFIX)
            _put(kafka, key, _setting(key, value), name)
        elif name.lower() not in _NOT_OURS and value is not None:
            option = _option(name)
            _put(parsed, option.keyword, _read(option, value), name)
    for option in OPTIONS:
        if option.is_required and option.keyword not in parsed:
            raise ConfigurationError(f"option {option.name!r} is missing: {option.doc}")
    if BOOTSTRAP_KEY not in kafka:
        raise ConfigurationError(f"option '{KAFKA_PREFIX}{BOOTSTRAP_KEY}' is missing: HOST:PORT of one broker or more")
    return WriteOptions(kafka=tuple(sorted(kafka.items())), **parsed)


def batch_id_of(value: Any) -> int:
    """Parse the number of a batch that is given as an argument, not as an option.

    :raises ConfigurationError: if it is not a batch number.
    """
    number: int = _read(_BY_KEYWORD["batch_id"], value)
    return number


def _put(into: dict[str, Any], key: str, value: Any, name: str) -> None:
    if key in into:
        raise ConfigurationError(f"option {name!r} is given twice")
    into[key] = value


def _option(name: str) -> Option:
    option = _BY_NAME.get(name.lower())
    if option is None and name.lower() in ("kafka", BOOTSTRAP_KEY):
        raise ConfigurationError(
            f"there is no option {name!r}: write '{KAFKA_PREFIX}{BOOTSTRAP_KEY}',"
            f" or kafka={{{BOOTSTRAP_KEY!r}: …}} in Python"
        )
    if option is None:
        close = get_close_matches(name.lower(), _BY_NAME, 1, 0.6)
        hint = f"did you mean {_BY_NAME[close[0]].name!r}?" if close else f"there are {', '.join(_NAMES)}"
        raise ConfigurationError(f"there is no option {name!r}: {hint}")
    return option


def _read(option: Option, value: Any) -> Any:
    try:
        return option.read(value)
    except (TypeError, ValueError) as error:
        # A misplaced value may be a URL with its password, or all of the options.
        is_shown = isinstance(value, str | int | float) and "://" not in str(value) and option.keyword != "url"
        shown = f" {value!r}" if is_shown else ""
        raise ConfigurationError(f"option {option.name!r}{shown}: {error}") from None


def _setting(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise ConfigurationError(
            f"option '{KAFKA_PREFIX}{key}': a {type(value).__name__} cannot be sent to the executors; use a text or a "
            "number"
        )
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("use a text that is not empty")
    return value


def _table(value: Any) -> str:
    text = _text(value)
    if "://" in text:
        raise ValueError("this is a URL; use table or schema.table")
    return text


def _name(value: Any) -> str:
    text = _text(value)
    if len(text) > _LONGEST_NAME or not text.isprintable():
        raise ValueError(f"use at most {_LONGEST_NAME} printable characters")
    if text != text.strip():
        raise ValueError("remove the spaces at its ends: MariaDB and MySQL ignore them, so two names would be one")
    return text


_USE_SQLALCHEMYS = "use a SQLAlchemy URL, such as postgresql+psycopg://user:password@host/database"


def _url(value: Any) -> str:
    text = _text(value)
    if text.lower().startswith("jdbc:"):
        raise ValueError(f"this is a JDBC URL; {_USE_SQLALCHEMYS}")
    if text.startswith("postgres:"):
        raise ValueError("write postgresql+psycopg: instead of postgres:, as in SQLAlchemy's URLs")
    if ":" not in text:
        raise ValueError(_USE_SQLALCHEMYS)
    return text


def _topic(value: Any) -> str:
    text = _text(value)
    if not is_legal_topic(text):
        raise ValueError("use 1 to 249 letters, digits, dots, underscores and hyphens")
    return text


_LARGEST = 2**63 - 1
"""A number's upper bound in the databases."""


def _whole(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError("use a whole number")
        try:
            number = int(value)
        except ValueError:
            raise ValueError("use a whole number") from None
        if number < least:
            raise ValueError(f"use {least} or more")
        if number > _LARGEST:
            raise ValueError(f"use at most {_LARGEST}")
        return number

    return read


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise ValueError("use a number of seconds") from None
    if not 0 < seconds < float("inf"):
        raise ValueError("use a number of seconds above 0")
    return seconds


def _names(value: Any) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else tuple(value)
    if not all(isinstance(name, str) and name for name in names):
        raise ValueError("use names of columns, separated by commas")
    if len(set(names)) < len(names):
        raise ValueError("a column is named twice")
    return names


def _columns(value: Any) -> tuple[str, ...]:
    """Names in an order that counts: for the fields of JSON, it must be the same in each run."""
    if isinstance(value, set | frozenset):
        raise ValueError("a set has no order; use a list")
    names = _names(value)
    if not names:
        raise ValueError("name a column, or leave the option out")
    return names


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"use {' or '.join(map(repr, choices))}")
        return str(value)

    return read


OPTIONS: tuple[Option, ...] = (
    Option("url", "url", _url, None, "the database, as SQLAlchemy's URL", is_required=True),
    Option("dbtable", "dbtable", _table, None, "the table, schema.table if need be; it must exist", is_required=True),
    Option(
        "application",
        "application",
        _text,
        None,
        "a name that is unique among all applications on the cluster and in the database, as for DualWrite: one name "
        "is for one cluster and one database",
        is_required=True,
    ),
    Option("topic", "topic", _topic, None, "the topic of all records; without it, the column topic of each row"),
    Option("job", "job", _name, None, "a name that is unique in the database; no batch of a job is written twice"),
    Option("batchId", "batch_id", _whole(0), None, "the number of the job's batch; Structured Streaming provides it"),
    Option(
        "upsertKeys",
        "upsert_keys",
        _names,
        None,
        "columns of a unique key: a row replaces the row with the same key. Not set: rows are added",
    ),
    Option(
        "columns.table",
        "table_columns",
        _columns,
        None,
        "the columns for the table. Not set: all except Kafka's columns",
    ),
    Option(
        "columns.value",
        "value_columns",
        _columns,
        None,
        "the columns of the JSON in the record's value. Not set: the table's columns, if no column is called value",
    ),
    Option("batchsize", "batchsize", _whole(1), "10000", "rows in one insert, and in an executor's memory"),
    Option(
        "driverBytes",
        "driver_bytes",
        _whole(0),
        str(16 * 2**20),
        "bytes of small partitions of a whole batch that Spark's driver may hold, to write them itself; 0 for none",
    ),
    Option(
        "poolSize",
        "pool_size",
        _whole(1),
        "1024",
        "slots of the application: the maximum number of concurrent tasks and prepared transactions",
    ),
    Option("acquireTimeout", "acquire_timeout", _seconds, "60", "seconds that a task waits for a slot"),
    Option(
        "leaseTimeout",
        "lease_timeout",
        _seconds,
        "30",
        "seconds after which other processes may take the slots of a lost executor",
    ),
    Option(
        "databaseTimeout",
        "database_timeout",
        _seconds,
        "60",
        "seconds that the database may take for each step of this library's own; rows in bulk are not limited",
    ),
    Option(
        "runTimeout",
        "run_timeout",
        _seconds,
        "3600",
        "seconds that a whole batch may take, and that the run of a dead driver may stay open",
    ),
    Option(
        "keepBatches",
        "keep_batches",
        _whole(1),
        "100",
        "how many of the job's latest batches are remembered",
    ),
    Option(
        "knownBatch",
        "known_batch",
        _one_of("compare", "skip"),
        "compare",
        "a batch that was written before: compare its target and its rows, or skip it unread",
    ),
    Option("producer", "producer", _one_of("native", "librdkafka"), None, "native or librdkafka; as for DualWrite"),
    Option(
        "twoPhase",
        "two_phase",
        _one_of("keep-prepared", "resume"),
        "keep-prepared",
        "keep-prepared, or resume for released Apache Kafka; as for DualWrite",
    ),
)
"""All options but Kafka's, which are librdkafka's settings with the prefix ``kafka.``."""

_BY_KEYWORD = {option.keyword: option for option in OPTIONS}
_BY_NAME = {**_BY_KEYWORD, **{option.name.lower(): option for option in OPTIONS}}
_NAMES = (*(option.name for option in OPTIONS), f"{KAFKA_PREFIX}*")
