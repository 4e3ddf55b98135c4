"""Answers piece by piece, on the bundled model's tokenizer and a small one."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from balancer.text import TextCodec

MODEL = Path(__file__).parents[4] / "models" / "tiny-v4"
CODEC = TextCodec(MODEL)


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


def directory(tmp_path: Path, **files: object) -> Path:
    config = {"vocab_size": 16, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(files.pop("config", config)))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / f"{name}.json").write_text(text)
    return tmp_path


def test_characters_come_whole() -> None:
    text = "naïve ☃ 🎉 日本"
    decoder = CODEC.incremental()
    pieces = [decoder.push(token) for token in CODEC.encode_text(text)] + [decoder.finish()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert max(map(len, pieces)) <= 3


@given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2047)), max_size=24))
def test_pieces_join_to_what_decoding_at_once_gives(ids: list[int]) -> None:
    decoder = CODEC.incremental()
    pieces = [decoder.push(token) for token in ids]
    assert "".join(pieces) + decoder.finish() == CODEC.decode(ids)


def test_ids_of_a_padded_vocabulary_have_no_text() -> None:
    assert CODEC.incremental().push(5000) == ""


def test_other_vocabularies_are_decoded_through_a_window(tmp_path: Path) -> None:
    codec = TextCodec(directory(tmp_path, tokenizer=words()))
    decoder = codec.incremental()
    pieces = [decoder.push(token) for token in (1, 2, 0, 3)] + [decoder.finish()]
    assert "".join(pieces) == codec.decode([1, 2, 0, 3]) == "one two three"
    assert pieces[0] == "one"
