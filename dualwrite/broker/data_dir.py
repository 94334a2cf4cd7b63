"""What may be a data directory: none without a name, and none that is another program's."""

from pathlib import Path

from dualwrite.errors import ConfigurationError

_KAFKAS_OWN = "meta.properties"
_NOBODYS = ("lost+found", "broker.log")
"""What a file system puts into its root, and what EmbeddedBroker begins with."""


def parse_data_dir(text: str) -> Path:
    """The data directory as it was given.

    :raises ConfigurationError: if it is empty, which would pass for the current directory.
    """
    if not text:
        raise ConfigurationError("data directory '': name one; the current directory is '.'")
    return Path(text)


def refuse_foreign(data_dir: Path, journal: str) -> None:
    """Refuse a directory that somebody else uses: files of both in one place are in each other's way, and logs that
    this broker knows nothing of would be removed. Hidden files (``.gitkeep``, our lock) make no directory anybody's.

    :param journal: the name of the directory that a first start makes before any other.
    :raises ConfigurationError: if ``data_dir`` is Apache Kafka's, or holds anything and no journal.
    """
    found = data_dir / _KAFKAS_OWN
    if not found.exists():
        if (data_dir / journal).is_dir():
            return
        others = [each for each in data_dir.iterdir() if each.name not in _NOBODYS and not _is_hidden_file(each)]
        if not others:
            return
        found = min(others)
    raise ConfigurationError(f"data directory {data_dir} must be empty or dualwrite's own, and there is {found}")


def _is_hidden_file(path: Path) -> bool:
    return path.name.startswith(".") and path.is_file()
