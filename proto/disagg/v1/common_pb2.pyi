import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_BAD_REQUEST: _ClassVar[ErrorReason]
    ERROR_REASON_BAD_SAMPLING: _ClassVar[ErrorReason]
    ERROR_REASON_UNSUPPORTED_PARAMETER: _ClassVar[ErrorReason]
    ERROR_REASON_PROMPT_TOO_LONG: _ClassVar[ErrorReason]
    ERROR_REASON_CONSTRAINT_REJECTED: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_MODEL: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_AUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_ALLOWED: _ClassVar[ErrorReason]
    ERROR_REASON_RATE_LIMITED: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_POOL_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_NO_PREFILL: _ClassVar[ErrorReason]
    ERROR_REASON_NO_DECODE: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_PEER_GONE: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_DOWN: _ClassVar[ErrorReason]
    ERROR_REASON_FIRST_TOKEN_LATE: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE: _ClassVar[ErrorReason]
    ERROR_REASON_CALLER_LEFT: _ClassVar[ErrorReason]
    ERROR_REASON_BLOCK_EVICTED: _ClassVar[ErrorReason]
    ERROR_REASON_LEASE_LOST: _ClassVar[ErrorReason]
    ERROR_REASON_STALE_ATTEMPT: _ClassVar[ErrorReason]
    ERROR_REASON_KV_LAYOUT_DIFFERS: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_REVISION_DIFFERS: _ClassVar[ErrorReason]
    ERROR_REASON_CHECKSUM_DIFFERS: _ClassVar[ErrorReason]
    ERROR_REASON_STREAM_INTERRUPTED: _ClassVar[ErrorReason]
    ERROR_REASON_INVARIANT_BROKEN: _ClassVar[ErrorReason]
    ERROR_REASON_DUPLICATE_REQUEST: _ClassVar[ErrorReason]
    ERROR_REASON_EVENTS_LOST: _ClassVar[ErrorReason]
    ERROR_REASON_EVENTS_GONE: _ClassVar[ErrorReason]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]
    FINISH_REASON_CONTENT_FILTER: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_BAD_REQUEST: ErrorReason
ERROR_REASON_BAD_SAMPLING: ErrorReason
ERROR_REASON_UNSUPPORTED_PARAMETER: ErrorReason
ERROR_REASON_PROMPT_TOO_LONG: ErrorReason
ERROR_REASON_CONSTRAINT_REJECTED: ErrorReason
ERROR_REASON_UNKNOWN_MODEL: ErrorReason
ERROR_REASON_NOT_AUTHENTICATED: ErrorReason
ERROR_REASON_NOT_ALLOWED: ErrorReason
ERROR_REASON_RATE_LIMITED: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_POOL_FULL: ErrorReason
ERROR_REASON_NO_PREFILL: ErrorReason
ERROR_REASON_NO_DECODE: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_PEER_GONE: ErrorReason
ERROR_REASON_STORE_DOWN: ErrorReason
ERROR_REASON_FIRST_TOKEN_LATE: ErrorReason
ERROR_REASON_DEADLINE: ErrorReason
ERROR_REASON_CALLER_LEFT: ErrorReason
ERROR_REASON_BLOCK_EVICTED: ErrorReason
ERROR_REASON_LEASE_LOST: ErrorReason
ERROR_REASON_STALE_ATTEMPT: ErrorReason
ERROR_REASON_KV_LAYOUT_DIFFERS: ErrorReason
ERROR_REASON_MODEL_REVISION_DIFFERS: ErrorReason
ERROR_REASON_CHECKSUM_DIFFERS: ErrorReason
ERROR_REASON_STREAM_INTERRUPTED: ErrorReason
ERROR_REASON_INVARIANT_BROKEN: ErrorReason
ERROR_REASON_DUPLICATE_REQUEST: ErrorReason
ERROR_REASON_EVENTS_LOST: ErrorReason
ERROR_REASON_EVENTS_GONE: ErrorReason
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
FINISH_REASON_CONTENT_FILTER: FinishReason
FINISH_REASON_ABORT: FinishReason

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty", "n", "stop")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    max_tokens: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logprobs: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    n: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., n: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class PositionLogprobs(_message.Message):
    __slots__ = ("logprob", "top")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class KvTicket(_message.Message):
    __slots__ = ("handoff_id", "request_id", "attempt", "fingerprint", "num_tokens", "num_blocks", "last_block_hash", "tail_key", "tail_digest", "body_digest", "first_token", "fencing_token", "remaining", "traceparent")
    HANDOFF_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    TAIL_KEY_FIELD_NUMBER: _ClassVar[int]
    TAIL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BODY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    handoff_id: str
    request_id: str
    attempt: int
    fingerprint: bytes
    num_tokens: int
    num_blocks: int
    last_block_hash: bytes
    tail_key: str
    tail_digest: bytes
    body_digest: bytes
    first_token: int
    fencing_token: int
    remaining: _duration_pb2.Duration
    traceparent: str
    def __init__(self, handoff_id: _Optional[str] = ..., request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., num_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., last_block_hash: _Optional[bytes] = ..., tail_key: _Optional[str] = ..., tail_digest: _Optional[bytes] = ..., body_digest: _Optional[bytes] = ..., first_token: _Optional[int] = ..., fencing_token: _Optional[int] = ..., remaining: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("placement_us", "prefill_queue_us", "prefix_load_us", "prefill_us", "commit_us", "fetch_us", "decode_us", "first_token_us", "total_us", "published_bytes", "prefix_bytes", "fetched_bytes", "prefill_member", "decode_member", "prefetched_bytes")
    PLACEMENT_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PREFIX_LOAD_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    COMMIT_US_FIELD_NUMBER: _ClassVar[int]
    FETCH_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MEMBER_FIELD_NUMBER: _ClassVar[int]
    DECODE_MEMBER_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    placement_us: int
    prefill_queue_us: int
    prefix_load_us: int
    prefill_us: int
    commit_us: int
    fetch_us: int
    decode_us: int
    first_token_us: int
    total_us: int
    published_bytes: int
    prefix_bytes: int
    fetched_bytes: int
    prefill_member: str
    decode_member: str
    prefetched_bytes: int
    def __init__(self, placement_us: _Optional[int] = ..., prefill_queue_us: _Optional[int] = ..., prefix_load_us: _Optional[int] = ..., prefill_us: _Optional[int] = ..., commit_us: _Optional[int] = ..., fetch_us: _Optional[int] = ..., decode_us: _Optional[int] = ..., first_token_us: _Optional[int] = ..., total_us: _Optional[int] = ..., published_bytes: _Optional[int] = ..., prefix_bytes: _Optional[int] = ..., fetched_bytes: _Optional[int] = ..., prefill_member: _Optional[str] = ..., decode_member: _Optional[str] = ..., prefetched_bytes: _Optional[int] = ...) -> None: ...
