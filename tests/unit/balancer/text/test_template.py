"""Chat templates, and models that come without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from balancer.text import ChatTurn, TextCodec, TextError, ToolCall

MODEL = Path(__file__).parents[4] / "models" / "tiny-v4"
HI = [ChatTurn(role="user", content="Hi")]
CALLED = [
    *HI,
    ChatTurn(role="assistant", content="", tool_calls=(ToolCall(id="c", name="f"),)),
    ChatTurn(role="tool", content="7", tool_call_id="c"),
]
TOOL = '{"name": "f"}'


def model(tmp_path: Path, *tokens: str, template: str | None = None, **config: object) -> TextCodec:
    """The bundled model with another template, further tokens, another configuration."""
    for path in MODEL.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for name, changes in (
        ("tokenizer_config.json", {"chat_template": template}),
        ("config.json", config),
    ):
        path = tmp_path / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}), encoding="utf-8")
    if tokens:
        tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        tokenizer.add_tokens(list(tokens))
        tokenizer.save(str(tmp_path / "tokenizer.json"))
    return TextCodec(tmp_path)


def test_a_model_without_a_template_is_encoded_like_one_with_it(tmp_path: Path) -> None:
    turns = [ChatTurn(role="system", content="Be brief."), *HI]
    turns += [ChatTurn(role="assistant", content="Ho"), ChatTurn(role="user", content="Hm")]
    coded = model(tmp_path)
    assert coded.encode_chat(turns) == TextCodec(MODEL).encode_chat(turns)
    low, high, most = (
        len(coded.encode_chat(turns, thinking=True, effort=effort))
        for effort in ("low", "high", "max")
    )
    assert low < high
    assert low < most
    assert coded.encode_chat(turns, thinking=True)[-1] == 5


@pytest.mark.parametrize(
    ("config", "asked", "field", "message"),
    [
        ({"model_type": "other"}, {}, "chat", "no chat template; send text"),
        ({"model_type": "deepseek_v41"}, {}, "chat", "its vocabulary no <｜System｜>"),
        ({}, {"tools": [TOOL]}, "chat.tools", "has no ｜DSML｜; leave tools out"),
        (
            {},
            {"thinking": True, "effort": "42"},
            "chat.reasoning_effort",
            "'42' is none of this model; send low, high or max$",
        ),
    ],
)
def test_what_a_model_cannot_do_is_named(
    tmp_path: Path, config: dict[str, object], asked: dict[str, object], field: str, message: str
) -> None:
    with pytest.raises(TextError, match=message) as caught:
        model(tmp_path, **config).encode_chat(HI, **asked)
    assert caught.value.field == field


def test_tools_are_encoded_where_the_vocabulary_has_their_token(tmp_path: Path) -> None:
    codec = model(tmp_path, "｜DSML｜")
    assert codec.form is not None
    assert len(codec.encode_chat(HI, tools=[TOOL])) > 100 + len(codec.encode_chat(HI))
    assert codec.encode_chat(CALLED, tools=[TOOL])
    newer = model(tmp_path, "｜DSML｜", "<｜System｜>", model_type="deepseek_v41")
    with pytest.raises(TextError, match="send low, high or max, or a number from 1 to 100"):
        newer.encode_chat(HI, thinking=True, effort="0")
    assert newer.encode_chat(HI, thinking=True, effort="42")


def test_a_template_that_knows_no_tools_refuses_them() -> None:
    codec = TextCodec(MODEL)
    assert codec.form is None
    for turns, tools in ((HI, [TOOL]), (CALLED, [])):
        with pytest.raises(TextError, match="knows no tools; leave them out") as caught:
            codec.encode_chat(turns, tools=tools)
        assert caught.value.field == "chat.tools"


def test_tools_reach_a_template_that_asks_for_them(tmp_path: Path) -> None:
    codec = model(
        tmp_path,
        template="{{ tools | map(attribute='function') | map(attribute='name') | join }}"
        "{% for m in messages %}{{ m.role }}{{ m.tool_call_id | default('') }}{% endfor %}",
    )
    wanted = "fuserassistanttoolc"
    assert codec.encode_chat(CALLED, tools=[TOOL]) == codec.encode_text(wanted)


def test_arguments_that_are_no_object_are_named() -> None:
    turn = ChatTurn(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments="[]"),))
    with pytest.raises(TextError, match="no JSON object") as caught:
        TextCodec(MODEL).encode_chat([*HI, turn])
    assert caught.value.field == "chat.messages[1].tool_calls[0].arguments"
