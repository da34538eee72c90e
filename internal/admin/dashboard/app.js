// SPDX-License-Identifier: Apache-2.0

// The dashboard of the admin listener. It reads /v1/events, /metrics and /v1/settings,
// and asks nobody else. Everything shown is put in as text.

const $ = (id) => document.getElementById(id);
const rowsMost = 200; // of a table
const pointsMost = 600; // of a chart: ten minutes

function el(tag, content, attributes = {}) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  for (const part of [content].flat()) if (part !== undefined && part !== null) e.append(part);
  return e;
}

// table fills one, and leaves it alone where nothing has changed, so that a selection and
// a reader's place stay.
function table(id, heads, rows, none) {
  const t = $(id);
  const text = JSON.stringify([heads, rows]);
  if (t.dataset.shown === text) return;
  t.dataset.shown = text;
  t.tHead.replaceChildren(el("tr", heads.map((h) => el("th", h, { scope: "col" }))));
  const shown = rows.slice(0, rowsMost).map((row) => el("tr", row.map((cell) => {
    const { text, mark, more, href, wraps } = typeof cell === "object" && cell !== null ? cell : { text: cell };
    const main = href ? el("a", String(text), { href }) : el(more ? "strong" : "span", String(text ?? ""), mark ? { class: mark } : {});
    return el("td", more ? [main, el("ul", more.map((line) => el("li", line)), { class: "evidence" })] : main, more ? { class: "told" } : wraps ? { class: "wraps" } : {});
  })));
  if (rows.length > rowsMost) shown.push(el("tr", el("td", `and ${rows.length - rowsMost} more`, { colspan: heads.length })));
  if (rows.length === 0) shown.push(el("tr", el("td", none, { colspan: heads.length })));
  t.tBodies[0].replaceChildren(...shown);
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${i ? n.toFixed(1) : n} ${units[i]}`;
}

function seconds(s) {
  if (!isFinite(s)) return "–";
  return s < 1 ? `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms` : `${s.toFixed(2)} s`;
}

// duration reads Go's, such as 1m2.5s.
function duration(text) {
  const scale = { h: 3600, m: 60, s: 1, ms: 1e-3, "µs": 1e-6, us: 1e-6, ns: 1e-9 };
  let sum = 0;
  for (const [, n, unit] of (text ?? "").matchAll(/([\d.]+)(h|ms|m|µs|us|ns|s)/g)) sum += n * scale[unit];
  return sum;
}

// What a stream suffers from, and how one knows.
function suffers(s) {
  if (s.now?.fault) return { fault: s.now.fault, why: s.now.text, certainty: s.now.certainty, lines: s.now.evidence ?? [] };
  const other = suffersElse(s);
  return other && { why: other.why, lines: [other.evidence] };
}

function suffersElse(s) {
  if (s.slow) return { why: s.slow, evidence: s.evidence ?? "" };
  if (s.absent) return { why: "its app is away", evidence: "the stream goes on without it" };
  if (duration(s.lag_time) > 1) return { why: "the app reads slowly", evidence: `${bytes(s.lag_bytes)} wait for it since ${s.lag_time}` };
  const app = s.app_heartbeat?.verdict, upstream = s.upstream_heartbeat?.verdict;
  if (app && app !== "alive" && app !== "thinking") return { why: `the app's side is ${app.replace("_", " ")}`, evidence: "heartbeats to the app" };
  if (upstream && upstream !== "alive" && upstream !== "thinking") return { why: `the upstream's side is ${upstream.replace("_", " ")}`, evidence: "heartbeats to the upstream" };
  return null;
}

function showNumbers(status) {
  const memory = el("meter", "", { min: 0, max: status.memory.limit, value: status.memory.used, high: status.memory.limit * 0.9, "aria-label": "memory in use" });
  const all = [
    ["Running", String(status.running)], ["Up", status.uptime],
    ["Memory of streams", [memory, ` ${bytes(status.memory.used)} of ${bytes(status.memory.limit)}`]],
    ["Waiting for memory", String(status.memory.waiting)],
  ];
  $("numbers").replaceChildren(...all.map(([name, value]) => el("div", [el("dt", name), el("dd", value)])));
  $("version").textContent = `${status.version} · ${status.listen.join(", ")}`;
  $("ready").textContent = status.draining ? "draining" : status.ready ? "ready" : "not ready";
  $("ready").className = `badge ${status.ready ? "good" : "bad"}`;
}

