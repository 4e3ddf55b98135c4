"""Accelerators as data files, and the time a piece of work takes on them."""
