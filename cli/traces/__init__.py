"""Traces on this machine: the collector of `disagg up --trace`, and how a trace is drawn."""
