"""Secrets in files that change while a process runs: certificates, keys, API keys.

A file is read again when it changes. A change that cannot be used keeps the old value, is logged
with its cause and shows in `disagg_secret_reload_success`; at the start it ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from runtime.logging import get_logger
from runtime.metrics import Metrics

_log = get_logger(__name__)

T = TypeVar("T")
_State = tuple[tuple[int, int, int], ...]


class SecretError(ValueError):
    """A file with a secret cannot be used; the message names it, never its content."""


class Watched(Generic[T]):
    """What some files say; belongs to one event loop.

    Args:
        name: What it is, for the log and the metric.
        role: Of the process.
        paths: The files.
        read: Reads them all and checks what they say.

    Raises:
        SecretError: They cannot be used.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[Path],
        read: Callable[[], T],
        *,
        metrics: Metrics,
        role: str,
    ) -> None:
        self._name = name
        self._paths = tuple(paths)
        self._read = read
        self._metrics = metrics
        self._labels = {"role": role, "secret": name}
        self._state = self._stat()
        self.value = self._readable()
        self.version = 1
        metrics.set("disagg_secret_reload_success", 1, **self._labels)

    def refresh(self) -> bool:
        """Reads the files again if they changed; returns whether there is a new value."""
        state = self._stat()
        if state == self._state:
            return False
        self._state = state
        try:
            self.value = self._readable()
        except SecretError as error:
            _log.error("secret.kept", kind=self._name, error=str(error))
            self._metrics.set("disagg_secret_reload_success", 0, **self._labels)
            return False
        self.version += 1
        _log.info("secret.reloaded", kind=self._name, version=self.version)
        self._metrics.set("disagg_secret_reload_success", 1, **self._labels)
        return True

    def _readable(self) -> T:
        try:
            return self._read()
        except SecretError:
            raise
        except OSError as error:
            name = error.filename or self._names()
            raise SecretError(f"{name}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            # Text of another encoding, a date that is none: what it says may hold the content.
            raise SecretError(
                f"{self._names()}: not of the form it should have ({type(error).__name__})"
            ) from None

    def _names(self) -> str:
        return ", ".join(map(str, self._paths))

    def _stat(self) -> _State:
        # Mounted secrets are replaced by moving a link, so it is another file with other times.
        return tuple(_identity(path) for path in self._paths)


def _identity(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
