"""The oracle of a soak: matches rows with records while units of work go on, and forgets what it has matched.

A unit commits in the database first. So an item that a read_committed consumer sees must be a row by then; a row may
wait for its record. What is matched is deleted: a record that comes a second time finds no row.
"""

from collections import Counter

from sqlalchemy import Engine, delete, select, tuple_

from dualwrite.comparison.topic import TopicReader
from tests.support.crash.application import LEFT, RIGHT, items
from tests.support.crash.oracle import Item

_ROWS_AT_ONCE = 2_000


class Matching:
    """Reads both topics on, and the table.

    :param bootstrap_servers: of the broker itself.
    """

    def __init__(self, bootstrap_servers: str, engine: Engine) -> None:
        self._engine = engine
        self._readers = {topic: TopicReader({"bootstrap.servers": bootstrap_servers}, topic) for topic in (LEFT, RIGHT)}
        self._seen: dict[str, Counter[Item]] = {topic: Counter() for topic in self._readers}
        self.matched = 0
        """Rows with a record in each topic."""
        self.anomalies: list[str] = []

    def look(self) -> None:
        """Match what has come."""
        for topic, reader in self._readers.items():
            seen = self._seen[topic]
            for batch in reader.read_on():
                for message in batch:
                    unit, _, item = (message.key() or b"").decode().partition(":")
                    seen[unit, int(item)] += 1
        rows = self._rows()
        for topic, seen in self._seen.items():
            self.anomalies += [f"duplicate: {item} in {topic}" for item, count in seen.items() if count > 1]
            for item in [item for item in seen if item not in rows]:
                self.anomalies.append(f"aborted read, or duplicate: {item} in {topic}")
                del seen[item]
        both = [item for item in rows if all(item in seen for seen in self._seen.values())]
        self._forget(both)

    def end(self) -> None:
        """Every unit has ended: what is not matched by now is lost."""
        self.look()
        self.anomalies += [f"lost write: {item}" for item in sorted(self._rows())]

    def close(self) -> None:
        """Close the consumers."""
        for reader in self._readers.values():
            reader.close()

    def _rows(self) -> set[Item]:
        with self._engine.connect() as connection:
            return {(unit, item) for unit, item in connection.execute(select(items.c.unit, items.c.item))}

    def _forget(self, matched: list[Item]) -> None:
        with self._engine.begin() as connection:
            for begin in range(0, len(matched), _ROWS_AT_ONCE):
                part = matched[begin : begin + _ROWS_AT_ONCE]
                connection.execute(delete(items).where(tuple_(items.c.unit, items.c.item).in_(part)))
        for seen in self._seen.values():
            for item in matched:
                del seen[item]
        self.matched += len(matched)
