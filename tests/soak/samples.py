"""What a soak measures: memory, open files and threads of the processes that live through it, files and tables."""

from collections.abc import Collection
from pathlib import Path

from sqlalchemy import Engine, func, select, text

from dualwrite.coordinator.sql.tables import (
    kafka_transaction_outcome,
    kafka_transaction_record,
    kafka_transaction_state,
)
from tests.soak.growth import Allowance

MIB = 1 << 20

ALLOWANCES = {
    "broker: memory (MiB)": Allowance(6, 0.10),
    "broker: open files": Allowance(8, 0.10),
    "broker: threads": Allowance(2, 0.0),
    "broker: data (MiB)": Allowance(4, 0.25),
    "workers: memory (MiB)": Allowance(6, 0.10),
    "workers: open files": Allowance(4, 0.10),
    "workers: threads": Allowance(2, 0.0),
    "tables of dualwrite: rows": Allowance(2, 0.0),
    "tables of dualwrite: size (MiB)": Allowance(1, 0.25),
    "database: sessions": Allowance(4, 0.0),
}
"""What is measured, and what still counts as flat: noise of an allocator, a sawtooth of segments that are deleted."""

_OWN = (kafka_transaction_state, kafka_transaction_outcome, kafka_transaction_record)


def deletes_segments(data_dir: Path, topics: Collection[str]) -> bool:
    """True once the broker of ``data_dir`` deletes as much as it gets: each partition of ``topics`` has lost its first
    segment."""
    whole = {path.parent.name.rpartition("-")[0] for path in data_dir.glob(f"*/{0:020}.log")}
    return whole.isdisjoint(topics)


def sample(broker: int, data_dir: Path, workers: list[int], engine: Engine) -> dict[str, float]:
    """One sample.

    :param broker: its process id.
    :param workers: the process ids of those that nothing kills. The largest value counts.
    """
    measured = {
        "broker: memory (MiB)": memory(broker),
        "broker: open files": open_files(broker),
        "broker: threads": threads(broker),
        "broker: data (MiB)": size_of(data_dir) / MIB,
        "workers: memory (MiB)": max(map(memory, workers)),
        "workers: open files": max(map(open_files, workers)),
        "workers: threads": max(map(threads, workers)),
    }
    with engine.connect() as connection:
        rows = sum(connection.scalar(select(func.count()).select_from(table)) or 0 for table in _OWN)
        sizes = [f"pg_total_relation_size('{table.name}')" for table in _OWN]
        size = connection.scalar(text(f"SELECT {' + '.join(sizes)}"))
        sessions = connection.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"))
    return {
        **measured,
        "tables of dualwrite: rows": rows,
        "tables of dualwrite: size (MiB)": (size or 0) / MIB,
        "database: sessions": sessions or 0,
    }


def memory(process: int) -> float:
    """Memory in MiB that is no file's, also what a forked process still shares with its parent: a garbage collection
    writes to all objects, and makes that the process's own in one step."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    kibibytes = sum(int(line.split()[1]) for line in lines if line.startswith(("Anonymous:", "Swap:")))
    return kibibytes / 1024


def open_files(process: int) -> float:
    """Descriptors."""
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


def threads(process: int) -> float:
    """Threads."""
    return len(list(Path(f"/proc/{process}/task").iterdir()))


def size_of(directory: Path) -> int:
    """Bytes of all files; one that is deleted meanwhile has none."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
