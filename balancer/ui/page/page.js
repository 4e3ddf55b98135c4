// Draws what state.json says, once a second. No library, nothing from elsewhere, and text only ever
// becomes text: elements are made one by one, never from markup.
//
// A drawing is made anew each time and then laid over the old one (`morph`), so that focus, hover
// and listeners stay where they are.

const PERIOD_MS = 1000;
const PATIENCE_MS = 4000;
const MAX_ROWS = 12; // of candidates in a record
const FEW = 6; // ranks for which there is room to tell each in words
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

let key = "";
let latest = null;
let lostSince = null;
let selected = -1; // row of the decode rank that is pointed at

// --- making and updating elements -------------------------------------------------------------

function make(node, options, children) {
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "vars") for (const [v, x] of Object.entries(value)) node.style.setProperty(v, x);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, options = {}, ...children) => make(document.createElement(tag), options, children);
const svg = (tag, options = {}, ...children) =>
  make(document.createElementNS(SVG, tag), options, children);

function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (name !== "style" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  fill(old, [...fresh.childNodes]);
}

function fill(parent, fresh) {
  const old = [...parent.childNodes];
  fresh.forEach((node, i) => (i < old.length ? morph(old[i], node) : parent.append(node)));
  old.slice(fresh.length).forEach((node) => node.remove());
}

const draw = (id, ...children) => fill($(id), [...el("div", {}, ...children).childNodes]);

// --- numbers for people -----------------------------------------------------------------------

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const num = (n) => (Math.abs(n) < 10000 ? whole.format(n) : short.format(n));
const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const plural = (n, word) => `${num(n)} ${word}${n === 1 ? "" : "s"}`;

