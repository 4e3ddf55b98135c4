"""Secrets that change: a good change counts, a bad one does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from runtime.logging import SECRET_KEYS
from runtime.metrics import Metrics
from runtime.watched import SecretError, Watched


def test_a_change_counts_and_a_bad_one_keeps_what_was(tmp_path: Path) -> None:
    path, metrics = tmp_path / "number", Metrics()

    def read() -> int:
        text = path.read_text()
        if not text.isdecimal():
            raise SecretError(f"{path}: no number")
        return int(text)

    def succeeds() -> float:
        return metrics.value("disagg_secret_reload_success", role="decode", secret="number")

    with pytest.raises(SecretError, match=r"number: cannot be read: No such file"):
        Watched("number", [path], read, metrics=metrics, role="decode")
    path.write_text("1")
    watched = Watched("number", [path], read, metrics=metrics, role="decode")
    assert (watched.value, watched.version, succeeds()) == (1, 1, 1)
    assert not watched.refresh()
    path.write_text("two")
    assert not watched.refresh()
    assert (watched.value, watched.version, succeeds()) == (1, 1, 0)
    # As a mounted secret is replaced: another file moved over it.
    (tmp_path / "next").write_text("3")
    (tmp_path / "next").replace(path)
    assert watched.refresh()
    assert (watched.value, watched.version, succeeds()) == (3, 2, 1)
    path.unlink()
    assert not watched.refresh()
    assert (watched.value, succeeds()) == (3, 0)


def test_the_log_tells_which_secret_it_was(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("1")
    watched = Watched("api_keys", [path], path.read_text, metrics=Metrics(), role="decode")
    with capture_logs() as lines:
        path.write_text("22")
        assert watched.refresh()
        path.unlink()
        assert not watched.refresh()
    assert [(line["event"], line["kind"]) for line in lines] == [
        ("secret.reloaded", "api_keys"),
        ("secret.kept", "api_keys"),
    ]
    # The values of these keys are masked on their way out.
    assert not any(SECRET_KEYS & line.keys() for line in lines)


def test_a_file_of_another_form_keeps_what_was(tmp_path: Path) -> None:
    path, metrics = tmp_path / "keys", Metrics()
    path.write_text("1")

    def read() -> str:
        return path.read_text(encoding="utf-8")

    watched = Watched("api_keys", [path], read, metrics=metrics, role="decode")
    path.write_bytes(b"secret\xff")
    assert not watched.refresh()
    assert watched.value == "1"
    assert metrics.value("disagg_secret_reload_success", role="decode", secret="api_keys") == 0
    with pytest.raises(
        SecretError, match=r"keys: not of the form .* \(UnicodeDecodeError\)"
    ) as caught:
        Watched("api_keys", [path], read, metrics=metrics, role="decode")
    assert caught.value.__cause__ is None
