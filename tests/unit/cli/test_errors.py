"""What failed calls mean on a terminal."""

from __future__ import annotations

import pytest

from cli.errors import CommandError, calls, usage
from client import ClientError
from runtime.errors import ExitCode


def test_usage_errors_exit_2() -> None:
    assert usage("x").exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (ClientError("refused", code="UNAVAILABLE"), ExitCode.FAILED, "start a system with"),
        (
            ClientError("gone", code="UNAVAILABLE", last_seq=7),
            ExitCode.FAILED,
            "broke off after 7 tokens, and h:1 does not answer any more",
        ),
        (
            ClientError("full", code="RESOURCE_EXHAUSTED", reason="QUEUE_FULL"),
            ExitCode.FAILED,
            "QUEUE_FULL: full",
        ),
        (
            ClientError("bad", code="INVALID_ARGUMENT", reason="BAD_SAMPLING"),
            ExitCode.CONFIGURATION,
            "BAD_SAMPLING: bad",
        ),
        (ClientError("slow", code="DEADLINE_EXCEEDED"), ExitCode.FAILED, "DEADLINE_EXCEEDED"),
    ],
)
def test_failed_calls_have_an_exit_code(
    error: ClientError, exit_code: ExitCode, message: str
) -> None:
    with pytest.raises(CommandError, match=message) as caught, calls("h:1"):
        raise error
    assert caught.value.exit_code is exit_code
