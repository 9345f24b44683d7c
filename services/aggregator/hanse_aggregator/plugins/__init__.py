"""Aggregator plug-ins: the server halves of methods."""
