"""Pages of the documents that follow from the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from charts import reference


@pytest.mark.medium
def test_the_committed_pages_are_fresh() -> None:
    assert reference.main(["--check"]) == 0, "run `make chart`"


def test_a_stale_page_is_named_and_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.md"
    monkeypatch.setattr(reference, "files", lambda: {path: "new"})
    assert reference.main(["--check"]) == 1
    assert not path.exists() and "docs/x.md: differs" in capsys.readouterr().out
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
