from disagg.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrefillRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "token_ids", "num_generated", "sampling", "cache_salt", "bypass_prefix", "report_stored")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    BYPASS_PREFIX_FIELD_NUMBER: _ClassVar[int]
    REPORT_STORED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_generated: int
    sampling: _common_pb2.SamplingParams
    cache_salt: str
    bypass_prefix: bool
    report_stored: bool
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_generated: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., cache_salt: _Optional[str] = ..., bypass_prefix: _Optional[bool] = ..., report_stored: _Optional[bool] = ...) -> None: ...

class PrefillResponse(_message.Message):
    __slots__ = ("admitted", "prefix_hit", "chunk_done", "first_token", "committed", "blocks_stored")
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HIT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_DONE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_STORED_FIELD_NUMBER: _ClassVar[int]
    admitted: PrefillAdmitted
    prefix_hit: PrefillPrefixHit
    chunk_done: PrefillChunkDone
    first_token: PrefillFirstToken
    committed: PrefillCommitted
    blocks_stored: PrefillBlocksStored
    def __init__(self, admitted: _Optional[_Union[PrefillAdmitted, _Mapping]] = ..., prefix_hit: _Optional[_Union[PrefillPrefixHit, _Mapping]] = ..., chunk_done: _Optional[_Union[PrefillChunkDone, _Mapping]] = ..., first_token: _Optional[_Union[PrefillFirstToken, _Mapping]] = ..., committed: _Optional[_Union[PrefillCommitted, _Mapping]] = ..., blocks_stored: _Optional[_Union[PrefillBlocksStored, _Mapping]] = ...) -> None: ...

class PrefillAdmitted(_message.Message):
    __slots__ = ("queue_length",)
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    queue_length: int
    def __init__(self, queue_length: _Optional[int] = ...) -> None: ...

class PrefillPrefixHit(_message.Message):
    __slots__ = ("cached_tokens", "bytes", "load_us", "replayed_tokens")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_US_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    bytes: int
    load_us: int
    replayed_tokens: int
    def __init__(self, cached_tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., load_us: _Optional[int] = ..., replayed_tokens: _Optional[int] = ...) -> None: ...

class PrefillChunkDone(_message.Message):
    __slots__ = ("computed_tokens",)
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    computed_tokens: int
    def __init__(self, computed_tokens: _Optional[int] = ...) -> None: ...

class PrefillFirstToken(_message.Message):
    __slots__ = ("token_id", "logprobs", "finish_reason", "queue_us", "compute_us")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprobs: _common_pb2.PositionLogprobs
    finish_reason: _common_pb2.FinishReason
    queue_us: int
    compute_us: int
    def __init__(self, token_id: _Optional[int] = ..., logprobs: _Optional[_Union[_common_pb2.PositionLogprobs, _Mapping]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., queue_us: _Optional[int] = ..., compute_us: _Optional[int] = ...) -> None: ...

class PrefillCommitted(_message.Message):
    __slots__ = ("ticket", "published_bytes", "commit_us")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_US_FIELD_NUMBER: _ClassVar[int]
    ticket: _common_pb2.KvTicket
    published_bytes: int
    commit_us: int
    def __init__(self, ticket: _Optional[_Union[_common_pb2.KvTicket, _Mapping]] = ..., published_bytes: _Optional[int] = ..., commit_us: _Optional[int] = ...) -> None: ...

class PrefillBlocksStored(_message.Message):
    __slots__ = ("num_blocks",)
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ...) -> None: ...
