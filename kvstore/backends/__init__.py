"""Implementations of the two ports of the store."""