function showFindings(status, streams) {
  const found = [];
  for (const s of streams) {
    const f = suffers(s);
    if (!f) continue;
    const name = f.fault ? `${faultName(f)}. ` : "";
    found.push({ text: `Stream ${s.id}${s.upstream ? ` to ${s.upstream}` : ""}: ${name}${f.why}`, lines: [...f.lines, ...(f.fault ? [advice[f.fault]] : [])] });
  }
  for (const u of status.upstreams) {
    for (const [origin, o] of Object.entries(u.origins ?? {})) {
      if (o.waiting) found.push(`${u.name}: ${o.waiting} requests wait for a connection to ${origin}`);
      const suspects = o.connections.filter((c) => c.suspect).length;
      if (suspects) found.push(`${u.name}: ${suspects} connections to ${origin} do not answer a probe`);
    }
    if (u.client_cert?.error) found.push(`${u.name}: its client certificate cannot be renewed: ${u.client_cert.error}`);
  }
  const resolvers = status.dns?.resolvers ?? [];
  if (resolvers.length && resolvers.every((r) => r.health === "dead")) found.push(`No resolver answers: ${resolvers[0].last_error || resolvers[0].name}`);
  if (status.memory.waiting) found.push(`${status.memory.waiting} requests wait for room in limits.memory`);
  if (status.draining) found.push("Warmwire drains: it takes no new requests");
  const list = found.length ? found.slice(0, 20).map((f) => {
    const { text, lines } = typeof f === "string" ? { text: f, lines: [] } : f;
    return el("li", [el("span", text, { class: "warn" }), ...(lines.length ? [el("ul", lines.map((l) => el("li", l)), { class: "evidence" })] : [])]);
  }) : [el("li", "Nothing stands out.", { class: "good" })];
  const text = JSON.stringify(found.map((f) => typeof f === "string" ? f : f.text.replace(/[\d.]+ ?(ms|s|KiB|MiB|bytes)\b/g, "")));
  $("finding-list").replaceChildren(...list);
  if ($("finding-say").dataset.shown !== text) { // else a screen reader would read it again each second
    $("finding-say").dataset.shown = text;
    $("finding-say").textContent = list.map((item) => item.firstChild.textContent).join(" ");
  }
}

function showStreams(streams) {
  const told = (s) => {
    const f = suffers(s);
    if (f) return { text: f.fault ? `${faultName(f)}. ${f.why}` : f.why, mark: "warn", more: f.lines };
    return s.now ? { text: s.now.text, mark: s.now.stage ? "" : "good", wraps: true } : "";
  };
  table("stream-table", ["Id", "Upstream", "How it goes now", "Age", "To the app", "App behind by", "Last byte", "Round trip", "Way in", "App speaks", "Status"],
    streams.map((s) => [s.id, s.upstream, told(s), s.age, bytes(s.bytes_out),
      s.lag_bytes ? `${bytes(s.lag_bytes)} ${s.lag_time ?? ""}` : "", s.now && !s.now.stage ? `${seconds(s.now.waits_ms / 1000)} ago` : "",
      s.now?.rtt_ms ? seconds(s.now.rtt_ms / 1000) : s.upstream_heartbeat?.rtt, s.mode.replace("_", " "), s.protocol, s.status]), "Nothing runs.");
}

function roundTrips(connections) {
  const all = connections.map((c) => c.rtt_ms).filter(Boolean);
  if (!all.length) return "";
  const [least, most] = [Math.min(...all), Math.max(...all)].map((ms) => seconds(ms / 1000));
  return least === most ? least : `${least} to ${most}`;
}

