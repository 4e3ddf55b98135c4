"""Engines of several ranks: one leads, the others repeat what its runner is told to do."""
