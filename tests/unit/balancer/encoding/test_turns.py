"""Turns are plain values."""

from balancer.encoding.turns import CHAT_ROLES, ChatTurn, ToolCall


def test_a_turn_says_no_more_than_it_is_given() -> None:
    turn = ChatTurn(role="user", content="Hi")
    assert turn.role in CHAT_ROLES
    assert (turn.reasoning, turn.tool_calls, turn.tool_call_id) == ("", (), "")
    assert ToolCall(name="f").arguments == "{}"
