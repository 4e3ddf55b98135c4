from disagg.v1 import common_pb2 as _common_pb2
from disagg.v1 import decode_pb2 as _decode_pb2
from disagg.v1 import generation_pb2 as _generation_pb2
from disagg.v1 import membership_pb2 as _membership_pb2
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

class ExplainRequest(_message.Message):
    __slots__ = ("request_id", "what_if")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WHAT_IF_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    what_if: bool
    def __init__(self, request_id: _Optional[str] = ..., what_if: _Optional[bool] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    def __init__(self, decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("attempt", "age_s", "policy", "policy_version", "rotation", "verdict", "reason", "num_tokens", "cached_tokens", "length_class", "quota_s", "output_tokens", "quota_coefficients", "prefill", "decode", "is_reproduced", "has_changes", "changes", "class_names")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROTATION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_CLASS_FIELD_NUMBER: _ClassVar[int]
    QUOTA_S_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUOTA_COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    IS_REPRODUCED_FIELD_NUMBER: _ClassVar[int]
    HAS_CHANGES_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    age_s: float
    policy: str
    policy_version: int
    rotation: int
    verdict: str
    reason: str
    num_tokens: int
    cached_tokens: int
    length_class: int
    quota_s: float
    output_tokens: int
    quota_coefficients: _containers.RepeatedScalarFieldContainer[float]
    prefill: DecisionSide
    decode: DecisionSide
    is_reproduced: bool
    has_changes: bool
    changes: _containers.RepeatedCompositeFieldContainer[DecisionChange]
    class_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, attempt: _Optional[int] = ..., age_s: _Optional[float] = ..., policy: _Optional[str] = ..., policy_version: _Optional[int] = ..., rotation: _Optional[int] = ..., verdict: _Optional[str] = ..., reason: _Optional[str] = ..., num_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., length_class: _Optional[int] = ..., quota_s: _Optional[float] = ..., output_tokens: _Optional[int] = ..., quota_coefficients: _Optional[_Iterable[float]] = ..., prefill: _Optional[_Union[DecisionSide, _Mapping]] = ..., decode: _Optional[_Union[DecisionSide, _Mapping]] = ..., is_reproduced: _Optional[bool] = ..., has_changes: _Optional[bool] = ..., changes: _Optional[_Iterable[_Union[DecisionChange, _Mapping]]] = ..., class_names: _Optional[_Iterable[str]] = ...) -> None: ...

class DecisionSide(_message.Message):
    __slots__ = ("chosen_id", "considered", "excluded", "runner_up_id", "margin_name", "margin", "ties")
    CHOSEN_ID_FIELD_NUMBER: _ClassVar[int]
    CONSIDERED_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    RUNNER_UP_ID_FIELD_NUMBER: _ClassVar[int]
    MARGIN_NAME_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    TIES_FIELD_NUMBER: _ClassVar[int]
    chosen_id: str
    considered: _containers.RepeatedCompositeFieldContainer[ConsideredMember]
    excluded: _containers.RepeatedCompositeFieldContainer[ExcludedMember]
    runner_up_id: str
    margin_name: str
    margin: float
    ties: int
    def __init__(self, chosen_id: _Optional[str] = ..., considered: _Optional[_Iterable[_Union[ConsideredMember, _Mapping]]] = ..., excluded: _Optional[_Iterable[_Union[ExcludedMember, _Mapping]]] = ..., runner_up_id: _Optional[str] = ..., margin_name: _Optional[str] = ..., margin: _Optional[float] = ..., ties: _Optional[int] = ...) -> None: ...

class ConsideredMember(_message.Message):
    __slots__ = ("member_id", "is_chosen", "age_s", "outstanding_requests", "outstanding_tokens", "outstanding_quota_s", "score", "length_class")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    IS_CHOSEN_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_QUOTA_S_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_CLASS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    is_chosen: bool
    age_s: float
    outstanding_requests: int
    outstanding_tokens: int
    outstanding_quota_s: float
    score: _containers.RepeatedCompositeFieldContainer[ScoreTerm]
    length_class: int
    def __init__(self, member_id: _Optional[str] = ..., is_chosen: _Optional[bool] = ..., age_s: _Optional[float] = ..., outstanding_requests: _Optional[int] = ..., outstanding_tokens: _Optional[int] = ..., outstanding_quota_s: _Optional[float] = ..., score: _Optional[_Iterable[_Union[ScoreTerm, _Mapping]]] = ..., length_class: _Optional[int] = ...) -> None: ...

class ScoreTerm(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class ExcludedMember(_message.Message):
    __slots__ = ("member_id", "cause", "detail")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    cause: str
    detail: str
    def __init__(self, member_id: _Optional[str] = ..., cause: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class DecisionChange(_message.Message):
    __slots__ = ("role", "member_id", "input", "before", "after", "chosen_id")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_ID_FIELD_NUMBER: _ClassVar[int]
    role: _membership_pb2.MemberRole
    member_id: str
    input: str
    before: float
    after: float
    chosen_id: str
    def __init__(self, role: _Optional[_Union[_membership_pb2.MemberRole, str]] = ..., member_id: _Optional[str] = ..., input: _Optional[str] = ..., before: _Optional[float] = ..., after: _Optional[float] = ..., chosen_id: _Optional[str] = ...) -> None: ...