// Packets that came out of order or had to be sent again, of all that came since the
// connections began: a mark says that requests suffer from it now.
function lateOf(connections) {
  const sum = (name) => connections.reduce((n, c) => n + (c[name] ?? 0), 0);
  const late = sum("late_packets"), all = sum("packets");
  return late ? { text: `${late} of ${all}`, mark: late * 50 > all && sum("in_flight") ? "warn" : "" } : all ? "none" : "";
}

function verdicts(connections) {
  const all = [...new Set(connections.map((c) => c.verdict).filter(Boolean))];
  return all.length ? { text: all.join(", ").replaceAll("_", " "), mark: all.every((v) => v === "alive" || v === "thinking") ? "" : "bad" } : "";
}

function showUpstreams(upstreams) {
  const rows = [];
  for (const u of upstreams) {
    for (const [origin, o] of Object.entries(u.origins ?? {})) {
      const c = o.connections;
      rows.push([u.name, origin, c.length, [...new Set(c.map((x) => x.protocol))].join(", "), c.reduce((n, x) => n + x.in_flight, 0), o.waiting, o.kept_ready,
        roundTrips(c), lateOf(c), o.idle_limit ?? "", verdicts(c),
        c.some((x) => x.suspect) ? { text: "suspect", mark: "bad" } : c.some((x) => x.leaving) ? "some leave" : c.length ? { text: "warm", mark: "good" } : "cold"]);
    }
  }
  table("upstream-table", ["Upstream", "Origin", "Connections", "Protocols", "Requests", "Waiting", "Kept ready", "Round trip", "Packets late or lost", "Server's idle limit", "Heartbeat says", "State"], rows,
    "No upstream has been used yet, and none is kept ready.");
}

function showTree(value) {
  if (Array.isArray(value) && value.every((v) => v !== null && typeof v === "object")) {
    if (value.length === 0) return el("span", "none");
    const names = [...new Set(value.flatMap((v) => Object.keys(v)))];
    const cell = (v) => {
      if (Array.isArray(v) && v.every((x) => typeof x !== "object")) return v.length ? v.join(", ") : "none";
      if (typeof v === "boolean") return v ? "yes" : "no";
      return v === undefined ? "" : typeof v === "object" ? JSON.stringify(v) : String(v);
    };
    const field = (v, name) => el("td", el("span", cell(v[name]), name === "health" ? { class: { alive: "good", dead: "bad", late: "warn" }[v[name]] ?? "" } : {}), name.endsWith("error") ? { class: "wraps" } : {});
    return el("div", el("table", [el("thead", el("tr", names.map((n) => el("th", n.replaceAll("_", " "), { scope: "col" })))),
      el("tbody", value.slice(0, rowsMost).map((v) => el("tr", names.map((n) => field(v, n)))))]), { class: "wide" });
  }
  if (value === null || typeof value !== "object") return el("code", String(value));
  return el("ul", Object.entries(value).map(([k, v]) => el("li", [`${k}: `, showTree(v)])), { class: "tree" });
}

function showNames(status) {
  const value = { dns: status.dns, tls: status.tls, ...(status.intercept ? { intercept: status.intercept } : {}) };
  const text = JSON.stringify(value);
  if ($("name-tree").dataset.shown === text) return;
  $("name-tree").dataset.shown = text;
  $("name-tree").replaceChildren(showTree(value));
}

