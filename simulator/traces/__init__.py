"""Workloads: read from public traces, generated, scaled in time."""
