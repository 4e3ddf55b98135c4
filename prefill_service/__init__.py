"""The prefill service: prompt to ticket."""
