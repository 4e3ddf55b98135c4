"""Prompts to ids and back, on the bundled model's tokenizer and small ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from balancer.text import ChatTurn, TextCodec, TextError

MODEL = Path(__file__).parents[4] / "models" / "tiny-v4"
CODEC = TextCodec(MODEL)
BOS = "<｜begin▁of▁sentence｜>"


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


def test_the_card_comes_from_the_config() -> None:
    assert CODEC.card.name == "tiny-v4"
    assert CODEC.card.vocab_size == 2048
    assert CODEC.card.max_model_len == 4096
    assert TextCodec(MODEL, name="other").card.name == "other"


def test_golden_prompts_are_encoded_as_their_file_says() -> None:
    for case in json.loads((MODEL / "golden.json").read_text())["cases"]:
        assert CODEC.encode_text(case["prompt"]) == case["input_ids"], case["name"]


def test_the_begin_of_sentence_is_there_once() -> None:
    assert CODEC.encode_text("ROMEO:") == CODEC.encode_text(BOS + "ROMEO:")
    assert CODEC.encode_text("ROMEO:")[0] == 0
    assert CODEC.encode_text(BOS) == [0]


def test_the_begin_of_sentence_is_added_only_where_the_model_wants_it(tmp_path: Path) -> None:
    settings = {"bos_token": "<s>"}
    plain = TextCodec(directory(tmp_path, tokenizer=words(), tokenizer_config=settings))
    assert plain.encode_text("one") == [1]
    said = TextCodec(
        directory(
            tmp_path, tokenizer_config={"bos_token": {"content": "<s>"}, "add_bos_token": True}
        )
    )
    assert said.encode_text("one") == [0, 1]
    built_in = TextCodec(
        directory(tmp_path, tokenizer=words(adds_bos=True), tokenizer_config=settings)
    )
    assert built_in.encode_text("one") == [0, 1]
    assert built_in.encode_text("<s> one") == [0, 1]


def test_a_conversation_goes_through_the_template() -> None:
    turns = [
        ChatTurn(role="system", content="Be brief."),
        ChatTurn(role="user", content="Hi"),
        ChatTurn(role="assistant", content="Yes"),
        ChatTurn(role="user", content="Go"),
    ]
    expected = (
        f"{BOS}Be brief.<｜User｜>Hi<｜Assistant｜></think>Yes<｜end▁of▁sentence｜>"
        "<｜User｜>Go<｜Assistant｜></think>"
    )
    assert CODEC.encode_chat(turns) == CODEC.encode_text(expected)


@pytest.mark.parametrize(
    ("turns", "field", "message"),
    [
        ([], "chat.messages", "empty"),
        ([ChatTurn(role="poet", content="x")], "chat.messages[0].role", "'poet' is unknown"),
    ],
)
def test_conversations_that_cannot_be_encoded(
    turns: list[ChatTurn], field: str, message: str
) -> None:
    with pytest.raises(TextError, match=message) as caught:
        CODEC.encode_chat(turns)
    assert caught.value.field == field


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(TextError, match="prompt is empty"):
        CODEC.encode_text("")


@pytest.mark.parametrize("index", [0, 2])
def test_ids_outside_the_vocabulary_are_named(index: int) -> None:
    ids = [1, 2, 3]
    ids[index] = 2048
    with pytest.raises(
        TextError, match=r"2048 is outside the vocabulary; ids are in \[0, 2048\)"
    ) as caught:
        CODEC.decode(ids)
    assert caught.value.field == f"token_ids[{index}]"
    CODEC.check_ids([0, 2047])
    CODEC.check_ids([])


@given(st.text(max_size=20))
def test_text_survives_the_way_there_and_back(text: str) -> None:
    assert CODEC.decode(CODEC.encode_text(text + "x")) == text + "x"


def test_a_model_without_tokenizer_serves_token_ids(tmp_path: Path) -> None:
    codec = TextCodec(directory(tmp_path))
    assert not codec.has_text
    codec.check_ids([15])
    decoder = codec.incremental()
    assert decoder.push(3) + decoder.finish() == ""
    for call in (lambda: codec.encode_text("x"), lambda: codec.decode([1])):
        with pytest.raises(TextError, match=r"came without tokenizer\.json"):
            call()
    with pytest.raises(TextError, match="no chat template"):
        codec.encode_chat([ChatTurn(role="user", content="x")])


def test_a_token_alone_is_its_bytes_or_its_name() -> None:
    codec = TextCodec(MODEL)
    text = "ROMEO: é!"
    ids = codec.encode_text(text)[1:]
    assert b"".join(map(codec.token_bytes, ids)) == text.encode("utf-8")
    assert codec.token_bytes(6) == b"</think>"
    assert codec.token_bytes(2047) == b"" or codec.token_bytes(2047)


def test_thinking_is_refused_by_a_template_that_knows_none() -> None:
    codec = TextCodec(MODEL)
    turns = [ChatTurn(role="user", content="Hi")]
    assert codec.encode_chat(turns, thinking=False, effort="high") == codec.encode_chat(turns)
    with pytest.raises(TextError, match="knows no thinking") as caught:
        codec.encode_chat(turns, thinking=True)
    assert caught.value.field == "chat.thinking"
    marks = codec.thinking_marks
    assert marks is not None
    assert (marks.begin_id, marks.end_id, marks.end_text) == (5, 6, "")


def test_thinking_reaches_a_template_that_asks_for_it(tmp_path: Path) -> None:
    for path in MODEL.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = (
        "{{ messages[0]['content'] }}"
        "{{ '<think>' if thinking is defined and thinking else '</think>' }}"
        "{{ reasoning_effort | default('') }}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    codec = TextCodec(tmp_path)
    turns = [ChatTurn(role="user", content="Hi")]
    assert codec.encode_chat(turns, thinking=True)[-1] == 5
    assert codec.encode_chat(turns)[-1] == 6
    assert codec.encode_chat(turns, thinking=True, effort="low")[-1] != 5
