"""Structured logs of a process: a short event name and key-value facts, one line each.

Services log with `get_logger`; libraries use the standard `logging` and are rendered the same way.
Facts bound with `request_scope` ride on every record below it, in every task started inside.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any, Literal, TextIO

import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars

from runtime.masking import MASK, mask_text
from runtime.telemetry import current

Level = Literal["debug", "info", "warning", "error"]
Form = Literal["json", "console"]

SECRET_KEYS = frozenset({"authorization", "cookie", "x-api-key", "password", "token", "secret"})

# structlog's own type of a record; values are whatever the caller logs.
Record = MutableMapping[str, Any]


def configure_logging(
    *,
    level: Level = "info",
    form: Form = "json",
    stream: TextIO | None = None,
    facts: dict[str, str] | None = None,
) -> None:
    """Set up the logs of this process, once at its start.

    Args:
        level: Lowest level that is written.
        form: `json` for machines, `console` for people.
        stream: Where lines go; standard error if not given.
        facts: Key-value pairs every record carries, such as role and rank.
    """

    def add_facts(_logger: object, _method: str, record: Record) -> Record:
        for key, value in (facts or {}).items():
            record.setdefault(key, value)
        return record

    shared: list[structlog.typing.Processor] = [
        merge_contextvars,
        add_trace,
        add_facts,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        redact,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        )
    )
    tail: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta
    ]
    if form == "json":
        # Without local variables: they hold prompts, tokens and keys. The same for the console.
        frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        tail.append(structlog.processors.ExceptionRenderer(frames))
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[*tail, renderer, mask]
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def add_trace(_logger: object, _method: str, record: Record) -> Record:
    """Adds trace and span id of what runs, if its trace is recorded; a structlog processor."""
    span = current()
    if span.is_recording and (context := span.context) is not None:
        record.setdefault("trace_id", f"{context.trace_id:032x}")
        record.setdefault("span_id", f"{context.span_id:016x}")
    return record


def redact(_logger: object, _method: str, record: Record) -> Record:
    """Replace the values of keys that name secrets; a structlog processor."""
    for key in record:
        if key.lower() in SECRET_KEYS:
            record[key] = MASK
    return record


def mask(_logger: object, _method: str, line: Any) -> str:  # Any: structlog calls it a record
    """Replaces passwords in URLs in a rendered line, exceptions and all; a structlog processor."""
    return mask_text(line)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a service module; `name` is its `__name__`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


@contextlib.contextmanager
def request_scope(**facts: str) -> Iterator[None]:
    """Bind facts such as `request_id` and `trace_id` to all records logged inside."""
    with bound_contextvars(**facts):
        yield
