"""The directories of topics: one for each partition, called topic-partition, as Kafka has them.

A directory may hold what no topic accounts for: a power cut can leave it behind though it lost the topic's creation, or
a crash can come between the deletion of a topic and that of its files. Nobody was told of what is in there, or it was
given up; a new topic never sees it. The other way round a topic's directories are on disk before it is: one that is
missing at a start was taken away.
"""

import errno
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from dualwrite.broker.log.layout import belongs_to_log, read_recovery_point
from dualwrite.errors import CorruptLogError
from dualwrite.ids import TopicPartition
from dualwrite.ports import Files

logger = logging.getLogger(__name__)


def stray_message(path: Path) -> str:
    """What is said when ``path``, which :meth:`TopicDirectories.stray` found, is in a new topic's way."""
    return f"{path} holds a log that no topic accounts for: move it away"


class TopicDirectories:
    """The directories of topics in ``data_dir``."""

    def __init__(self, files: Files, data_dir: Path) -> None:
        self._files = files
        self._data_dir = data_dir
        self._told: set[Path] = set()

    def check(self, partitions: Iterable[TopicPartition]) -> None:
        """See to it that all of ``partitions`` have their directories.

        :raises CorruptLogError: if one is missing; an empty log in its place would be silent loss.
        """
        present = set(self._files.list(self._data_dir))
        for partition in partitions:
            if str(partition) not in present:
                raise CorruptLogError(
                    f"{self.path(partition)} is missing, with all that was in it: "
                    "restore it from a copy, or make it as an empty directory to go on without"
                )

    def path(self, partition: TopicPartition) -> Path:
        """The directory of ``partition``."""
        return self._data_dir / str(partition)

    def paths(self, topic: str, partitions: Iterable[int]) -> list[Path]:
        """The directories of some partitions of ``topic``."""
        return [self.path(TopicPartition(topic, index)) for index in partitions]

    def stray(self, paths: Sequence[Path]) -> Path | None:
        """One of ``paths``, which are wanted for new partitions, that has seen a clean stop: it is of some topic that
        was forgotten. The log is told of it once: a client that asks for a topic and so makes it is told no reason."""
        found = next((path for path in paths if self._was_stopped(path)), None)
        if found is not None and found not in self._told:
            self._told.add(found)
            logger.warning("%s", stray_message(found))
        return found

    def _was_stopped(self, path: Path) -> bool:
        try:
            return read_recovery_point(self._files, path) > 0
        except CorruptLogError:
            return True  # somebody has changed what a stop left

    def clear(self, paths: Sequence[Path]) -> None:
        """Remove what would pass for the log of new partitions in ``paths``, durably."""
        for path in paths:
            names = [name for name in self._files.list(path) if belongs_to_log(name)]
            for name in names:
                logger.warning("removing %s, which a crash left without its topic", path / name)
                self._files.remove(path / name)
            if names:
                self._files.sync_directory(path)

    def remove(self, paths: Sequence[Path]) -> None:
        """Remove ``paths`` and every file in them, durably. May be called from another thread."""
        present = set(self._files.list(self._data_dir))
        found = [path for path in paths if path.name in present]
        for path in found:
            for name in self._files.list(path):
                with suppress(FileNotFoundError):  # a cleaning that was under way has removed its own
                    self._files.remove(path / name)
            self._files.sync_directory(path)
            try:
                self._files.remove_directory(path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                logger.warning("%s is in use: its last files go when a topic of that name is made, or at a start", path)
        if found:
            self._files.sync_directory(self._data_dir)
