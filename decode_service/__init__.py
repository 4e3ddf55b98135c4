"""The decode service: ticket to tokens."""
