"""A store beside a small model: any sequence of calls and of deaths gives the same answers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvstore import LeaseState, Ticket
from kvstore.backends.base import Backend
from kvstore.backends.memory import MemoryBackend
from kvstore.errors import BlockMissing, KvStoreError, LeaseLost, StaleAttempt
from kvstore.handoffs.reader import HandoffReader
from tests.fakes.stores import ManualClock, Prompt, RawFiles, RawStore, make_store, raw_redis

PROMPTS = [
    Prompt(name, tokens, block_bytes=size)
    for name, tokens, size in [
        ("a", tuple(range(10)), 50),
        ("b", (*range(8), 99), 50),
        ("c", tuple(range(20, 29)), 300),
    ]
]
CLASS_S = {"handoff": 600.0, "cache": 3600.0}


T = TypeVar("T")


def outcome(call: Callable[[], T]) -> T | KvStoreError:
    """What a call returned, or the library's error that it raised."""
    try:
        return call()
    except KvStoreError as error:
        return error


class StoreMachine(RuleBasedStateMachine):
    """Model: when blocks end, the newest attempt of each request, who holds what until when."""

    has_own_time = True
    """Whether the backend goes by the clock of the model; else no time passes in the model."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = make_store(self.open_backend(), self.clock, refresh_s=0.0)
        self.block_ends: dict[bytes, float] = {}
        self.newest: dict[str, int] = {}
        self.tickets: dict[tuple[str, int], Ticket] = {}
        self.deadlines: dict[tuple[str, int], float] = {}
        self.readers: list[tuple[tuple[str, int], HandoffReader, bool]] = []

    def open_backend(self) -> Backend:
        """An empty one."""
        return MemoryBackend(self.clock)

    def keep(self, prompt: Prompt, seconds: float) -> None:
        for name in prompt.hashes:
            end = self.clock.time + seconds
            self.block_ends[name] = max(self.block_ends.get(name, 0.0), end)

    def stored(self, name: bytes) -> bool:
        return self.block_ends.get(name, 0.0) > self.clock.time

    @rule(prompt=st.sampled_from(PROMPTS), attempt=st.integers(1, 3))
    def hand_over(self, prompt: Prompt, attempt: int) -> None:
        newest = self.newest.get(prompt.request_id, 0)
        for name in prompt.hashes:
            if not self.stored(name):
                self.block_ends[name] = self.clock.time + CLASS_S["handoff"]
        ticket = outcome(lambda: replace(prompt, attempt=attempt).hand_over(self.store))
        if isinstance(ticket, KvStoreError):
            assert isinstance(ticket, StaleAttempt)
            assert attempt < newest == ticket.newest
            return
        assert attempt >= newest
        self.newest[prompt.request_id] = attempt
        self.keep(prompt, CLASS_S["handoff"])
        name = (prompt.request_id, attempt)
        self.tickets[name] = ticket
        # Committing again leaves a live hand-off as it is, and revives a lapsed one.
        if self.deadlines.get(name, 0.0) <= self.clock.time:
            self.deadlines[name] = self.clock.time + 60

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tickets)))
        prompt = next(p for p in PROMPTS if p.request_id == name[0])
        reader = outcome(lambda: self.store.open_ticket(self.tickets[name], prompt.token_ids))
        if isinstance(reader, StaleAttempt):
            assert self.newest[name[0]] != name[1]
            return
        if isinstance(reader, BlockMissing):
            assert reader.kind == "body"
            assert name not in self.deadlines
            return
        assert isinstance(reader, HandoffReader)
        assert self.newest[name[0]] == name[1]
        assert name in self.deadlines
        self.deadlines[name] = self.clock.time + 10
        self.readers = [(n, r, False if n == name else live) for n, r, live in self.readers]
        self.readers.append((name, reader, True))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def fetch(self, data: st.DataObject) -> None:
        name, reader, live = data.draw(st.sampled_from(self.readers))
        prompt = next(p for p in PROMPTS if p.request_id == name[0])
        state = outcome(reader.fetch)
        if isinstance(state, LeaseLost):
            assert not live or self.deadlines[name] < self.clock.time
        elif isinstance(state, StaleAttempt):
            assert self.newest[name[0]] != name[1]
            self.deadlines[name] = self.clock.time + 10
        elif isinstance(state, KvStoreError):
            assert isinstance(state, BlockMissing)
            assert not live or not all(map(self.stored, prompt.hashes))
        else:
            assert live
            assert self.newest[name[0]] == name[1]
            assert self.deadlines[name] >= self.clock.time
            assert [bytes(block) for block in state.blocks] == prompt.payloads
            assert bytes(state.tail_state) == prompt.tail_state
            self.deadlines[name] = self.clock.time + 10

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.readers))
        self.readers.remove(entry)
        name, reader, live = entry
        prompt = next(p for p in PROMPTS if p.request_id == name[0])
        assert reader.release() == live
        if live:
            self.forget(name)
        for block in prompt.hashes:
            if self.stored(block):
                end = self.clock.time + CLASS_S["cache"]
                self.block_ends[block] = max(self.block_ends[block], end)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tickets)))
        assert self.store.abort(self.tickets[name].handoff_id) == (name in self.deadlines)
        self.forget(name)

    def forget(self, name: tuple[str, int]) -> None:
        self.deadlines.pop(name, None)
        self.readers = [(n, r, False if n == name else live) for n, r, live in self.readers]

    @rule()
    def janitor(self) -> None:
        late = [name for name, end in self.deadlines.items() if end <= self.clock.time]
        reaped = [name for name, end in self.deadlines.items() if end < self.clock.time]
        assert len(reaped) <= self.store.janitor().num_expired <= len(late)
        for name in reaped:
            self.forget(name)

    @precondition(lambda self: self.has_own_time)
    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 31.0]))
    def wait(self, seconds: float) -> None:
        # Short of the ends of whole classes: bodies end with theirs, which unit tests show.
        if self.clock.time + seconds < 1000.0 + 550.0:
            self.clock.advance(seconds)

    @invariant()
    def the_audit_lists_exactly_what_is_held(self) -> None:
        records = [r for r in self.store.audit() if r.state is not LeaseState.RESERVED]
        wanted = {self.tickets[name].handoff_id: end for name, end in self.deadlines.items()}
        assert {record.handoff_id for record in records} == set(wanted)
        for record in records:
            assert (record.state is LeaseState.LAPSED) == (
                wanted[record.handoff_id] <= self.clock.time
            )

    @invariant()
    def prefixes_are_what_the_model_says(self) -> None:
        for prompt in PROMPTS:
            stored = [self.stored(name) for name in prompt.hashes]
            wanted = stored.index(False) if False in stored else len(stored)
            assert self.store.lookup(prompt.hashes).num_blocks == wanted


StoreMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestStoreMachine = pytest.mark.medium(StoreMachine.TestCase)


class RealMachine(StoreMachine):
    """The same beside a backend with a clock of its own: a run is short against every life."""

    has_own_time = False
    raw: ClassVar[RawStore]

    def open_backend(self) -> Backend:
        self.raw.clear()
        return self.raw.backend


class FilesMachine(RealMachine):
    """On a directory."""


class ServerMachine(RealMachine):
    """On a private server."""


FilesMachine.TestCase.settings = settings(max_examples=4, stateful_step_count=20, deadline=None)
ServerMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


@pytest.mark.medium
class TestFilesMachine(FilesMachine.TestCase):
    cleanup: ClassVar[ExitStack]

    @classmethod
    def setUpClass(cls) -> None:
        cls.cleanup = ExitStack()
        directory = cls.cleanup.enter_context(tempfile.TemporaryDirectory())
        FilesMachine.raw = RawFiles(Path(directory) / "store")
        cls.cleanup.callback(FilesMachine.raw.backend.close)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.cleanup.close()


@pytest.mark.medium
class TestServerMachine(ServerMachine.TestCase):
    cleanup: ClassVar[ExitStack]

    @classmethod
    def setUpClass(cls) -> None:
        cls.cleanup = ExitStack()
        ServerMachine.raw = cls.cleanup.enter_context(raw_redis())

    @classmethod
    def tearDownClass(cls) -> None:
        cls.cleanup.close()
