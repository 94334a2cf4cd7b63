"""The directories of topics: one for each partition, called topic-partition, as in Kafka.

A directory may belong to no topic: a power cut may have lost the topic's creation, or a crash may have come between the
deletion of a topic and that of its files. Its content was never acknowledged, or was deleted; a new topic never reads
it. A topic's directories are on disk before the topic is: if one is missing at a start, it was removed from outside.
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
    """The message for a ``path`` that :meth:`TopicDirectories.stray` found in the way of a new topic."""
    return f"{path} holds a log that no topic accounts for: move it away"


class TopicDirectories:
    """The directories of topics in ``data_dir``."""

    def __init__(self, files: Files, data_dir: Path) -> None:
        self._files = files
        self._data_dir = data_dir
        self._told: set[Path] = set()

    def check(self, partitions: Iterable[TopicPartition]) -> None:
        """Check that all of ``partitions`` have their directories.

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
        """One of ``paths``, which are needed for new partitions, that was left by a clean stop: it is of a topic that
        was forgotten. Logged once, as a client that creates the topic by a Metadata request gets no reason."""
        found = next((path for path in paths if self._was_stopped(path)), None)
        if found is not None and found not in self._told:
            self._told.add(found)
            logger.warning("%s", stray_message(found))
        return found

    def _was_stopped(self, path: Path) -> bool:
        try:
            return read_recovery_point(self._files, path) > 0
        except CorruptLogError:
            return True  # the files have changed since the stop

    def clear(self, paths: Sequence[Path]) -> None:
        """Remove files in ``paths`` that would be mistaken for the log of new partitions, durably."""
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
                with suppress(FileNotFoundError):  # a cleaning in progress has removed its own
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
