"""The dashboard: pages and a REST API over the ledger; actions go through the coordinator's control service."""
