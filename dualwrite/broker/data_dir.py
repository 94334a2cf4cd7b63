"""What may be a data directory: none without a name, and none that is another program's."""

import re
from pathlib import Path

from dualwrite.errors import ConfigurationError

_KAFKAS_OWN = "meta.properties"
_LOGS = f"*/{'[0-9]' * 20}.log"
_PARTITION = re.compile(r".+-[0-9]+")


def parse_data_dir(text: str) -> Path:
    """The data directory as it was given.

    :raises ConfigurationError: if it is empty, which would pass for the current directory.
    """
    if not text:
        raise ConfigurationError("data directory '': name one; the current directory is '.'")
    return Path(text)


def refuse_foreign(data_dir: Path, journal: str) -> None:
    """Refuse logs that this broker knows nothing of: they would be in the way of new topics, and be removed.

    :param journal: the name of the directory that a first start makes before any other.
    :raises ConfigurationError: if ``data_dir`` is Apache Kafka's, or holds logs of partitions and no journal.
    """
    found = data_dir / _KAFKAS_OWN
    if not found.exists():
        if (data_dir / journal).is_dir():
            return
        logs = [log for log in data_dir.glob(_LOGS) if _PARTITION.fullmatch(log.parent.name)]
        if not logs:
            return
        found = min(logs)
    raise ConfigurationError(f"data directory {data_dir} must be empty or dualwrite's own, and there is {found}")
