"""Wire messages to plain values and back."""

from types import SimpleNamespace

import pytest

from disagg import wire
from disagg.v1 import common_pb2

TICKET = wire.TicketFields(
    handoff_id="h-1",
    request_id="r-1",
    attempt=2,
    fingerprint=b"12345678",
    num_tokens=70,
    num_blocks=2,
    last_block_hash=b"\x01" * 32,
    tail_key="dkv1:fp:t:{h-1}",
    tail_digest=b"\x02" * 16,
    body_digest=b"\x03" * 16,
    first_token=17,
    fencing_token=9,
    remaining_s=9.5,
    traceparent="00-aa-bb-01",
)


def test_every_field_of_a_ticket_survives_the_wire() -> None:
    message = wire.ticket_message(SimpleNamespace(**TICKET))
    assert all(
        getattr(message, field.name) or message.HasField(field.name)
        for field in message.DESCRIPTOR.fields
    ), "a field of the message is not filled"
    parsed = common_pb2.KvTicket.FromString(message.SerializeToString())
    assert wire.ticket_fields(parsed) == TICKET


def test_absent_sampling_fields_stay_absent_and_zeros_stay_zeros() -> None:
    assert wire.sampling_fields(common_pb2.SamplingParams()) == {
        "stop_token_ids": (),
        "ignore_eos": False,
    }
    message = common_pb2.SamplingParams(
        temperature=0.0, top_k=0, seed=0, max_tokens=0, min_tokens=0, logprobs=0
    )
    fields = wire.sampling_fields(message)
    for name in ("temperature", "top_k", "seed", "max_tokens", "min_tokens", "logprobs"):
        assert fields[name] == 0, name  # type: ignore[literal-required]
    assert "top_p" not in fields


def test_each_sampling_field_arrives_under_its_name() -> None:
    values = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "seed": 2**63,
        "max_tokens": 7,
        "min_tokens": 2,
        "logprobs": 4,
        "presence_penalty": 1.5,
        "frequency_penalty": -1.5,
        "repetition_penalty": 1.25,
    }
    message = common_pb2.SamplingParams(**values, stop_token_ids=[5, 6], ignore_eos=True)
    assert wire.sampling_fields(message) == values | {"stop_token_ids": (5, 6), "ignore_eos": True}


def test_finish_reasons() -> None:
    assert wire.finish_reason(None) == common_pb2.FINISH_REASON_UNSPECIFIED
    assert wire.finish_reason("stop") == common_pb2.FINISH_REASON_STOP
    assert wire.finish_reason("length") == common_pb2.FINISH_REASON_LENGTH
    with pytest.raises(KeyError):
        wire.finish_reason("bored")


@pytest.mark.parametrize("request_id", ["r", "A.b_c:d-9", "x" * 128])
def test_good_request_ids(request_id: str) -> None:
    assert wire.request_id_problem(request_id) is None


@pytest.mark.parametrize("request_id", ["", "x" * 129, "a b", "a\n", "caf\u00e9", "a/b"])
def test_bad_request_ids_are_named(request_id: str) -> None:
    problem = wire.request_id_problem(request_id)
    assert problem is not None
    assert "give 1 to 128 characters" in problem
    assert len(problem) < 150


@pytest.mark.parametrize("value_s", [0.0, 0.25, 1.0, 599.999999])
def test_durations_survive(value_s: float) -> None:
    assert wire.seconds(wire.duration(value_s)) == pytest.approx(value_s, abs=1e-6)


def test_a_lapsed_duration_is_zero() -> None:
    assert wire.seconds(wire.duration(-3.0)) == 0.0
