"""Which endpoint and sampler are in force: our settings over the standard variables."""

import pytest

from runtime.settings import SettingsError
from runtime.tracing.settings import TracingPlan, TracingSettings, resolve

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}


def test_without_an_endpoint_nothing_is_recorded() -> None:
    assert resolve(TracingSettings(), {}) == TracingPlan()
    assert resolve(TracingSettings(), {"OTEL_TRACES_SAMPLER": "always_on"}).endpoint == ""


def test_the_setting_wins_over_the_variables_and_the_narrow_one_over_the_wide_one() -> None:
    variables = {**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:4317"}
    assert resolve(TracingSettings(), ENDPOINT).endpoint == "http://c:4317"
    assert resolve(TracingSettings(), variables).endpoint == "http://t:4317"
    assert resolve(TracingSettings(endpoint="http://s:1"), variables).endpoint == "http://s:1"


def test_a_disabled_sdk_records_nothing() -> None:
    for name, value in (("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_EXPORTER", "none")):
        plan = resolve(TracingSettings(endpoint="http://s:1"), {name: value})
        assert plan.endpoint == ""


def test_a_tenth_of_the_requests_by_default() -> None:
    plan = resolve(TracingSettings(), ENDPOINT)
    assert (plan.sampler, plan.ratio) == ("parentbased_traceidratio", 0.1)


def test_the_sampler_of_the_variables_and_ours_above_it() -> None:
    variables = {
        **ENDPOINT,
        "OTEL_TRACES_SAMPLER": "traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.5",
    }
    plan = resolve(TracingSettings(), variables)
    assert (plan.sampler, plan.ratio) == ("traceidratio", 0.5)
    plan = resolve(TracingSettings(sample_ratio=1.0), variables)
    assert (plan.sampler, plan.ratio) == ("parentbased_traceidratio", 1.0)


def test_over_http_the_wide_endpoint_gets_a_path() -> None:
    variables = {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    plan = resolve(TracingSettings(), variables)
    assert (plan.endpoint, plan.protocol) == ("http://c:4317/v1/traces", "http/protobuf")


def test_facts_of_the_resource_and_the_old_spelling() -> None:
    plan = resolve(
        TracingSettings(),
        {
            **ENDPOINT,
            "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=p-0, a = b,",
            "OTEL_SERVICE_NAME": "mine",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "http,rpc/dup",
        },
    )
    assert plan.resource == {"k8s.pod.name": "p-0", "a": "b"}
    assert plan.service_name == "mine"
    assert plan.duplicates_rpc


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "grpc, http/protobuf"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "from 0 to 1"),
        ("OTEL_TRACES_SAMPLER_ARG", "half", "from 0 to 1"),
        ("OTEL_PROPAGATORS", "b3", "tracecontext,baggage"),
        ("OTEL_PROPAGATORS", "baggage", "tracecontext,baggage"),
    ],
)
def test_what_cannot_be_followed_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError) as error:
        resolve(TracingSettings(), {**ENDPOINT, name: value})
    assert name in str(error.value)
    assert value in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        "garbage",
        "ftp://x:1",
        "127.0.0.1:99999",
        "http://c:0",
        "http://c",
        "http://:4317",
    ],
)
def test_endpoints_where_no_collector_can_be_are_refused(endpoint: str) -> None:
    with pytest.raises(SettingsError, match=r"tracing.endpoint = .*give one like http://"):
        resolve(TracingSettings(endpoint=endpoint), {})
    with pytest.raises(SettingsError, match="environment OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = "):
        resolve(TracingSettings(), {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint})


@pytest.mark.parametrize("endpoint", ["c:4317", "[::1]:4317", "https://c", "dns:///c:4317"])
def test_endpoints_that_grpc_understands(endpoint: str) -> None:
    assert resolve(TracingSettings(endpoint=endpoint), {}).endpoint == endpoint


def test_over_http_an_endpoint_needs_a_scheme() -> None:
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    with pytest.raises(SettingsError, match=r"give one like http://127\.0\.0\.1:4318/v1/traces"):
        resolve(TracingSettings(endpoint="c:4318"), variables)
    assert resolve(TracingSettings(endpoint="http://c/v1/traces"), variables).endpoint


@pytest.mark.parametrize("value", ["abc", "0", "-5", "1.5"])
def test_sizes_of_batches_that_the_sdk_would_pass_over_are_refused(value: str) -> None:
    variables = {**ENDPOINT, "OTEL_BSP_SCHEDULE_DELAY": value}
    with pytest.raises(SettingsError, match=f"OTEL_BSP_SCHEDULE_DELAY = '{value}': give a whole"):
        resolve(TracingSettings(), variables)


@pytest.mark.parametrize("value", ["abc", "-1", "1.5"])
def test_limits_that_are_none_are_refused(value: str) -> None:
    variables = {**ENDPOINT, "OTEL_SPAN_EVENT_COUNT_LIMIT": value}
    with pytest.raises(SettingsError, match=f"OTEL_SPAN_EVENT_COUNT_LIMIT = '{value}': give a"):
        resolve(TracingSettings(), variables)
    assert resolve(TracingSettings(), {**ENDPOINT, "OTEL_SPAN_EVENT_COUNT_LIMIT": "0"}).endpoint


def test_an_endpoint_holds_no_password() -> None:
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        resolve(TracingSettings(endpoint="http://user:token@c:4317"), {})
    assert "token" not in str(caught.value)
