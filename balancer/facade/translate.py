"""Between the published messages of the facade and our own. Pure.

Half of the published sampling fields have no presence: there zero means the default. What changes
an answer and is not supported is refused; what concerns text, which gateways make themselves, is
taken and has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from balancer.journey.request import Delta, Final, FinishReason, Logprobs, Request
from balancer.text import TextCodec
from balancer.validation import bad_field
from disagg.facade import vllm_engine_pb2 as pb
from disagg.v1 import common_pb2, generation_pb2
from runtime.errors import FieldViolation, InvalidRequest, Reason

_SEED_BITS = (1 << 64) - 1
_MULTIMODAL = ("mm_inputs", "media_refs")


def native_request(request: pb.GenerateRequest) -> generation_pb2.GenerateRequest:
    """The same request in the native form; without a token limit if it names none.

    Raises:
        InvalidRequest: There is no prompt, or something that is not supported.
    """
    for name in _MULTIMODAL:
        if request.HasField(name):
            raise _unsupported(name, "only text is supported; send tokens")
    if request.extra_mm_inputs:
        raise _unsupported("extra_mm_inputs", "only text is supported; send tokens")
    native = generation_pb2.GenerateRequest(
        request_id=request.request_id, sampling=_sampling(request.sampling_params)
    )
    match request.WhichOneof("input"):
        case "tokenized":
            native.token_ids.ids.extend(request.tokenized.input_ids)
        case "text":
            native.text = request.text
        case _:
            raise bad_field("input", "there is none; send tokenized or text")
    return native


def chunk_of(request: Request, delta: Delta) -> pb.GenerateResponse:
    """New tokens."""
    return pb.GenerateResponse(
        chunk=pb.GenerateStreamChunk(
            token_ids=delta.token_ids,
            prompt_tokens=len(request.token_ids),
            completion_tokens=delta.seq,
            output_logprobs=_logprobs(request, delta.token_ids, delta.logprobs),
        )
    )


def complete_of(
    request: Request, deltas: Sequence[Delta], final: Final, codec: TextCodec
) -> pb.GenerateResponse:
    """The end of an answer, with all of it."""
    token_ids = [token for delta in deltas for token in delta.token_ids]
    logprobs = [entry for delta in deltas for entry in delta.logprobs]
    complete = pb.GenerateComplete(
        output_ids=token_ids,
        finish_reason=final.finish_reason.value,
        prompt_tokens=final.usage.prompt_tokens,
        completion_tokens=final.usage.completion_tokens,
        cached_tokens=final.usage.cached_tokens,
        output_logprobs=_logprobs(request, token_ids, logprobs),
    )
    if final.finish_reason is FinishReason.STOP and token_ids:
        if token_ids[-1] in request.sampling.stop_token_ids:
            complete.matched_token_id = token_ids[-1]
        elif text := _matched_text(request, token_ids, codec):
            complete.matched_stop_str = text
    return pb.GenerateResponse(complete=complete)


def _sampling(published: pb.SamplingParams) -> common_pb2.SamplingParams:
    _refuse(published)
    sampling = common_pb2.SamplingParams(
        temperature=published.temperature if published.HasField("temperature") else 1.0,
        top_p=_real(published.top_p) or 1.0,
        top_k=published.top_k,
        min_p=_real(published.min_p),
        frequency_penalty=_real(published.frequency_penalty),
        presence_penalty=_real(published.presence_penalty),
        repetition_penalty=_real(published.repetition_penalty) or 1.0,
        min_tokens=published.min_tokens,
        stop=published.stop,
        stop_token_ids=published.stop_token_ids,
        ignore_eos=published.ignore_eos,
        n=published.n or 1,
    )
    if published.HasField("max_tokens"):
        sampling.max_tokens = published.max_tokens
    if published.HasField("seed"):
        sampling.seed = published.seed & _SEED_BITS  # widened, with its sign
    if published.HasField("logprobs"):
        if published.logprobs < 0:
            raise _unsupported("logprobs", f"{published.logprobs}: send 0 to 20")
        sampling.logprobs = published.logprobs
    return sampling


def _refuse(published: pb.SamplingParams) -> None:
    constraint = published.WhichOneof("constraint")
    if constraint is not None:
        raise _unsupported(constraint, "constrained output is not part of this version")
    if published.logit_bias:
        raise _unsupported("logit_bias", "leave it out")
    for name in ("prompt_logprobs", "truncate_prompt_tokens"):
        if published.HasField(name):
            raise _unsupported(name, "leave it out")
    if published.include_stop_str_in_output:
        raise _unsupported("include_stop_str_in_output", "send false")


def _real(value: float) -> float:
    """A 32-bit number as the decimal it was written as: 0.9 is not 0.8999999761581421."""
    return float(f"{value:.7g}")


def _logprobs(
    request: Request, token_ids: Sequence[int], logprobs: Sequence[Logprobs]
) -> pb.OutputLogProbs | None:
    if request.sampling.logprobs is None:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[entry.logprob for entry in logprobs],
        token_ids=token_ids,
        top_logprobs=[
            pb.TopLogProbs(
                values=[value for _, value in entry.top],
                token_ids=[token for token, _ in entry.top],
            )
            for entry in logprobs
        ],
    )


def _matched_text(request: Request, token_ids: Sequence[int], codec: TextCodec) -> str:
    """The stop text that ended the answer: the first to be complete, of several the longest."""
    if not request.sampling.stop:
        return ""
    text = codec.decode(token_ids)
    ends = [
        (start + len(stop), start, stop)
        for stop in request.sampling.stop
        if (start := text.find(stop)) >= 0
    ]
    return min(ends)[2] if ends else ""


def _unsupported(field: str, description: str) -> InvalidRequest:
    return InvalidRequest(
        f"{field}: {description}",
        reason=Reason.UNSUPPORTED_PARAMETER,
        violations=(FieldViolation(field=field, description=description),),
    )
