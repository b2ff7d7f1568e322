"""Alembic migrations, shipped with the package so that ``trainmaster migrate`` needs nothing else."""
