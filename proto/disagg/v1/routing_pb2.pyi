from disagg.v1 import common_pb2 as _common_pb2
from disagg.v1 import decode_pb2 as _decode_pb2
from disagg.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RouteRequest(_message.Message):
    __slots__ = ("generate", "generated", "last_attempt")
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    LAST_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    generate: _generation_pb2.GenerateRequest
    generated: _containers.RepeatedScalarFieldContainer[int]
    last_attempt: int
    def __init__(self, generate: _Optional[_Union[_generation_pb2.GenerateRequest, _Mapping]] = ..., generated: _Optional[_Iterable[int]] = ..., last_attempt: _Optional[int] = ...) -> None: ...

class RouteResponse(_message.Message):
    __slots__ = ("request_id", "attempt", "seq", "token_ids", "logprobs", "finish_reason", "usage", "timing", "decode", "seed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    seq: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.PositionLogprobs]
    finish_reason: _common_pb2.FinishReason
    usage: _common_pb2.Usage
    timing: _common_pb2.Timing
    decode: RoutedDecode
    seed: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., seq: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.PositionLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., usage: _Optional[_Union[_common_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_common_pb2.Timing, _Mapping]] = ..., decode: _Optional[_Union[RoutedDecode, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class RoutedDecode(_message.Message):
    __slots__ = ("member_id", "address", "request")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    address: str
    request: _decode_pb2.DecodeRequest
    def __init__(self, member_id: _Optional[str] = ..., address: _Optional[str] = ..., request: _Optional[_Union[_decode_pb2.DecodeRequest, _Mapping]] = ...) -> None: ...
