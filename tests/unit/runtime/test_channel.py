"""Options and time budgets of calls between our processes."""

import pytest

from runtime import channel


def test_client_options_are_exactly_these() -> None:
    assert dict(channel.CLIENT_OPTIONS) == {
        "grpc.max_receive_message_length": 16777216,
        "grpc.max_send_message_length": 16777216,
        "grpc.keepalive_time_ms": 30000,
        "grpc.keepalive_timeout_ms": 10000,
        "grpc.http2.max_pings_without_data": 0,
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.min_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 2000,
        "grpc.enable_http_proxy": 0,
    }


def test_bulk_options_add_window_frame_and_an_own_connection() -> None:
    added = dict(channel.BULK_CLIENT_OPTIONS).items() - dict(channel.CLIENT_OPTIONS).items()
    assert dict(added) == {
        "grpc.http2.lookahead_bytes": 16777216,
        "grpc.http2.max_frame_size": 1048576,
        "grpc.http2.bdp_probe": 0,
        "grpc.use_local_subchannel_pool": 1,
    }


def test_no_channel_carries_a_retry_policy() -> None:
    keys = {key for key, _value in channel.BULK_CLIENT_OPTIONS}
    assert not keys & {"grpc.service_config", "grpc.enable_retries"}


@pytest.mark.parametrize(
    ("remaining", "cap", "expected"),
    [(None, 5.0, 5.0), (10.0, 5.0, 5.0), (1.0, 5.0, 0.98), (0.01, 5.0, 0.0), (-1.0, 5.0, 0.0)],
)
def test_a_hop_passes_on_what_remains(remaining: float | None, cap: float, expected: float) -> None:
    assert channel.hop_timeout_s(remaining, cap) == pytest.approx(expected)


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_channel_opens_and_closes_without_a_peer(bulk: bool) -> None:
    async with channel.open_channel("127.0.0.1:1", bulk=bulk) as opened:
        assert opened.get_state().name == "IDLE"