// The metrics page, as far as it is needed here.
function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const m = /^(warmwire_\w+)(?:\{(.*)\})? ([^ ]+)/.exec(line);
    if (!m) continue;
    const labels = {};
    for (const [, name, value] of (m[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    samples.push({ name: m[1], labels, value: Number(m[3]) });
  }
  return samples;
}

// A histogram over all its labels: [upper bound, how many at most that], ascending.
function histogram(samples, name) {
  const sums = new Map();
  for (const s of samples) {
    if (s.name !== `${name}_bucket`) continue;
    const le = s.labels.le === "+Inf" ? Infinity : Number(s.labels.le);
    sums.set(le, (sums.get(le) ?? 0) + s.value);
  }
  return [...sums].sort((a, b) => a[0] - b[0]);
}

// within says below which bound a share of a histogram lies; a bucket tells no more.
function within(h, q) {
  const total = h.at(-1)?.[1] ?? 0;
  const i = h.findIndex(([, n]) => n >= q * total);
  return isFinite(h[i][0]) ? `within ${seconds(h[i][0])}` : `in more than ${seconds(h[i - 1]?.[0] ?? 0)}`;
}

const charts = {};

function color(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888"; }

function draw(id, options, data) {
  const box = $(id);
  const width = Math.max(box.clientWidth, 200);
  if (!charts[id]) {
    charts[id] = new uPlot({ width, height: 180, legend: { show: false }, cursor: { show: false }, ...options }, data, box);
    return;
  }
  if (charts[id].width !== width) charts[id].setSize({ width, height: 180 });
  charts[id].setData(data);
}

function axes(x, y) {
  const ink = getComputedStyle(document.body).color;
  const line = { stroke: ink, grid: { stroke: color("--soft") }, ticks: { stroke: color("--soft") } };
  return [{ ...line, ...x }, { ...line, size: 60, ...y }];
}

function drawHistogram(id, say, h) {
  const total = h.at(-1)?.[1] ?? 0;
  $(say).textContent = total ? `${total} in all; half ${within(h, 0.5)}, 9 of 10 ${within(h, 0.9)}, 99 of 100 ${within(h, 0.99)}` : "None yet.";
  if (!total) return;
  const bounds = h.map(([le]) => le), counts = h.map(([, n], i) => n - (i ? h[i - 1][1] : 0));
  const first = Math.max(counts.findIndex((n) => n > 0) - 1, 0), last = counts.findLastIndex((n) => n > 0);
  const names = bounds.slice(first, last + 1).map((le) => isFinite(le) ? `≤ ${seconds(le)}` : "more");
  const data = [names.map((_, i) => i), counts.slice(first, last + 1)];
  const every = Math.ceil(names.length / Math.max(1, Math.floor(($(id).clientWidth - 60) / 75))); // names have room
  charts[id]?.destroy();
  delete charts[id];
  draw(id, {
    scales: { x: { time: false, range: [-0.5, names.length - 0.5] }, y: { range: (_, __, most) => [0, most || 1] } },
    axes: axes({ values: (_, at) => at.map((i) => i % every ? "" : names[i] ?? ""), splits: names.map((_, i) => i), space: 70 }, { incrs: [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5, 6, 7].map((e) => n * 10 ** e)).sort((a, b) => a - b) }),
    series: [{}, { fill: color("--accent"), stroke: color("--accent"), paths: uPlot.paths.bars({ size: [0.8, 60] }), points: { show: false } }],
  }, data);
}

const history = { at: [], rate: [] };
let lastCount = null;

function drawRequests(samples, now) {
  const count = samples.filter((s) => s.name === "warmwire_requests_total").reduce((n, s) => n + s.value, 0);
  if (lastCount && now > lastCount.now && count >= lastCount.count) {
    history.at.push(now);
    history.rate.push((count - lastCount.count) / (now - lastCount.now));
    for (const list of Object.values(history)) if (list.length > pointsMost) list.shift();
  }
  lastCount = { now, count };
  $("say-requests").textContent = `${count} finished since the start${history.rate.length ? `, ${history.rate.at(-1).toFixed(1)} a second now` : ""}`;
  if (history.at.length > 1) {
    draw("chart-requests", {
      scales: { y: { range: (_, __, most) => [0, most || 1] } }, axes: axes({}, {}),
      series: [{}, { stroke: color("--accent"), width: 2, points: { show: false } }],
    }, [history.at, history.rate]);
  }
}

function showInterruptions(samples) {
  const rows = [];
  const add = (name, kind, labels) => {
    for (const s of samples) if (s.name === name && s.value > 0) rows.push([s.labels.upstream, kind, labels.map((l) => s.labels[l]).join(", ").replaceAll("_", " "), s.value]);
  };
  add("warmwire_interruptions_total", "interruption", ["cause"]);
  add("warmwire_heartbeat_verdicts_total", "verdict", ["verdict"]);
  add("warmwire_retries_total", "another attempt", ["reason", "decision"]);
  add("warmwire_buffer_pauses_total", "the upstream waited for a slow app", []);
  rows.sort((a, b) => b[3] - a[3]);
  table("interruption-table", ["Upstream", "What", "Cause", "How often"], rows, "None.");
}

// What a request suffers from, for people.
const faults = {
  slow_provider: "Slow provider", network: "Lossy or late network", slow_reader: "Slow reader (your app)", buffering_hop: "Buffering hop in between",
};

// What to do about it.
const advice = {
  slow_provider: "What to do: nothing here can make it faster. See the provider's status page, or try another model or endpoint.",
  network: "What to do: look at the network between this machine and the provider, such as Wi-Fi, a VPN or the line.",
  slow_reader: "What to do: look at the app that asked. It is busy, or stops between reads.",
  buffering_hop: "What to do: look for a proxy, gateway or CDN in between and switch its response buffering off (nginx: proxy_buffering off), or compression.",
};

function faultName(f) { return `${faults[f.fault] ?? f.fault}${f.certainty === "likely" ? " (likely)" : ""}`; }

async function readRequests() {
  const answer = await fetch(`/v1/requests/${$("request-list").value}`);
  if (!answer.ok) return;
  const rows = (await answer.json()).map((r) => {
    const stages = Object.entries(r.stages_ms).sort((a, b) => b[1] - a[1]).slice(0, 3).filter(([, ms]) => ms >= 0.01 * r.duration_ms);
    // An app that has read enough may leave: that is no fault.
    const end = r.outcome === "ok" ? "ok" : r.cause === "app_left" ? "the app left" : { text: `${r.outcome.replace("_", " by ")}${r.cause ? `: ${r.cause.replaceAll("_", " ")}` : ""}`, mark: "warn" };
    return [r.id, r.upstream, end, r.fault ? { text: `${faultName({ fault: r.fault, certainty: r.finding?.certainty })}. ${r.finding?.text ?? ""}`, mark: "warn", more: r.finding?.evidence ?? [] }
      : { text: "healthy", mark: "good" }, seconds(r.duration_ms / 1000), r.ttft_ms ? seconds(r.ttft_ms / 1000) : "",
      { text: stages.map(([name, ms]) => `${name.replace("_", " ")} ${seconds(ms / 1000)} (${Math.round(100 * ms / r.duration_ms)} %)`).join(", "), wraps: true }, r.connection ? { text: r.connection, href: `/v1/flights?id=${r.connection}` } : ""];
  });
  table("request-table", ["Id", "Upstream", "Ended", "Suffered from", "Took", "First token", "Most of it", "Connection"], rows, "None.");
}

async function readMetrics() {
  if (document.hidden) return;
  readRequests().catch(() => { /* the badge says that Warmwire is away */ });
  try {
    const answer = await fetch("/metrics", { headers: { Accept: "text/plain" } });
    if (!answer.ok) return;
    const samples = parseMetrics(await answer.text());
    drawRequests(samples, Date.now() / 1000);
    drawHistogram("chart-ttft", "say-ttft", histogram(samples, "warmwire_time_to_first_token_seconds"));
    drawHistogram("chart-chunk", "say-chunk", histogram(samples, "warmwire_time_per_output_chunk_seconds"));
    drawHistogram("chart-rtt", "say-rtt", histogram(samples, "warmwire_heartbeat_rtt_seconds"));
    showInterruptions(samples);
  } catch { /* the badge says that Warmwire is away */ }
}

function follow() {
  const events = new EventSource("/v1/events");
  events.addEventListener("open", () => { $("live").textContent = "live"; $("live").className = "badge good"; });
  events.addEventListener("error", () => { $("live").textContent = "Warmwire does not answer"; $("live").className = "badge bad"; });
  events.addEventListener("state", (e) => {
    const { status, streams } = JSON.parse(e.data);
    showNumbers(status);
    showFindings(status, streams);
    showStreams(streams);
    showUpstreams(status.upstreams);
    showNames(status);
  });
}

// Settings.

let settings = null;
const undos = []; // [{key: value before}], the latest last

function scopeOf(path) {
  const m = /^upstreams\.([^.]+)\.(.*)$/.exec(path);
  return m ? { scope: m[1], key: m[2] } : { scope: "", key: path };
}

function fill(select, options, keep) {
  const now = keep ? select.value : "";
  select.replaceChildren(...options.map(([value, text]) => el("option", text, { value })));
  if (options.some(([value]) => value === now)) select.value = now;
}

function path() {
  const scope = $("setting-scope").value;
  return (scope ? `upstreams.${scope}.` : "") + $("setting-key").value;
}

function showKeys() {
  const scope = $("setting-scope").value ? "upstream" : "top";
  fill($("setting-key"), settings.settings.filter((s) => s.scope === scope).map((s) => [s.key, s.key]), true);
  showSetting();
}

function showSetting() {
  const s = settings.settings.find((s) => s.key === $("setting-key").value && s.scope === ($("setting-scope").value ? "upstream" : "top"));
  if (!s) return;
  const now = settings.values[path()] ?? s.default;
  $("setting-value").value = now;
  $("setting-options").replaceChildren(...(s.options ?? (s.kind === "boolean" ? ["true", "false"] : [])).map((o) => el("option", "", { value: o })));
  $("setting-doc").textContent = `${s.doc} Now ${now || "empty"}${path() in settings.tuned ? ", changed since the start" : ""}; default ${s.default || "empty"}.`;
  $("apply").disabled = true;
  $("setting-result").replaceChildren();
}

async function readSettings() {
  const answer = await fetch("/v1/settings");
  if (!answer.ok) {
    $("setting-form").replaceChildren(el("p", (await answer.json()).error.message));
    return;
  }
  settings = await answer.json();
  const names = [...new Set(Object.keys(settings.values).map((k) => scopeOf(k).scope).filter(Boolean))].sort();
  fill($("setting-scope"), [["", "all of Warmwire"], ...names.map((n) => [n, n])], true);
  showKeys();
}

async function change(where, changes) {
  const answer = await fetch(`${where}?${new URLSearchParams(changes)}`, {
    method: "POST", body: "{}", headers: { "Content-Type": "application/json", Authorization: `Bearer ${$("setting-token").value.trim()}` },
  });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error.message);
  return body;
}

