"""The floor every process stands on: clock, settings, errors, logs, metrics, serving.

No module here mentions a prompt, a block or a model; the metric table, which lists names, is the
exception.
"""
