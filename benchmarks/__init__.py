"""Measurements, one module each; every module prints one JSON object with `--json`."""
