"""Log records: one line, facts of the scope, no secrets."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from runtime.logging import Form, configure_logging, get_logger, request_scope
from tests.fakes.spans import recorded, served


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_json_line_with_its_facts(stream: io.StringIO) -> None:
    configure_logging(stream=stream, facts={"role": "decode"})
    get_logger("x").info("lease.lost", handoff="h1", blocks=3)
    (record,) = lines(stream)
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "event": "lease.lost",
        "handoff": "h1",
        "blocks": 3,
        "level": "info",
        "role": "decode",
    }


def test_libraries_are_rendered_alike(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    with request_scope(request_id="r1"):
        logging.getLogger("kvstore").warning("slow by %d ms", 12)
    (record,) = lines(stream)
    assert (record["event"], record["level"]) == ("slow by 12 ms", "warning")
    assert record["request_id"] == "r1"


def test_a_scope_ends(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    with request_scope(request_id="r1"):
        get_logger("x").info("inside")
    get_logger("x").info("outside")
    assert [record.get("request_id") for record in lines(stream)] == ["r1", None]


def test_lower_levels_are_left_out(stream: io.StringIO) -> None:
    configure_logging(stream=stream, level="warning")
    get_logger("x").info("quiet")
    logging.getLogger("y").debug("quiet")
    get_logger("x").error("loud")
    assert [record["event"] for record in lines(stream)] == ["loud"]


def test_secrets_are_masked(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    get_logger("x").info("call", Authorization="Bearer abc", password="abc", user="u")
    (record,) = lines(stream)
    assert (record["Authorization"], record["password"], record["user"]) == ("***", "***", "u")


def test_tracebacks_are_part_of_the_line(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    try:
        raise ValueError("broken")
    except ValueError as error:
        get_logger("x").error("call.failed", exc_info=error)
    (record,) = lines(stream)
    assert record["exception"][0]["exc_type"] == "ValueError"


@pytest.mark.parametrize("form", ["json", "console"])
def test_tracebacks_hold_no_values_of_variables(form: Form, stream: io.StringIO) -> None:
    configure_logging(form=form, stream=stream)
    prompt = "the words of a caller"[::-1]  # so that no line of the source holds them
    try:
        raise ValueError("wrong" if prompt else "")
    except ValueError as error:
        get_logger("x").error("call.failed", exc_info=error)
        logging.getLogger("of.a.library").exception("call failed")
    text = stream.getvalue()
    assert text.count("ValueError") >= 2
    assert prompt not in text


def test_people_get_text(stream: io.StringIO) -> None:
    configure_logging(stream=stream, form="console")
    get_logger("x").info("drain.begun", running=2)
    assert "drain.begun" in stream.getvalue() and "running=2" in stream.getvalue()


def test_every_line_of_a_recorded_request_names_its_trace(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    found = recorded()
    with served(found) as span, span.child("prefill.lookup"):
        get_logger("x").info("inside")
        logging.getLogger("library").warning("inside too")
    with served(recorded(samples=False)):
        get_logger("x").info("unsampled")
    get_logger("x").info("outside")
    inside, library, *others = lines(stream)
    lookup = found.one("prefill.lookup")
    for record in (inside, library):
        assert record["trace_id"] == f"{lookup.context.trace_id:032x}"
        assert record["span_id"] == f"{lookup.context.span_id:016x}"
    assert all("trace_id" not in record for record in others)


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_password_in_a_url_stays_out_of_values_and_exceptions(
    form: Form, stream: io.StringIO
) -> None:
    configure_logging(stream=stream, form=form)
    url = "redis://me:secret@h:1"
    get_logger("x").warning("store.gone", url=url)
    try:
        raise ValueError(f"no answer of {url}")
    except ValueError:
        logging.getLogger("kvstore").exception("a round failed")
    text = stream.getvalue()
    assert "secret" not in text
    assert text.count("redis://me:***@h:1") == 2
