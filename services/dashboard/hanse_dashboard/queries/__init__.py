"""Questions to the ledger. Pages, the REST API and exports ask the same ones, and get the same frozen rows."""
