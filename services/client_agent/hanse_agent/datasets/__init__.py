"""Datasets: named sources of records at a node."""