function say(...lines) { $("setting-result").replaceChildren(...lines.map((l) => el("p", l))); }

function fail(err) { $("setting-result").replaceChildren(el("p", err.message, { class: "bad" })); $("apply").disabled = true; }

async function preview(event) {
  event.preventDefault();
  try {
    const p = await change("/v1/tune/preview", { [path()]: $("setting-value").value });
    if (p.changes.length === 0) return say("Nothing would change.");
    const touched = p.running === 1 ? "1 that runs is touched" : `${p.running} that run are touched`;
    say(...p.changes.map((c) => `${c.key}: ${c.from || "empty"} → ${c.to || "empty"}`),
      p.reopens.length ? `Connections to ${p.reopens.join(", ")} are opened anew; what runs ends on the old ones.` : "Connections stay.", `${touched}; none is cut.`);
    $("apply").disabled = false;
  } catch (err) { fail(err); }
}

async function apply() {
  const key = path(), before = settings.tuned[key] ?? "";
  try {
    await change("/v1/tune", { [key]: $("setting-value").value });
    undos.push({ [key]: before });
    await readSettings();
    say(`${key} is ${settings.values[key]} now.`);
    $("undo").disabled = false;
  } catch (err) { fail(err); }
}

async function undo() {
  const last = undos.at(-1);
  if (!last) return;
  try {
    await change("/v1/tune", last);
    undos.pop();
    await readSettings();
    const key = Object.keys(last)[0];
    say(`${key} is ${settings.values[key]} again.`);
    $("undo").disabled = undos.length === 0;
  } catch (err) { fail(err); }
}

$("setting-scope").addEventListener("change", showKeys);
$("setting-key").addEventListener("change", showSetting);
$("setting-value").addEventListener("input", () => { $("apply").disabled = true; });
$("setting-form").addEventListener("submit", preview);
$("apply").addEventListener("click", apply);
$("undo").addEventListener("click", undo);

$("request-list").addEventListener("change", readRequests);

follow();
readMetrics();
setInterval(readMetrics, 5000);
readSettings();
