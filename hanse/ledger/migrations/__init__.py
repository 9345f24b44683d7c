"""The ledger's one linear history of table changes."""
