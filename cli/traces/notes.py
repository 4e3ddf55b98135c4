"""What a span says about itself, in a few words for the end of its line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from cli.output import plural, size
from disagg.v1 import traces_pb2

Texts = Mapping[str, str]

_MAX_ID_CHARS = 8
_INPUT, _OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
_CACHED = "gen_ai.usage.cache_read.input_tokens"
_FIRST = "gen_ai.response.time_to_first_chunk"


def notes_of(
    span: traces_pb2.TraceSpan, known: Mapping[bytes, traces_pb2.TraceSpan]
) -> Iterator[str]:
    """Its notes, most telling first.

    Args:
        known: All spans of its trace, by id; a link to one of them is told by its name.
    """
    texts = span.attributes
    if span.is_error:
        yield f"FAILED {texts.get('error.type', '')}".rstrip()
    elif "error.type" in texts:
        yield f"refused {texts['error.type']}"
    if texts.get("disagg.cancelled") == "true":
        yield "cancelled"
    # The server's span says the same, and stands right below.
    is_call = span.kind == traces_pb2.SPAN_KIND_CLIENT and "rpc.method" in texts
    for key, phrase in _PHRASES[:1] if is_call else _PHRASES:
        if key in texts and (note := phrase(texts[key])):
            yield note
    for link in span.links:
        target = known.get(link.span_id)
        if target is not None:
            yield f"<- {link.kind} {target.name.removeprefix('disagg.v1.')}"
        else:
            yield f"<- {link.kind} trace {link.trace_id.hex()[:_MAX_ID_CHARS]}"


def summary_of(trace: Iterable[traces_pb2.TraceSpan]) -> str:
    """What was asked and answered, from the span of the front door; empty without one."""
    texts = next((span.attributes for span in trace if _INPUT in span.attributes), None)
    if texts is None:
        return ""
    parts = [plural(_number(texts, _INPUT), "prompt token")]
    if cached := _number(texts, _CACHED):
        parts[0] += f" ({cached} cached)"
    if _OUTPUT in texts:
        parts.append(f"{plural(_number(texts, _OUTPUT), 'token')} generated")
    if _FIRST in texts:
        parts.append(f"first after {float(texts[_FIRST]) * 1000:.1f} ms")
    if (attempts := _number(texts, "disagg.attempt")) > 1:
        parts.append(f"{attempts} attempts")
    return ", ".join(parts)


def _number(texts: Texts, key: str) -> int:
    text = texts.get(key, "")
    return int(text) if text.isdecimal() else 0


def _count(noun: str) -> Callable[[str], str]:
    def phrase(text: str) -> str:
        return plural(int(text), noun) if text.isdecimal() else ""

    return phrase


def _some(noun: str) -> Callable[[str], str]:
    """A number with a word behind it, unless it is none."""

    def phrase(text: str) -> str:
        return f"{text} {noun}" if text.isdecimal() and text != "0" else ""

    return phrase


def _bytes(word: str) -> Callable[[str], str]:
    def phrase(text: str) -> str:
        if not text.isdecimal() or text == "0":
            return ""
        return f"{size(int(text))} {word}".rstrip()

    return phrase


def _attempt(text: str) -> str:
    return "" if text == "1" else f"attempt {text}"


def _ms(form: str) -> Callable[[str], str]:
    def phrase(text: str) -> str:
        try:
            return form.format(float(text))
        except ValueError:
            return ""

    return phrase


_PHRASES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("disagg.attempt", _attempt),
    ("disagg.route.policy", str),
    ("disagg.route.candidates", _count("candidate")),
    ("disagg.prompt_tokens", _count("token")),
    ("disagg.cached_tokens", _some("cached")),
    ("disagg.computed_tokens", _some("computed")),
    ("disagg.queue", lambda text: f"for {text}"),
    ("db.operation.name", str),
    ("disagg.kv.hit_blocks", lambda text: f"{text} hit"),
    ("disagg.kv.miss_blocks", lambda text: f"{text} missed"),
    ("disagg.kv.blocks", lambda text: "" if text == "0" else _count("block")(text)),
    ("disagg.kv.bytes", _bytes("")),
    ("disagg.kv.prefetched_bytes", _bytes("read ahead")),
    ("disagg.verified", lambda text: "verified" if text == "true" else "NOT VERIFIED"),
    ("disagg.output_tokens", _count("token")),
    ("disagg.steps", _count("step")),
    ("disagg.tpot_ms", _ms("{:.1f} ms each")),
    ("disagg.max_gap_ms", _ms("gap {:.1f} ms")),
    ("disagg.handoff_id", lambda text: f"hand-off {text[:_MAX_ID_CHARS]}"),
)
