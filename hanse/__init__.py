"""Hanse: federated learning where records stay where they are."""

__version__ = "0.1.0"
