"""The coordinator: membership, rounds and selection; the only writer of the ledger."""
