import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemberRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_ROLE_UNSPECIFIED: _ClassVar[MemberRole]
    MEMBER_ROLE_PREFILL: _ClassVar[MemberRole]
    MEMBER_ROLE_DECODE: _ClassVar[MemberRole]
MEMBER_ROLE_UNSPECIFIED: MemberRole
MEMBER_ROLE_PREFILL: MemberRole
MEMBER_ROLE_DECODE: MemberRole

class LoadSnapshot(_message.Message):
    __slots__ = ("running", "waiting", "kv_tokens", "kv_capacity_tokens", "max_running", "queued_tokens", "steps", "placeholder_steps", "last_progress_ms")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PLACEHOLDER_STEPS_FIELD_NUMBER: _ClassVar[int]
    LAST_PROGRESS_MS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    kv_tokens: int
    kv_capacity_tokens: int
    max_running: int
    queued_tokens: int
    steps: int
    placeholder_steps: int
    last_progress_ms: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_tokens: _Optional[int] = ..., kv_capacity_tokens: _Optional[int] = ..., max_running: _Optional[int] = ..., queued_tokens: _Optional[int] = ..., steps: _Optional[int] = ..., placeholder_steps: _Optional[int] = ..., last_progress_ms: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("member_id", "role", "address", "group_id", "rank", "group_size", "fingerprint", "model", "max_model_len", "block_tokens", "ready", "draining", "load", "sequence", "age", "window_replay_tokens", "metrics_address", "exclusion")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_REPLAY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSION_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    role: MemberRole
    address: str
    group_id: str
    rank: int
    group_size: int
    fingerprint: bytes
    model: str
    max_model_len: int
    block_tokens: int
    ready: bool
    draining: bool
    load: LoadSnapshot
    sequence: int
    age: _duration_pb2.Duration
    window_replay_tokens: int
    metrics_address: str
    exclusion: str
    def __init__(self, member_id: _Optional[str] = ..., role: _Optional[_Union[MemberRole, str]] = ..., address: _Optional[str] = ..., group_id: _Optional[str] = ..., rank: _Optional[int] = ..., group_size: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., model: _Optional[str] = ..., max_model_len: _Optional[int] = ..., block_tokens: _Optional[int] = ..., ready: _Optional[bool] = ..., draining: _Optional[bool] = ..., load: _Optional[_Union[LoadSnapshot, _Mapping]] = ..., sequence: _Optional[int] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., window_replay_tokens: _Optional[int] = ..., metrics_address: _Optional[str] = ..., exclusion: _Optional[str] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: Member
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("interval", "drain")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    drain: bool
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., drain: _Optional[bool] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ("role",)
    ROLE_FIELD_NUMBER: _ClassVar[int]
    role: MemberRole
    def __init__(self, role: _Optional[_Union[MemberRole, str]] = ...) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...
