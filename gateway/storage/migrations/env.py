"""Alembic's entry: the connection comes from ``run.py``."""

from alembic import context

from gateway.storage.schema import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    transactional_ddl=False,
    render_as_batch=True,
    is_in_use=context.config.attributes.get("is_in_use", False),
)
context.run_migrations()
