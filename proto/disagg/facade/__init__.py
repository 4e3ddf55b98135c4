"""Interfaces that other projects published, as far as this one speaks them."""
