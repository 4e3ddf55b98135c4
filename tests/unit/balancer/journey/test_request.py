"""The balancer's own types of a request."""

from __future__ import annotations

import hashlib

from balancer.journey.request import Request, Sampling, seed_of


def test_a_seed_follows_from_the_id_alone() -> None:
    digest = hashlib.sha256(b"r1").hexdigest()
    assert seed_of("r1") == int(digest[:16], 16)
    assert seed_of("r1") == 9436142683398368141
    assert seed_of("r1") != seed_of("r2")
    assert 0 <= seed_of("x" * 128) < 2**64


def test_the_limit_of_a_request_is_that_of_its_sampling() -> None:
    request = Request(
        request_id="r",
        token_ids=(1,),
        sampling=Sampling(seed=0, max_tokens=9),
        arrived_at=0.0,
        deadline=1.0,
    )
    assert request.max_tokens == 9
