"""Alembic's environment: one connection, given by ``store.migrate``; time-outs so that a migration never blocks the service."""

from alembic import context
from sqlalchemy import Connection, text


def _run(connection: Connection) -> None:
    connection.execute(text("SET lock_timeout = '5s'"))
    connection.execute(text("SET statement_timeout = '10min'"))
    connection.commit()
    context.configure(connection=connection, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


_run(context.config.attributes["connection"])
