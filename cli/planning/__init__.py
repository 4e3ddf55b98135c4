"""Dry runs: what a layout would give, without ranks and without weights."""
