"""alembic's environment. ``dualwrite.cli.db`` runs it, on a connection whose transaction it begins and ends."""

from alembic import context

from dualwrite.coordinator.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
