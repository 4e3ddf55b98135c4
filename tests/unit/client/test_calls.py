"""When a client calls again, and how long it waits."""

from __future__ import annotations

import pytest

from client.calls import may_resume, pause_s
from client.errors import ClientError
from client.wire import Answer


def failure(code: str = "UNAVAILABLE", reason: str = "") -> ClientError:
    return ClientError("x", code=code, reason=reason)


def test_pauses_grow_to_a_bound() -> None:
    pauses = [pause_s(resumes) for resumes in range(6)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] <= 1.0


@pytest.mark.parametrize(
    ("error", "resumes", "wanted"),
    [
        (failure(), 0, True),
        (failure(), 3, False),
        (failure("INVALID_ARGUMENT"), 0, False),
        (failure("ALREADY_EXISTS", "DUPLICATE_REQUEST"), 0, False),
        (failure("ALREADY_EXISTS", "DUPLICATE_REQUEST"), 1, True),
    ],
)
def test_only_what_broke_on_the_way_is_called_again(
    error: ClientError, resumes: int, wanted: bool
) -> None:
    answer = Answer("r")
    assert may_resume(error, answer, resumes, 3) == wanted
    answer.is_complete = True
    assert not may_resume(error, answer, resumes, 3)
