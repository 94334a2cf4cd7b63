"""The tables of the shop."""

import pytest
from sqlalchemy import Engine

from tests.support.coordinator.shop import ShopBase


@pytest.fixture
def shop(sqlite_engine: Engine) -> Engine:
    ShopBase.metadata.create_all(sqlite_engine)
    return sqlite_engine
