"""Settings that the services share: each may refine a section, none may lose a field."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from decode_service.config import DecodeSettings
from kvstore.config import KvStoreConfig
from prefill_service.config import PrefillSettings
from runtime.settings import leaves
from serving.settings import AnnounceSettings, EngineProcessSettings


@pytest.mark.parametrize("settings", [PrefillSettings, DecodeSettings])
def test_a_service_takes_every_shared_setting(settings: type[EngineProcessSettings]) -> None:
    shared = {leaf.key for leaf in leaves(EngineProcessSettings)}
    assert shared <= {leaf.key for leaf in leaves(settings)}


@pytest.mark.parametrize("settings", [PrefillSettings, DecodeSettings])
def test_only_the_store_url_has_no_default(settings: type[EngineProcessSettings]) -> None:
    required = [leaf.key for leaf in leaves(settings) if leaf.field.is_required()]
    assert required == ["store.url"]


@pytest.mark.parametrize("name", ["lb", "lb:0", "lb:65536", "10.0.0.1:99999", ":70000"])
def test_a_balancer_without_a_port_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=f"'{name}' has no port from 1 to 65535; write host"):
        AnnounceSettings(balancers=("lb:1", name))


def test_balancers_may_be_other_targets_of_grpc() -> None:
    names = ("[::1]:8", "unix:/run/lb.sock", "dns:///lb:9", "lb.svc:50051")
    assert AnnounceSettings(balancers=names).balancers == names


@pytest.mark.parametrize("settings", [PrefillSettings, DecodeSettings])
def test_the_store_section_is_understood_by_the_store(
    settings: type[EngineProcessSettings],
) -> None:
    store = settings.model_validate({"store": {"url": "memory://"}}).store
    given = store.model_dump(exclude={"url"})
    config = KvStoreConfig(block_tokens=32, owner="x", owner_rank=0, **given)
    assert {name: getattr(config, name) for name in given} == given
