"""Facts of model directories, and their tokenizers as archives."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

from balancer.facade.model import PIECE_BYTES, model_info, pieces_of, tokenizer_archive
from balancer.text import TextCodec
from tests.fakes.front_door import MODEL

CARD = TextCodec(MODEL).card


def test_facts_of_the_bundled_model() -> None:
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    info = model_info(MODEL, CARD)
    assert (info.model_type, list(info.architectures)) == (
        config["model_type"],
        config["architectures"],
    )
    assert (info.vocab_size, info.max_req_input_len) == (2048, 4095)
    assert (list(info.eos_token_ids), info.bos_token_id, info.pad_token_id) == ([1], 0, 2)
    assert json.loads(info.default_sampling_params_json) == {"temperature": 0.8, "top_p": 0.95}
    assert info.is_generation
    assert not info.supports_vision


def test_a_model_that_says_little(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": [3, 4]}', encoding="utf-8")
    info = model_info(tmp_path, CARD)
    assert (list(info.eos_token_ids), info.default_sampling_params_json) == ([3, 4], "")
    assert list(info.architectures) == []


def test_an_archive_depends_on_its_files_alone(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    archive = tokenizer_archive(tmp_path)
    (tmp_path / "tokenizer.json").touch()
    assert tokenizer_archive(tmp_path) == archive
    with zipfile.ZipFile(io.BytesIO(archive)) as unpacked:
        assert unpacked.namelist() == ["tokenizer.json", "config.json"]


def test_pieces() -> None:
    for size in (0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES):
        data = bytes(size)
        pieces = list(pieces_of(data))
        assert b"".join(piece.data for piece in pieces) == data
        digests = [piece.sha256 for piece in pieces]
        assert digests == [""] * (len(pieces) - 1) + [hashlib.sha256(data).hexdigest()]
