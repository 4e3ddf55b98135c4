"""The sections of settings that any part has: one file or environment may serve all of them.

So a section of another part is no mistake, and one that no part has is.
"""

from __future__ import annotations

from runtime.settings import Settings

SECTIONS = frozenset(
    {
        *("admission", "announce", "auth", "drain", "engine", "events", "facade", "fetch", "group"),
        *("handoff", "http", "janitor", "limits", "listen", "log", "membership", "metrics"),
        *("model", "publish", "routing", "server", "store", "tls", "tracing"),
    }
)


def foreign_to(settings: type[Settings]) -> tuple[str, ...]:
    """The sections that other parts have and these settings have not, sorted."""
    return tuple(sorted(SECTIONS - set(settings.model_fields)))
