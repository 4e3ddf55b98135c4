"""Samples cover every form a hand-off has, and know their keys."""

from kvstore.backends.memory import MemoryBackend
from kvstore.mutation.samples import sample_config, samples
from kvstore.store import KvStore
from tests.fakes.stores import FINGERPRINT, ManualClock


def test_the_keys_are_all_that_was_written() -> None:
    backend = MemoryBackend(ManualClock())
    store = KvStore(backend, sample_config(), fingerprint=FINGERPRINT, clock=ManualClock())
    expected: set[bytes] = set()
    for sample in samples("run"):
        ticket = sample.hand_over(store)
        lease, attempt = sample.control_keys(ticket)
        expected |= {*sample.value_keys(ticket), lease, attempt}
        expected |= {*sample.prefix_keys(ticket), *sample.inner_keys(ticket)}
    assert set(backend._values) | set(backend._leases) == expected


def test_two_runs_have_other_requests_and_two_tenants_other_blocks() -> None:
    one, other = samples("one"), samples("other")
    assert not {item.request_id for item in one} & {item.request_id for item in other}
    assert one[0].token_ids == one[2].token_ids
    assert not set(one[0].hashes) & set(one[2].hashes)
    assert one[0].hashes[:3] == one[1].hashes[:3]
