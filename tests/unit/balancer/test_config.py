"""Settings of a balancer."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from balancer.config import BalancerSettings
from runtime.settings import SettingsError, load


def test_the_store_is_the_only_thing_without_a_default() -> None:
    with pytest.raises(SettingsError, match=r"store\.url is required"):
        load(BalancerSettings, environment={})
    settings = load(BalancerSettings, flags={"store.url": "unix:///x"}, environment={}).value
    assert settings.listen.port == 0
    assert settings.limits.default_timeout_s == 600
    assert settings.routing.policy == "deepseek"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"membership": {"interval_s": 9, "stale_after_s": 5}}, "interval_s 9.0 < stale_after_s"),
        ({"limits": {"max_timeout_s": 5}}, "default_timeout_s 600.0 exceeds max_timeout_s 5.0"),
        ({"routing": {"policy": "best"}}, "policy 'best' is unknown; there are: deep"),
        ({"admission": {"max_running": 0}}, "greater than or equal to 1"),
        (
            {"listen": {"max_concurrent_calls": 500}},
            "listen.max_concurrent_calls 500 leaves no room for heartbeats",
        ),
        ({"unknown": 1}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_cannot_work_are_refused(section: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        BalancerSettings.model_validate({"store": {"url": "unix:///x"}, **section})
    assert message in str(caught.value)
