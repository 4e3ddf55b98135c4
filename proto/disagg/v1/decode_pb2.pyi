import datetime

from disagg.v1 import common_pb2 as _common_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecodeRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "ticket", "token_ids", "num_generated", "sampling", "cache_salt", "credit_id")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    ticket: _common_pb2.KvTicket
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_generated: int
    sampling: _common_pb2.SamplingParams
    cache_salt: str
    credit_id: str
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., ticket: _Optional[_Union[_common_pb2.KvTicket, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_generated: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., cache_salt: _Optional[str] = ..., credit_id: _Optional[str] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("resumed", "tokens")
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    resumed: DecodeResumed
    tokens: DecodeTokens
    def __init__(self, resumed: _Optional[_Union[DecodeResumed, _Mapping]] = ..., tokens: _Optional[_Union[DecodeTokens, _Mapping]] = ...) -> None: ...

class DecodeResumed(_message.Message):
    __slots__ = ("fetched_bytes", "fetch_us", "prefetched_bytes")
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCH_US_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    fetched_bytes: int
    fetch_us: int
    prefetched_bytes: int
    def __init__(self, fetched_bytes: _Optional[int] = ..., fetch_us: _Optional[int] = ..., prefetched_bytes: _Optional[int] = ...) -> None: ...

class DecodeTokens(_message.Message):
    __slots__ = ("attempt", "seq", "token_ids", "logprobs", "finish_reason")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    seq: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.PositionLogprobs]
    finish_reason: _common_pb2.FinishReason
    def __init__(self, attempt: _Optional[int] = ..., seq: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.PositionLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ...) -> None: ...

class ReserveSlotRequest(_message.Message):
    __slots__ = ("request_id", "num_tokens", "fingerprint")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    num_tokens: int
    fingerprint: bytes
    def __init__(self, request_id: _Optional[str] = ..., num_tokens: _Optional[int] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class ReserveSlotResponse(_message.Message):
    __slots__ = ("credit_id", "ttl")
    CREDIT_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    credit_id: str
    ttl: _duration_pb2.Duration
    def __init__(self, credit_id: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReleaseSlotRequest(_message.Message):
    __slots__ = ("credit_id",)
    CREDIT_ID_FIELD_NUMBER: _ClassVar[int]
    credit_id: str
    def __init__(self, credit_id: _Optional[str] = ...) -> None: ...

class ReleaseSlotResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class PrefetchRequest(_message.Message):
    __slots__ = ("begin", "stored")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    begin: PrefetchBegin
    stored: PrefetchStored
    def __init__(self, begin: _Optional[_Union[PrefetchBegin, _Mapping]] = ..., stored: _Optional[_Union[PrefetchStored, _Mapping]] = ...) -> None: ...

class PrefetchBegin(_message.Message):
    __slots__ = ("request_id", "attempt", "token_ids", "cache_salt", "credit_id")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    cache_salt: str
    credit_id: str
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., cache_salt: _Optional[str] = ..., credit_id: _Optional[str] = ...) -> None: ...

class PrefetchStored(_message.Message):
    __slots__ = ("num_blocks",)
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ...) -> None: ...

class PrefetchResponse(_message.Message):
    __slots__ = ("num_blocks", "bytes")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    bytes: int
    def __init__(self, num_blocks: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
