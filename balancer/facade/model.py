"""What gateways ask about a model: its facts, and its tokenizer as one archive."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from balancer.text import ModelCard
from disagg.facade import smg_common_pb2, vllm_engine_pb2

PIECE_BYTES = 64 << 10
_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"),
    *("generation_config.json", "chat_template.jinja"),
)
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # an archive's bytes depend on its files alone


def model_info(directory: Path, card: ModelCard) -> vllm_engine_pb2.GetModelInfoResponse:
    """The facts of a model directory."""
    config, generation = (
        _json(directory / "config.json"),
        _json(directory / "generation_config.json"),
    )
    defaults = {name: generation[name] for name in _SAMPLING if name in generation}
    info = vllm_engine_pb2.GetModelInfoResponse(
        model_path=str(directory.resolve()),
        is_generation=True,
        max_context_length=card.max_model_len,
        vocab_size=card.vocab_size,
        served_model_name=card.name,
        tokenizer_path=str(directory.resolve()),
        model_type=str(config.get("model_type", "")),
        architectures=[str(name) for name in config.get("architectures") or ()],
        eos_token_ids=_ids(generation.get("eos_token_id", config.get("eos_token_id"))),
        max_req_input_len=card.max_model_len - 1,
        default_sampling_params_json=json.dumps(defaults, sort_keys=True) if defaults else "",
    )
    for name in ("pad_token_id", "bos_token_id"):
        for token_id in _ids(generation.get(name, config.get(name)))[:1]:
            setattr(info, name, token_id)
    return info


def tokenizer_archive(directory: Path) -> bytes:
    """A zip of the files a tokenizer is made of; blocking."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _FILES:
            if (path := directory / name).is_file():
                entry = zipfile.ZipInfo(name, date_time=_EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()


def pieces_of(archive: bytes) -> Iterator[smg_common_pb2.GetTokenizerChunk]:
    """The archive in messages, with its digest on the last."""
    for start in range(0, max(1, len(archive)), PIECE_BYTES):
        end = start + PIECE_BYTES
        is_last = end >= len(archive)
        yield smg_common_pb2.GetTokenizerChunk(
            data=archive[start:end],
            sha256=hashlib.sha256(archive).hexdigest() if is_last else "",
        )


def _json(path: Path) -> dict[str, Any]:
    # Any: foreign JSON; what is taken from it is converted where it is used.
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int)]
