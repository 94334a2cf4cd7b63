"""Checks of a data directory: it needs a name, and must not belong to another program."""

from pathlib import Path

from dualwrite.errors import ConfigurationError

_KAFKAS_OWN = "meta.properties"
_NOBODYS = ("lost+found", "broker.log")
"""Files that a file system has in its root, and the first files of EmbeddedBroker."""


def parse_data_dir(text: str) -> Path:
    """The data directory of the option.

    :raises ConfigurationError: if it is empty, which would mean the current directory.
    """
    if not text:
        raise ConfigurationError("data directory '': name one; the current directory is '.'")
    return Path(text)


def refuse_foreign(data_dir: Path, journal: str) -> None:
    """Refuse a directory that another program uses: the files of both would conflict, and this broker would remove logs
    that it does not know. Hidden files (``.gitkeep``, our lock) do not count.

    :param journal: the name of the directory that a first start makes before any other.
    :raises ConfigurationError: if ``data_dir`` is Apache Kafka's, or has other files and no journal.
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
