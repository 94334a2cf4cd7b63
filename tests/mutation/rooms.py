"""The rooms that are mutated, and the tests that must notice it: pure code, whose tests take milliseconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class MutatedRoom:
    """A folder of ``dualwrite``.

    :param path: of the folder, below ``dualwrite``.
    :param tests: folders and files; mutmut runs those of their tests that call the mutated function.
    :param files: the files of the folder that are mutated, with wildcards.
    """

    path: str
    tests: tuple[str, ...]
    files: tuple[str, ...] = field(default=("*.py",))

    @property
    def folder(self) -> str:
        """From the root of the project."""
        return f"dualwrite/{self.path}"

    @property
    def is_whole(self) -> bool:
        """Whether all of its files are mutated."""
        return self.files == ("*.py",)

    @property
    def patterns(self) -> list[str]:
        """Of the files, from the root of the project."""
        return [f"{self.folder}/{file}" for file in self.files]

    def has(self, file: str) -> bool:
        """Whether ``file``, from the root of the project, is mutated."""
        return any(fnmatchcase(file, pattern) for pattern in self.patterns)


ROOMS: Mapping[str, MutatedRoom] = {
    room.path: room
    for room in (
        MutatedRoom(
            "coordinator/rules", ("tests/unit/coordinator/rules", "tests/coordinator/recovery/test_two_phase.py")
        ),
        MutatedRoom(
            "client/engine",
            ("tests/unit/client/engine", "tests/unit/client/producer"),
            (
                "accumulator.py",
                "coordinator_request.py",
                "coordinator_sender.py",
                "pending_operation.py",
                "transaction_requests.py",
                "transaction_state.py",
            ),
        ),
        MutatedRoom(
            "broker/core",
            ("tests/unit/broker/core",),
            (
                "open_times.py",
                "partitions.py",
                "record_rules.py",
                "transaction_recovery.py",
                "transaction_rules.py",
                "transactions.py",
            ),
        ),
    )
}
"""Of two rooms those files that decide what the database and Kafka have in the end: transactions, epochs, sequence
numbers, the last stable offset."""
