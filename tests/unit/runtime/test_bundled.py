"""The default model, wherever a command is started."""

from pathlib import Path

import pytest

from runtime import bundled

ROOT = Path(__file__).parents[3]


def test_the_working_directory_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert bundled.default_model() == Path("models/tiny-v4")


def test_elsewhere_it_is_that_of_the_source_tree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bundled.default_model() == ROOT / "models" / "tiny-v4"


def test_without_a_source_tree_the_name_is_left_to_be_missed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bundled, "_SOURCE_TREE", tmp_path / "nowhere")
    assert bundled.default_model() == Path("models/tiny-v4")