function duration(seconds) {
  if (seconds < 0.0009995) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.00995) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1e3)} ms`;
  if (Number.isInteger(seconds) && seconds < 120) return `${seconds} s`;
  if (seconds < 9.995) return `${seconds.toFixed(2)} s`;
  if (seconds < 119.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 7170) return `${Math.round(seconds / 60)} min`;
  return seconds < 172000 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}
const brief = (seconds) => (seconds < 10 ? `${seconds.toFixed(1)} s` : duration(Math.round(seconds)));
const ago = (seconds) => `${brief(seconds)} ago`;

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${i && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}
const kilo = (tokens) => (tokens % 1024 ? whole.format(tokens) : `${whole.format(tokens / 1024)}K`);
const range = (c) =>
  c.to === null ? (c.from ? `${kilo(c.from)} and more` : "any length")
    : c.from ? `${kilo(c.from)} to ${kilo(c.to)}` : `below ${kilo(c.to)}`;
const figure = (x) => (typeof x === "number" ? Number(x.toPrecision(4)).toString() : String(x));

// --- the parts of the page --------------------------------------------------------------------

function empty(what, way) {
  return el("div", { class: "empty" }, el("strong", {}, what), way);
}
const startOne = (role) => el("span", {}, "Start one with ",
  el("code", {}, `python -m ${role}_service`), ", or a whole system with ",
  el("code", {}, "disagg up"), ". It appears here with its first heartbeat.");

function top(state) {
  const { about, health } = state;
  draw("about", [about.model, `policy ${about.policy}`, `version ${about.version}`,
    `up ${duration(Math.round(about.uptime_s))}`].join("  ·  "));
  $("health").className = `health ${health.why ? "bad" : "good"}`;
  draw("health", health.why ? `Not serving: ${health.why}` : "Serving");
}

function tiles(state) {
  const { requests, prefill, decode } = state;
  const p50 = requests.first_token_p50_s;
  const tile = (id, name, value, note, title) =>
    el("div", { class: "tile", title }, el("dt", {}, name), el("dd", { id: `tile-${id}` }, value),
      el("dd", { class: "note" }, note));
  draw("tiles",
    tile("running", "Requests running", num(requests.running), `${num(requests.waiting)} waiting`),
    tile("rate", "Requests per second", requests.per_s.toFixed(requests.per_s < 10 ? 1 : 0),
      `${num(requests.ended)} ended since start`),
    tile("tokens", "Tokens per second", num(Math.round(requests.tokens_per_s)), "mean of 20 s"),
    tile("ttft", "First token", p50 === null ? "–" : duration(p50), "median of the last requests"),
    tile("prefill", "Prefill engines", `${num(prefill.ready)} of ${num(prefill.total)}`,
      prefill.quota_s ? `${duration(prefill.quota_s)} of work ahead` : "no work ahead"),
    tile("decode", "Decode ranks", `${num(decode.ready)} of ${num(decode.total)}`,
      `imbalance ${decode.imbalance.requests.toFixed(2)} / ${decode.imbalance.kv_tokens.toFixed(2)}`,
      "largest over mean, of requests and of KV tokens"));
}

function spark(values) {
  if (values.length < 2) return el("span", { class: "hint" }, "…");
  const at = (v, i) => [(i / (values.length - 1)) * 100, 24.5 - v * 22];
  const points = values.map((v, i) => at(v, i).map((x) => x.toFixed(2)).join(","));
  return svg("svg", { class: "spark", viewBox: "0 0 100 26", preserveAspectRatio: "none",
    role: "img", "aria-label": `now ${percent(values.at(-1))}, at most ${percent(Math.max(...values))}` },
    svg("line", { class: "base", x1: 0, x2: 100, y1: 25, y2: 25 }),
    svg("polygon", { class: "area", points: `0,25 ${points.join(" ")} 100,25` }),
    svg("polyline", { class: "line", points: points.join(" ") }));
}

function engines(state, rows) {
  const { members } = state.prefill;
  const most = Math.max(1e-9, ...members.quota_s);
  return el("div", { class: members.id.length > 64 ? "engines small" : "engines" }, rows.map((row) => {
    const out = members.state[row] !== 0;
    const about = out ? state.states[members.state[row]]
      : `${plural(members.requests[row], "request")}, ${duration(members.quota_s[row])} of work`;
    return el("span", { class: `cell${out ? " out" : ""}${members.moving[row] ? " moving" : ""}`,
      title: `${members.id[row]}: ${about}`,
      vars: { "--v": members.quota_s[row] ? 15 + (85 * members.quota_s[row]) / most : 0 } });
  }));
}

function prefill(state) {
  const { total, left_off: left, members } = state.prefill;
  draw("prefill-note", total ? `${plural(state.prefill.requests, "request")} in prefill or before it` : "");
  if (!total) return draw("prefill-body",
    empty("No prefill member has announced itself.", startOne("prefill")));
  const all = members.id.map((_, row) => row);
  const span = state.history.age_s.length ? `last ${duration(Math.max(1, Math.round(state.history.age_s[0])))}` : "";
  const rows = state.classes.map((c, number) => {
    const own = all.filter((row) => members.class[row] === number);
    return el("tr", { "data-class": c.name }, el("th", { scope: "row" }, range(c)),
      el("td", {}, own.length ? engines(state, own)
        : el("span", { class: "hint" }, state.has_shares ? "borrows" : "shared")),
      el("td", { class: "num share" }, percent(c.share)),
      el("td", { class: "num backlog" }, num(c.backlog_tokens)),
      el("td", {}, spark(state.history.shares[number] || [])));
  });
  const free = all.filter((row) => members.class[row] < 0);
  if (free.length) rows.push(el("tr", {}, el("th", { scope: "row" }, "any length"),
    el("td", { colspan: 4 }, engines(state, free))));
  draw("prefill-body", el("table", { class: "fixed classes" },
    el("thead", {}, el("tr", {}, ["Prompt tokens", "Engines", "Share", "Backlog", `Share, ${span}`].map(
      (name, i) => el("th", { scope: "col", class: i === 2 || i === 3 ? "num" : null }, name)))),
    el("tbody", {}, rows)),
    left ? el("p", { class: "hint" }, `${num(left)} more engines are not listed`) : null);
}

const shareOf = (value, limit, most) => (limit > 0 ? value / limit : most ? value / most : 0);

function rankText(state, row) {
  const m = state.decode.members;
  const slots = m.slots[row] ? ` of ${num(m.slots[row])}` : "";
  const room = m.kv_capacity[row] ? ` of ${num(m.kv_capacity[row])}` : "";
  const doing = m.state[row] ? `: ${state.states[m.state[row]]}` : "";
  return `${m.id[row]}${doing} – ${num(m.requests[row])}${slots} requests, ` +
    `${num(m.tokens[row])}${room} KV tokens, ${brief(m.age_s[row])} old`;
}

function heat(state, kind, name, values, limits, text) {
  const m = state.decode.members;
  const n = values.length;
  const most = Math.max(0, ...values);
  const columns = n <= 4 ? 4 : n <= 64 ? 8 : n <= 256 ? 16 : n <= 1024 ? 32 : 48;
  const cells = values.map((value, row) => {
    const share = Math.min(1, shareOf(value, limits[row], most));
    const out = m.state[row] !== 0;
    return el("span", { class: `rank${out ? " out" : ""}${row === selected ? " on" : ""}`,
      "data-row": row, vars: { "--v": Math.round(share > 0 ? 10 + 90 * share : 0) } },
      n <= 64 ? text(value, share) : null);
  });
  const total = values.reduce((a, b) => a + b, 0);
  return el("div", { class: `map ${kind}` },
    el("h3", {}, name, el("span", { class: "scale" }, "0", el("i", {}), limits.some((x) => x > 0) ? "full" : num(most))),
    el("div", { class: "heat", tabindex: 0, role: "group", "aria-describedby": "readout",
      "aria-label": `${name} of ${n} ranks: ${num(total)} in all, at most ${num(most)}; arrow keys tell each`,
      vars: { "--columns": columns, "--gap": n <= 256 ? "3px" : "1.5px", "--round": n <= 64 ? "5px" : n <= 256 ? "3px" : "1.5px" } },
      cells));
}

function decode(state) {
  const { total, left_off: left, members: m, tokens, kv_capacity: room, requests, slots } = state.decode;
  if (!total) {
    draw("decode-note", "");
    return draw("decode-body", empty("No decode member has announced itself.", startOne("decode")));
  }
  draw("decode-note", `${num(requests)}${slots ? ` of ${num(slots)}` : ""} requests  ·  ` +
    `${num(tokens)}${room ? ` of ${num(room)}` : ""} KV tokens`);
  if (selected >= m.id.length) selected = -1;
  const fullest = m.requests.reduce((best, value, row) =>
    (value > m.requests[best] || (value === m.requests[best] && m.tokens[row] > m.tokens[best]) ? row : best), 0);
  draw("decode-body", el("div", { class: "maps" },
    heat(state, "requests", "Requests", m.requests, m.slots, (value) => num(value)),
    heat(state, "kv", m.kv_capacity.some((x) => x > 0) ? "KV tokens, %" : "KV tokens", m.tokens, m.kv_capacity, (_, share) => (share ? `${Math.max(1, Math.round(share * 100))}` : "0"))),
    el("p", { class: "readout", id: "readout", "aria-live": selected < 0 ? "off" : "polite" },
      selected < 0 ? `Fullest: ${rankText(state, fullest)}` : rankText(state, selected)),
    m.id.length <= FEW ? few(state) : null,
    left ? el("p", { class: "hint" }, `${num(left)} more ranks are not listed`) : null);
}

function few(state) {
  const m = state.decode.members;
  const of = (value, limit) => `${num(value)}${limit ? ` of ${num(limit)}` : ""}`;
  return el("table", { class: "fixed few" }, el("thead", {}, el("tr", {},
    el("th", { scope: "col", class: "w-request" }, "Rank"), el("th", { scope: "col", class: "num" }, "Requests"),
    el("th", { scope: "col", class: "num" }, "KV tokens"), el("th", { scope: "col", class: "num" }, "Heartbeat"))),
    el("tbody", {}, m.id.map((id, row) => el("tr", {}, el("th", { scope: "row", class: "clip", title: id }, id),
      el("td", { class: "num" }, of(m.requests[row], m.slots[row])),
      el("td", { class: "num" }, of(m.tokens[row], m.kv_capacity[row])),
      el("td", { class: "num" }, m.state[row] ? state.states[m.state[row]] : `${brief(m.age_s[row])} ago`)))));
}

const PHASE_NAMES = { lookup: "look-up", queue: "admission", route: "placement", load: "prefix load",
  wait: "engine queue", compute: "compute", publish: "publish, commit", fetch: "fetch" };

function bar(trip, phases, scale) {
  const x = (us) => `${((us / scale) * 100).toFixed(3)}%`;
  const told = trip.parts.map(([phase, , length]) =>
    `${PHASE_NAMES[phases[phase]]} ${duration(length / 1e6)}`).join(", ");
  return svg("svg", { role: "img", "aria-label": `first token ${duration(trip.first_token_us / 1e6)}; ${told}` },
    svg("title", {}, told),
    svg("rect", { class: "rail", x: 0, y: 6, width: "100%", height: 4, rx: 2 }),
    trip.parts.map(([phase, begin, length]) => svg("rect", { class: `ink-${phases[phase]}`,
      x: x(begin), y: 2, width: x(Math.max(length, scale / 400)), height: 12, rx: 1.5 })),
    trip.mark_us ? svg("line", { class: "first", x1: x(trip.mark_us), x2: x(trip.mark_us), y1: 0, y2: 16 }) : null);
}

function trips(state) {
  const { trips: list, phases } = state;
  draw("trips-legend", phases.map((phase) => el("li", {}, el("i", { class: `ink-${phase}` }), PHASE_NAMES[phase])),
    el("li", {}, el("i", { class: "mark" }), "first token"));
  if (!list.length) return draw("trips-body", empty("No request has ended yet.",
    el("span", {}, "Send one: ", el("code", {}, 'disagg generate "ROMEO:"'), ", or POST it to ",
      el("code", {}, "/v1/completions"), ".")));
  const end = (t) => Math.max(t.mark_us, ...t.parts.map(([, begin, length]) => begin + length));
  const scale = Math.max(1, ...list.map(end));
  const rows = list.map((t) => el("tr", { class: "trip", "data-request": t.request_id },
    el("td", { class: "clip", title: t.request_id }, t.request_id),
    el("td", { class: "track" }, bar(t, phases, scale),
      t.attempts > 1 ? el("div", { class: "tag warn clip" }, `attempt ${t.attempts}, from its own beginning`) : null),
    el("td", { class: "num" }, t.first_token_us ? duration(t.first_token_us / 1e6) : "–"),
    el("td", { class: "num narrow-off" }, bytes(t.fetched_bytes)),
    el("td", { class: "num narrow-off" }, `${num(t.prompt_tokens)} → ${num(t.generated_tokens)}`),
    el("td", { class: "num" }, duration(t.total_us / 1e6)),
    el("td", { class: `clip tag${t.outcome === "failed" ? " bad" : t.attempts > 1 ? " warn" : ""}` },
      t.reason || t.outcome, t.attempts > 1 ? `, attempt ${t.attempts}` : null)));
  const head = [["Request", "w-id"], [null, "ticks"], ["First token", "num w-num"],
    ["Fetched", "num w-num narrow-off"], ["Tokens", "num w-num narrow-off"], ["In all", "num w-num"],
    ["End", "w-end"]];
  const ticks = [0, 0.5, 1].map((f) => el("span", { class: f === 1 ? "tick last" : "tick",
    "aria-hidden": "true", vars: { "--v": f * 100 } }, f ? duration((scale * f) / 1e6) : "0"));
  draw("trips-body", el("table", { class: "fixed trips" },
    el("thead", {}, el("tr", {}, head.map(([name, style]) => el("th", { scope: "col", class: style },
      name ?? [el("span", { class: "sr" }, "Time since arrival"), el("div", { class: "scale-line" }, ticks)])))),
    el("tbody", {}, rows)));
}

function side(s) {
  if (!s.chosen) return [el("div", {}, "none"), el("div", { class: "tag" }, `${num(s.excluded)} excluded`)];
  const [term, margin] = s.margin;
  const why = s.candidates < 2 ? "the only one" : term ? `by ${figure(margin)} in ${term}` : `${num(s.ties)} alike, its turn`;
  return [el("div", { class: "clip" }, s.chosen),
    el("div", { class: "tag clip", title: `${plural(s.candidates, "candidate")}: ${why}` },
      s.candidates < 2 ? why : `of ${num(s.candidates)}, ${why}`)];
}

function decisions(state) {
  const body = $("decisions-body");
  if (body.querySelector(":focus-visible") || (body.matches(":hover") && body.querySelector("tr"))) return; // rows stay put under a hand
  const { decisions: list, classes } = state;
  if (!list.length) return draw("decisions-body", empty("Nothing was placed yet.",
    "Each request leaves a record of why it runs where it runs."));
  draw("decisions-body", el("table", { class: "fixed decisions" }, el("thead", {}, el("tr", {},
    el("th", { scope: "col", class: "w-request" }, "Request"), el("th", { scope: "col" }, "Prefill"),
    el("th", { scope: "col" }, "Decode"), el("th", { scope: "col", class: "num w-age" }, "Age"))),
    el("tbody", {}, list.map((d) => el("tr", { "data-request": d.request_id },
      el("td", {}, el("button", { class: "open", type: "button", "data-open": d.request_id, title: d.request_id }, d.request_id),
        el("div", { class: d.verdict === "place" && d.attempt < 2 ? "tag clip" : "tag warn clip" },
          [d.verdict === "place" ? null : d.verdict, d.attempt > 1 ? `attempt ${d.attempt}` : null,
            plural(d.num_tokens, "token"), d.cached_tokens ? `${num(d.cached_tokens)} stored` : null,
          ].filter(Boolean).join(", "))),
      el("td", { title: classes[d.length_class] ? range(classes[d.length_class]) : null }, side(d.prefill)),
      el("td", {}, side(d.decode)), el("td", { class: "num" }, brief(d.age_s)))))));
}

function store(state) {
  const s = state.store;
  $("store").classList.toggle("stale", !s.reachable);
  draw("store-note", !s.reachable ? "does not answer; what is shown was so before" : `answers; new hand-offs are ${s.refusal ? "refused" : "taken"}`);
  const share = (value, none) => (value === null ? none : percent(value));
  const fact = (name, value, title) => el("div", { title }, el("dt", {}, name), el("dd", {}, value));
  const last = plural(s.num_recent, "request");
  draw("store-body", el("dl", { class: "figures" },
    fact("Memory used", share(s.used_share, "–"), "of its limit; – where it has none"),
    fact("Hand-offs hold", share(s.handoff_share, "–"), "of its memory, not released yet"),
    fact("Found stored", share(s.hit_share, "–"), `of the prompt tokens of the last ${last}; published ${bytes(s.published_bytes)}`),
    fact("Read ahead", share(s.ahead_share, "–"), `before its ticket, of ${bytes(s.fetched_bytes)} that decode read for the last ${last}`)),
    s.refusal ? el("p", { class: "hint" }, s.refusal) : null);
}

function failures(state) {
  if (!state.failures.length) return draw("failures-body", el("p", { class: "empty" }, "None."));
  draw("failures-body", el("table", {}, el("tbody", {}, state.failures.map((f) => el("tr", {},
    el("th", { scope: "row" }, f.what), el("td", {}, f.cause || "–"), el("td", { class: "tag" }, f.where),
    el("td", { class: "num" }, num(f.count)))))));
}

function drawAll(state) {
  for (const part of [top, tiles, prefill, decode, trips, decisions, store, failures]) part(state);
  document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn || 0) + 1);
}

// --- a record ---------------------------------------------------------------------------------

async function openRecord(requestId) {
  draw("record-title", `Request ${requestId}`);
  draw("record-body", el("p", { class: "hint" }, "Deciding again, and searching for what would change the choice …"));
  $("record").showModal();
  try {
    const answer = await ask(`ui/decisions/${encodeURIComponent(requestId)}?what_if=1`, 60000);
    const { decisions: list } = await answer.json();
    draw("record-body", list.length ? list.map(attempt)
      : empty("No record is kept any more.", "Newer requests took its place; routing.records keeps more."));
  } catch (error) {
    draw("record-body", empty("The record cannot be read.", String(error.message || error)));
  }
}

function attempt(d) {
  const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
  return el("div", { class: "attempt" },
    el("dl", { class: "facts left" },
      fact("Attempt", `${d.attempt}, ${ago(d.age_s)}: ${d.verdict}, by ${d.policy} version ${d.policy_version}`),
      fact("Prompt", `${plural(d.num_tokens, "token")}, ${num(d.cached_tokens)} of them stored; length class ${classOf(d, d.length_class)}`),
      fact("Expected", `${duration(d.quota_s)} of prefill, an answer of ${plural(d.output_tokens, "token")}`),
      fact("Reason", d.reason),
      fact("Record", d.is_reproduced ? "gives the same choice again" : "does NOT give the same choice again")),
    candidates("Prefill", d.prefill, d), candidates("Decode", d.decode, d),
    d.has_changes ? [el("h3", {}, "What would change the choice"),
      d.changes.length ? el("ul", {}, d.changes.map((c) => el("li", {},
        `if ${{ quota_s: "predicted seconds" }[c.input] || c.input} of ${c.role} member ${c.member_id} were ` +
        `${figure(c.after)} instead of ${figure(c.before)}, ${c.chosen_id ? `${c.chosen_id} would be chosen` : "there would be no pair"}`)))
        : el("p", { class: "hint" }, "No change of a single input.")] : null);
}

const classOf = (d, number) => (number === null ? "any" : d.class_names[number] ?? String(number));

function candidates(name, s, d) {
  const hasClass = s.considered.some((m) => m.length_class !== null);
  const terms = s.considered.length ? s.considered[0].score.map((term) => term.name) : [];
  const rows = s.considered.slice(0, MAX_ROWS).map((m) => el("tr", { class: m.is_chosen ? "chosen" : null },
    el("th", { scope: "row" }, m.member_id), hasClass ? el("td", {}, classOf(d, m.length_class)) : null,
    el("td", { class: "num" }, duration(m.age_s)),
    el("td", { class: "num" }, num(m.outstanding_requests)), el("td", { class: "num" }, num(m.outstanding_tokens)),
    el("td", { class: "num" }, m.outstanding_quota_s ? duration(m.outstanding_quota_s) : "–"),
    m.score.map((term) => el("td", { class: "num" }, figure(term.value)))));
  const margin = s.runner_up_id && s.margin_name
    ? `${s.chosen_id} before ${s.runner_up_id} by ${figure(s.margin)} in ${s.margin_name}`
    : s.runner_up_id ? `${num(s.ties)} are equally good: it was the turn of ${s.chosen_id}` : "";
  return [el("h3", {}, `${name}: ${plural(s.considered.length, "candidate")}, ${num(s.excluded.length)} excluded`),
    rows.length ? el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {},
      ["Member", hasClass ? "Class" : null, "Age", "Requests", "Tokens", "Work", ...terms].map((head, i) =>
        (head === null ? null : el("th", { scope: "col", class: i > 1 ? "num" : null }, head))))), el("tbody", {}, rows))) : null,
    s.considered.length > MAX_ROWS ? el("p", { class: "hint" }, `and ${num(s.considered.length - MAX_ROWS)} more`) : null,
    margin ? el("p", { class: "hint" }, margin) : null,
    s.excluded.length ? el("ul", {}, s.excluded.slice(0, MAX_ROWS).map((x) =>
      el("li", {}, `${x.member_id}: ${x.cause}${x.detail ? ` (${x.detail})` : ""}`))) : null];
}

// --- asking the balancer ----------------------------------------------------------------------

async function ask(path, patienceMs) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", credentials: "same-origin",
    signal: AbortSignal.timeout(patienceMs) });
  if (answer.status === 401 || answer.status === 403) {
    const refused = new Error(answer.status === 401 ? "an API key is needed" : "this key does not open the page");
    refused.needsKey = true;
    throw refused;
  }
  if (!answer.ok) throw new Error(`the balancer answered ${answer.status}`);
  return answer;
}

function lost(error) {
  lostSince ||= new Date();
  $("banner").hidden = Boolean(error.needsKey);
  $("key").hidden = !error.needsKey;
  if (error.needsKey) draw("key-hint", key ? `${error.message}; try another.` : "It stays in this tab.");
  else draw("banner", `Not reachable since ${lostSince.toLocaleTimeString("en-GB")}. ` +
    `Asking again every second; ${latest ? "what is shown is from before" : "nothing was seen yet"}.`);
}

async function poll() {
  try {
    if (!document.hidden) {
      latest = await (await ask("ui/state.json", PATIENCE_MS)).json();
      lostSince = null;
      $("banner").hidden = $("key").hidden = true;
      drawAll(latest);
    }
  } catch (error) {
    lost(error);
  }
  setTimeout(poll, PERIOD_MS);
}

// --- hands ------------------------------------------------------------------------------------

function select(row) {
  selected = row;
  if (latest) decode(latest);
}
const body = $("decode-body");
body.addEventListener("pointerover", (event) => {
  const row = event.target.dataset.row;
  if (row !== undefined) select(Number(row));
});
body.addEventListener("pointerleave", () => select(-1));
body.addEventListener("focusout", () => select(-1));
body.addEventListener("keydown", (event) => {
  const grid = event.target.closest(".heat");
  const columns = grid ? Number(grid.style.getPropertyValue("--columns")) : 0;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
  if (!grid || step === undefined) return;
  event.preventDefault();
  select(selected < 0 ? 0 : Math.min(grid.children.length - 1, Math.max(0, selected + step)));
});
$("decisions-body").addEventListener("click", (event) => {
  const open = event.target.closest("[data-open]");
  if (open) openRecord(open.dataset.open);
});
$("record-close").addEventListener("click", () => $("record").close());
$("record").addEventListener("click", (event) => {
  if (event.target === $("record")) $("record").close();
});
$("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key-text").value.trim();
  $("key-text").value = "";
});
poll();
