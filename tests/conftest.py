"""Fixtures that several kinds of tests share."""

from tests.databases import database_url, new_database, postgresql

__all__ = ["database_url", "new_database", "postgresql"]
