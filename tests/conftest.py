"""Fixtures that several kinds of tests share."""

from tests.buckets import new_bucket, s3_server
from tests.databases import database_url, new_database, postgresql

__all__ = ["database_url", "new_bucket", "new_database", "postgresql", "s3_server"]
