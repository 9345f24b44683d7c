"""Whole federations on one machine, on real data: what `hanse demo …` runs."""
