"""The generator notices a stale file and refuses another compiler."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "proto" / "generate.py"


@pytest.fixture
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.medium
def test_committed_code_is_what_the_compiler_writes(generate: ModuleType) -> None:
    assert generate.main(["--check"]) == 0


@pytest.mark.medium
def test_a_changed_file_is_named(
    generate: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path in (SCRIPT.parent / "disagg" / "v1").glob("*"):
        if path.is_file():
            copy = tmp_path / "disagg" / "v1" / path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    stale = tmp_path / "disagg" / "v1" / "admin_pb2.pyi"
    stale.write_text("# stale\n", encoding="utf-8")
    orphan = tmp_path / "disagg" / "v1" / "gone_pb2.py"
    orphan.write_text("", encoding="utf-8")
    monkeypatch.setattr(generate, "SOURCE_ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    reported = capsys.readouterr().out
    assert "admin_pb2.pyi" in reported and "gone_pb2.py" in reported
    assert generate.main([]) == 0
    assert not orphan.exists()
    assert generate.main(["--check"]) == 0


def test_another_compiler_is_refused(
    generate: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "PINNED_COMPILER", "0.0.1")
    assert generate.main(["--check"]) == 3
    assert "0.0.1 needed" in capsys.readouterr().out


def test_stubs_tell_the_two_kinds_of_channel_apart(generate: ModuleType) -> None:
    text = (SCRIPT.parent / "disagg" / "v1" / "decode_pb2_grpc.pyi").read_text(encoding="utf-8")
    assert "def __new__(cls, channel: grpc.aio.Channel) -> DecodeServiceAsyncStub" in text
    assert "Decode: grpc.aio.UnaryStreamMultiCallable[" in text
