"""Learners: the node halves of methods."""
