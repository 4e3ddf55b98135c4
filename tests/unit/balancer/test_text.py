"""Prompts to ids, ids to text, stop strings; on the bundled model's tokenizer and small ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.text import ChatTurn, ModelFilesError, StopStrings, TextCodec, TextError

MODEL = Path(__file__).parents[3] / "models" / "tiny-v4"
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
        ([ChatTurn(role="tool", content="x")], "chat.messages[0].role", "'tool' is unknown"),
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


@given(st.text(max_size=20))
def test_text_survives_the_way_there_and_back(text: str) -> None:
    assert CODEC.decode(CODEC.encode_text(text + "x")) == text + "x"


def test_ids_of_a_padded_vocabulary_have_no_text() -> None:
    assert CODEC.incremental().push(5000) == ""


def test_other_vocabularies_are_decoded_through_a_window(tmp_path: Path) -> None:
    codec = TextCodec(directory(tmp_path, tokenizer=words()))
    decoder = codec.incremental()
    pieces = [decoder.push(token) for token in (1, 2, 0, 3)] + [decoder.finish()]
    assert "".join(pieces) == codec.decode([1, 2, 0, 3]) == "one two three"
    assert pieces[0] == "one"


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


def test_a_nested_config_is_read(tmp_path: Path) -> None:
    nested = {"text_config": {"vocab_size": 7, "max_position_embeddings": 9}}
    assert TextCodec(directory(tmp_path, config=nested)).card.max_model_len == 9


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


@settings(max_examples=60)
@given(
    text=st.text(alphabet="abc", max_size=14),
    cuts=st.lists(st.integers(1, 3), min_size=14, max_size=14),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=3),
)
def test_stop_strings_are_found_however_the_text_is_cut(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    def run(sizes: list[int]) -> tuple[str, bool]:
        matcher, out, done = StopStrings(stops), "", 0
        for size in sizes:
            piece = text[done : done + size]
            done += len(piece)
            if piece and not matcher.is_met:
                out += matcher.push(piece)
                assert text.startswith(out)
        return out + ("" if matcher.is_met else matcher.finish()), matcher.is_met

    out, is_met = run(cuts)
    assert (out, is_met) == run([1] * len(text))
    assert is_met == any(stop in text for stop in stops)
    assert not any(stop in out for stop in stops)
    if not is_met:
        assert out == text


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
