"""Model directories that are broken, and templates that reach out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from balancer.text import ChatTurn, ModelFilesError, TextCodec, TextError


def directory(tmp_path: Path, **files: object) -> Path:
    config = {"vocab_size": 16, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(files.pop("config", config)))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / f"{name}.json").write_text(text)
    return tmp_path


def words(*, adds_bos: bool = False) -> str:
    vocab = {word: index for index, word in enumerate(["<s>", "one", "two", "three", "[UNK]"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    if adds_bos:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return tokenizer.to_str()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config": {"vocab_size": 3}}, "has no max_position_embeddings"),
        ({"config": []}, "holds no JSON object"),
        ({"tokenizer": "{"}, "is not a tokenizer"),
        ({"tokenizer_config": "nonsense"}, "is not JSON"),
        ({"tokenizer_config": {"chat_template": "{% if %}"}}, "chat_template of .* is broken"),
    ],
)
def test_broken_model_directories_are_named(
    tmp_path: Path, files: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelFilesError, match=message):
        TextCodec(directory(tmp_path, **files))


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"nowhere/config.json does not exist"):
        TextCodec(tmp_path / "nowhere")


def test_a_template_cannot_reach_out(tmp_path: Path) -> None:
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    codec = TextCodec(
        directory(tmp_path, tokenizer=words(), tokenizer_config={"chat_template": template})
    )
    with pytest.raises(TextError, match="refused the messages"):
        codec.encode_chat([ChatTurn(role="user", content="x")])


def test_a_nested_config_is_read(tmp_path: Path) -> None:
    nested = {"text_config": {"vocab_size": 7, "max_position_embeddings": 9}}
    assert TextCodec(directory(tmp_path, config=nested)).card.max_model_len == 9
