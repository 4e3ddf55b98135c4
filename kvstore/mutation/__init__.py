"""Damages hand-offs on purpose and counts what goes unnoticed: nothing may."""
