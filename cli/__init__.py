"""The `disagg` command; the top floor, imported by nobody."""
