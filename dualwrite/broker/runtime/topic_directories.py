"""The directories of topics: one for each partition, called topic-partition, as in Kafka.

A directory may belong to no topic, if a power cut lost the creation of the topic, or a crash came between the deletion
of the topic and the removal of its files. Its content was never acknowledged, or was deleted, and a new topic never
reads it. A topic's directories are on disk before the topic. If one is missing at a start, another program removed it.
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
    """The message for a ``path`` from :meth:`TopicDirectories.stray`, which prevents a new topic."""
    return f"{path} holds a log that belongs to no topic: move it away"


class TopicDirectories:
    """The directories of topics in ``data_dir``."""

    def __init__(self, files: Files, data_dir: Path) -> None:
        self._files = files
        self._data_dir = data_dir
        self._logged: set[Path] = set()

    def check(self, partitions: Iterable[TopicPartition]) -> None:
        """Check that all of ``partitions`` have their directories.

        :raises CorruptLogError: if one is missing. An empty log in its place would hide the loss.
        """
        present = set(self._files.list(self._data_dir))
        for partition in partitions:
            if str(partition) not in present:
                raise CorruptLogError(
                    f"{self.path(partition)} is missing, with all its records: "
                    "restore it from a copy, or create it as an empty directory to continue without them"
                )

    def path(self, partition: TopicPartition) -> Path:
        """The directory of ``partition``."""
        return self._data_dir / str(partition)

    def paths(self, topic: str, partitions: Iterable[int]) -> list[Path]:
        """The directories of some partitions of ``topic``."""
        return [self.path(TopicPartition(topic, index)) for index in partitions]

    def stray(self, paths: Sequence[Path]) -> Path | None:
        """One of ``paths`` with the log of a forgotten topic that was stopped cleanly, or None.

        Logs it once: a client that creates the topic by a Metadata request gets no reason.

        :param paths: the directories that new partitions need.
        """
        path = next((path for path in paths if self._was_stopped(path)), None)
        if path is not None and path not in self._logged:
            self._logged.add(path)
            logger.warning("%s", stray_message(path))
        return path

    def _was_stopped(self, path: Path) -> bool:
        try:
            return read_recovery_point(self._files, path) > 0
        except CorruptLogError:
            return True  # the files were changed after the stop

    def clear(self, paths: Sequence[Path]) -> None:
        """Remove files in ``paths`` that new partitions would mistake for their logs, durably."""
        for path in paths:
            names = [name for name in self._files.list(path) if belongs_to_log(name)]
            for name in names:
                logger.warning("removing %s, which a crash left without its topic", path / name)
                self._files.remove(path / name)
            if names:
                self._files.sync_directory(path)

    def existing(self, paths: Iterable[Path]) -> list[Path]:
        """Those of ``paths`` that there are, by one look at the data directory."""
        present = set(self._files.list(self._data_dir))
        return [path for path in paths if path.name in present]

    def remove(self, paths: Sequence[Path]) -> None:
        """Remove ``paths`` and every file in them, durably. May be called from another thread."""
        for path in paths:
            names = self._files.list(path)
            for name in names:
                with suppress(FileNotFoundError):  # a cleaning in progress has removed its own files
                    self._files.remove(path / name)
            if names:
                self._files.sync_directory(path)
            try:
                self._files.remove_directory(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                logger.warning(
                    "%s is in use: a new topic of that name, or the next start, removes its last files", path
                )
        if paths:
            self._files.sync_directory(self._data_dir)
