"""Alembic's entry: the connection comes from ``run.py``."""

from alembic import context

from gateway.storage.schema import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    transactional_ddl=False,
    render_as_batch=True,
    defers_indexes=context.config.attributes.get("defers_indexes", False),
)
context.run_migrations()
