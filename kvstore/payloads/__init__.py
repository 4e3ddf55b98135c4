"""Opaque payloads of any length, as verified segments under keys."""
