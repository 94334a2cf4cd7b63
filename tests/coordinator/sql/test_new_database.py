"""A new database is one class and one entry in the list: nothing else knows which databases there are."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = '''
import sys
from alembic.ddl.sqlite import SQLiteImpl
from sqlalchemy import create_engine, text
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from dualwrite.coordinator.sql.dialects import supported
from dualwrite.coordinator.sql.dialects.sqlite import Sqlite


class Dialect(SQLiteDialect_pysqlite):
    """As of another package, which SQLAlchemy finds by its name."""

    name = "newdb"
    supports_statement_cache = True


class Implementation(SQLiteImpl):
    __dialect__ = "newdb"


class Newdb(Sqlite):
    title = "Newdb"
    example_url = "newdb:///orders.db"


registry.register("newdb", __name__, "Dialect")
supported.SUPPORTED["newdb"] = Newdb()

from dualwrite import DualWrite, schema
from tests.support.coordinator.fake_kafka import FakeKafka

engine = create_engine(sys.argv[1])
schema.upgrade_engine(engine)
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE orders (item TEXT)"))
kafka = FakeKafka()
config = {"bootstrap.servers": "nowhere:1"}
with DualWrite(engine, config, application="a", participant=kafka.participant, pool_size=1) as dual_write:
    with dual_write.transaction() as tx:
        tx.execute(text("INSERT INTO orders VALUES ('tea')"))
        tx.produce("orders", b"tea")
with engine.connect() as connection:
    print(connection.scalars(text("SELECT item FROM orders")).all(), kafka.committed)
'''


@pytest.mark.slow
def test_a_unit_of_work_commits_in_a_database_that_only_the_list_knows(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, f"newdb:///{tmp_path / 'new.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "['tea'] ['tea']\n", done.stderr
