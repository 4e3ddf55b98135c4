"""The engine: a library both services embed; no wire format, no event loop but in one file."""
