"""The function with which an engine's pool makes connections.

SQLAlchemy offers no public way to read it, nor to replace it without a new engine: ``bound_connections`` replaces the
pool's private attribute, and a test of that must look at the same attribute.
"""

from typing import Any

from sqlalchemy import Engine


def creator_of(engine: Engine) -> Any:
    """The function that makes the connections of the pool of ``engine``."""
    return engine.pool._creator
