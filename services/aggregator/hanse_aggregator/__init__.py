"""The aggregator: hosts the server halves of methods; keeps nothing between calls."""
