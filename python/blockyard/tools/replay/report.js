// This makes everything on the page from the JSON in it; text is inserted as text, never as markup.
"use strict";

const result = JSON.parse(document.getElementById("result").textContent);
const runs = result.runs;
const main = runs[0];
const COLOURS = {
  device: "#1f5fbf", pinned: "#0b3474", promised: "#8fb339", lost: "#d1495b", host: "#e08a1e", computed: "#d3d9e1",
  down: "#7a6bc4", up: "#18927d", soft: "#5d6878", line: "#e6eaef",
};
const OF_RUNS = ["#1f5fbf", "#d1495b", "#18927d", "#e08a1e", "#7a6bc4", "#4c5a6b", "#8fb339", "#c05bb0", "#3aa7c9"];
const GIB = 2 ** 30;

// ---- words and numbers ----

const digits = (value) => (value >= 100 || value === 0 ? 0 : value >= 10 ? 1 : 2);
const count = (value) => value.toLocaleString("en-US");
const percent = (value) => `${(100 * value).toFixed(1)} %`;

function duration(seconds) {
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")} min`;
  if (seconds >= 60) return `${Math.floor(seconds / 60)} min ${String(Math.floor(seconds) % 60).padStart(2, "0")} s`;
  for (const [unit, per] of [["s", 1], ["ms", 1e3]]) {
    if (seconds * per >= 1) return `${(seconds * per).toFixed(digits(seconds * per))} ${unit}`;
  }
  return seconds ? `${(seconds * 1e6).toFixed(digits(seconds * 1e6))} µs` : "0 s";
}

function size(bytes) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (bytes < 1024) return `${bytes.toFixed(unit === "B" ? 0 : digits(bytes))} ${unit}`;
    bytes /= 1024;
  }
  return `${bytes.toFixed(digits(bytes))} TiB`;
}

const blocks = (number) => size(number * result.block_bytes);
const ms = (value) => duration(value / 1e3);
const names = (run) => [
  run.policy,
  run.write_policy,
  run.host_copies && `copies ${run.host_copies}`,
  ...(run.hints || "").split(","),
  run.owner === "engine" && "engine's device",
  run.headroom,
  run.preempt_mode,
].filter(Boolean);
const named = (run) => names(run).join(", ");

// ---- elements ----

function add(parent, tag, text, attributes) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  parent.append(element);
  return element;
}

const at = (id) => document.getElementById(id);

function head() {
  at("trace").textContent = result.trace;
  const facts = [`${count(result.trace_requests)} requests`, `${result.preset}`];
  if (main.role && main.role !== "mixed") facts.push(`${main.role} only`);
  if (result.figures.ranks > 1) facts.push(`${result.figures.ranks} ranks`);
  facts.push(`blocks of ${result.block_size} tokens, ${size(result.block_bytes)}`);
  facts.push(`device ${blocks(main.device_blocks)}`, main.host_blocks ? `host ${blocks(main.host_blocks)}` : "no host tier");
  if (main.third) facts.push(`third tier ${blocks(main.third.blocks)}`);
  at("facts").textContent = facts.join(" · ");
  const verdict = (text, kind) => add(at("verdicts"), "span", text, { class: kind });
  const cut = runs.filter((run) => !run.complete);
  if (cut.length) verdict(`interrupted after ${count(cut[0].requests)} of ${count(result.trace_requests)} requests`, "bad");
  for (const run of runs.filter((run) => run.audit !== "ok" && run.audit !== "none")) verdict(`audit: ${run.audit}`, "bad");
  const audits = runs.map((run) => run.audit).filter((audit) => audit !== "none");
  if (!audits.length) verdict("no audit: the optimum is simulated", "plain");
  else if (audits.every((audit) => audit === "ok")) verdict("audit ok", "good");
  const checked = runs.filter((run) => run.verified);
  const sum = (name) => checked.reduce((total, run) => total + run.verified[name], 0);
  if (sum("wrong_answers")) verdict(`${count(sum("wrong_answers"))} WRONG answers`, "bad");
  if (sum("wrong")) verdict(`${count(sum("wrong"))} blocks with WRONG bytes`, "bad");
  else if (checked.length) verdict(`real bytes: ${count(sum("checked"))} blocks checked, none wrong`, "good");
  else verdict("without real bytes", "plain");
  const refused = Math.max(...runs.map((run) => run.refused));
  if (refused) verdict(`${count(refused)} requests too large, refused`, "plain");
}

function tile(name, how, key, value, text, more) {
  const box = add(at("tiles"), "div", undefined, { class: "tile" });
  const heading = add(box, "h3", name);
  add(heading, "em", how);
  add(box, "div", text, { class: "value", "data-key": key, "data-value": value });
  add(box, "div", more, { class: "more" });
}

function tiles(run) {
  at("tiles").replaceChildren();
  const tier = run.hit_ratio_by_tier;
  tile("Found in the cache", "counted", "hit_ratio", run.hit_ratio, percent(run.hit_ratio), `device ${percent(tier.device)} · host ${percent(tier.host)}`);
  if (run.ttft_ms) {
    tile("Time to first token", "modelled", "ttft_ms.p50", run.ttft_ms.p50, ms(run.ttft_ms.p50), `median; 99 % within ${ms(run.ttft_ms.p99)}`);
    tile("Between tokens", "modelled", "itl_ms.p50", run.itl_ms.p50, ms(run.itl_ms.p50), `median; 99 % within ${ms(run.itl_ms.p99)}`);
    tile("Output", "modelled", "tokens_per_second", run.tokens_per_second, `${count(Math.round(run.tokens_per_second))} tokens/s`, `${count(run.requests)} requests in ${duration(run.engine_seconds)}`);
  }
  const moved = run.moved;
  if (run.host_blocks) tile("Copied up to the device", "counted", "moved.bytes_up", moved.bytes_up, size(moved.bytes_up), `${count(moved.blocks_up)} blocks; down ${size(moved.bytes_down)}`);
  if (run.waits) {
    tile("Wait in the queue", "modelled", "waits.queue_ms.p99", run.waits.queue_ms.p99, ms(run.waits.queue_ms.p99), `99 % within; median ${ms(run.waits.queue_ms.p50)}`);
    const host = run.host_blocks ? `host ${percent(run.peak.host / run.host_blocks)} full` : "no host tier";
    tile("In use by requests, peak", "counted", "peak.pinned", run.peak.pinned, percent(run.peak.pinned / run.device_blocks), `of the device · ${host}`);
  }
  const gone = run.preempted;
  if (gone) tile("Preempted", "counted", "preempted.count", gone.count, count(gone.count), gone.count ? `${count(gone.lost)} tokens lost, ${count(gone.recomputed)} computed again` : "no work lost");
  const cost = run.bookkeeping;
  if (cost) tile("Bookkeeping, CPU time of a step", "measured", "bookkeeping.us_per_step.p50", cost.us_per_step.p50, duration(cost.us_per_step.p50 / 1e6), `median; ${(100 * cost.share).toFixed(2)} % of the engine's time`);
  else tile("Duration of this run", "measured", "wall_seconds", run.wall_seconds, duration(run.wall_seconds), `${count(run.requests)} requests`);
}

// ---- plots ----

// Legends are text of the page: they wrap, and never cover a plot.
function entry(legend, name, colour) {
  add(legend, "span", name).style.setProperty("--colour", colour);
}

// In print a plot is as wide as its column, since style sheets scale elements that have a view box.
function scalable(element) {
  for (const svg of element.querySelectorAll(".main-svg")) {
    svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`);
  }
}

function plot(id, traces, { x, y, barmode, bargap = 0, room = 14, hovermode = "x unified" }) {
  const axis = {
    gridcolor: COLOURS.line, zeroline: false, linecolor: COLOURS.line, ticks: "outside", ticklen: 4,
    tickcolor: COLOURS.line, automargin: true, fixedrange: false,
  };
  const layout = {
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: COLOURS.soft },
    margin: { l: 52, r: room, t: 8, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    hovermode, hoverlabel: { bgcolor: "#fff", bordercolor: COLOURS.line, align: "left" },
    showlegend: false,
    barmode, bargap, xaxis: { ...axis, ...x }, yaxis: { ...axis, rangemode: "tozero", ...y },
  };
  const entries = at(id).parentElement.querySelector(".legend");
  if (entries) {
    entries.replaceChildren();
    for (const trace of traces) entry(entries, trace.name, (trace.marker || trace.line).color);
  }
  const element = at(id);
  const fresh = !element.classList.contains("js-plotly-plot");
  Plotly.react(element, traces, layout, { displayModeBar: false, responsive: true });
  if (fresh) element.on("plotly_afterplot", () => scalable(element));
  scalable(element);
}

// Merges neighbouring intervals, so that a bar is at least a few pixels wide; returns sums and peaks.
function binned(series, bars) {
  const width = series.seconds.length > 1 ? series.seconds[1] - series.seconds[0] : series.seconds[0];
  const each = Math.max(1, Math.ceil(series.seconds.length / bars));
  const sum = (name) => {
    const sums = [];
    series[name].forEach((value, i) => { sums[Math.floor(i / each)] = (sums[Math.floor(i / each)] || 0) + value; });
    return sums;
  };
  const most = (name) => {
    const greatest = [];
    series[name].forEach((value, i) => { greatest[Math.floor(i / each)] = Math.max(greatest[Math.floor(i / each)] || 0, value); });
    return greatest;
  };
  const bins = Math.ceil(series.seconds.length / each);
  const start = series.seconds[0] - width;
  const lengths = Array.from({ length: bins }, (_, i) => width * Math.min(each, series.seconds.length - i * each));
  const middles = lengths.map((length, i) => start + i * each * width + length / 2);
  return { sum, most, middles, lengths };
}

// Uses minutes or hours where there would be many seconds.
function timeAxis(series) {
  const last = series.seconds[series.seconds.length - 1];
  const first = series.seconds[0] - (series.seconds.length > 1 ? series.seconds[1] - series.seconds[0] : series.seconds[0]);
  const [per, unit] = last >= 7200 ? [3600, "hours"] : last >= 300 ? [60, "minutes"] : [1, "seconds"];
  return { scale: (seconds) => seconds / per, axis: { range: [first / per, last / per], title: { text: `modelled time in ${unit}`, standoff: 8, font: { size: 12 } } } };
}

function overTime(run) {
  const series = run.series;
  if (!series) return;
  const { sum, middles, lengths } = binned(series, 72);
  const fine = binned(series, 150);
  const time = timeAxis(series);
  const x = middles.map(time.scale);
  const width = lengths.map(time.scale);
  const all = sum("missed").map((missed, i) => missed + sum("device_hit")[i] + sum("host_hit")[i]);
  const share = (name, key, colour) => ({
    type: "bar", name, x, width, marker: { color: colour, line: { width: 0 } },
    y: sum(key).map((tokens, i) => (all[i] ? (100 * tokens) / all[i] : null)),
    customdata: sum(key).map(count), hovertemplate: "%{y:.1f} % · %{customdata} tokens",
  });
  const percents = { range: [0, 100], ticksuffix: " %" };
  plot("hits", [
    share("device", "device_hit", COLOURS.device), share("host", "host_hit", COLOURS.host), share(run.role === "decode" ? "arrived computed" : "computed", "missed", COLOURS.computed),
  ], { x: time.axis, y: percents, barmode: "stack" });

  const moments = fine.middles.map(time.scale);
  const level = (name, key, of, style) => ({
    type: "scatter", mode: "lines", name, x: moments, y: fine.most(key).map((used) => (100 * used) / of),
    customdata: fine.most(key).map(blocks), hovertemplate: "%{y:.1f} % · %{customdata}", ...style,
  });
  const levels = [
    level("device", "device_used", run.device_blocks, { line: { color: COLOURS.device, width: 2 } }),
    level("device, in use by requests", "device_pinned", run.device_blocks, { line: { color: COLOURS.pinned, width: 1 }, fill: "tozeroy", fillcolor: "rgba(31,95,191,.18)" }),
  ];
  if (Math.max(...series.device_promised)) levels.push(level("device, promised", "device_promised", run.device_blocks, { line: { color: COLOURS.promised, width: 1.5 } }));
  if (run.host_blocks) levels.push(level("host", "host_used", run.host_blocks, { line: { color: COLOURS.host, width: 2 } }));
  at("occupancy-note").textContent = `peak of each interval, of ${blocks(run.device_blocks)} on the device` + (run.host_blocks ? ` and ${blocks(run.host_blocks)} on the host` : "");
  plot("occupancy", levels, { x: time.axis, y: { ...percents, range: [0, 104] } });

  const link = result.figures.ranks * result.figures.link_bytes_per_second;
  at("moved-note").textContent = `modelled rate; the link carries ${size(link)}/s each way`;
  const rates = ["bytes_down", "bytes_up"].map((key) => sum(key).map((bytes, i) => bytes / lengths[i]));
  const [per, unit] = Math.max(...rates.flat()) >= GIB / 2 ? [GIB, "GiB/s"] : [2 ** 20, "MiB/s"];
  const flow = (name, key, rate, colour, fill) => ({
    type: "scatter", mode: "lines", name, x, y: rate.map((value) => value / per), line: { color: colour, width: 1.5, shape: "hvh" },
    fill: "tozeroy", fillcolor: fill, customdata: sum(key).map(size), hovertemplate: `%{y:.2f} ${unit} · %{customdata}`,
  });
  plot("moved", [
    flow("device to host", "bytes_down", rates[0], COLOURS.down, "rgba(122,107,196,.22)"), flow("host to device", "bytes_up", rates[1], COLOURS.up, "rgba(24,146,125,.22)"),
  ], { x: time.axis, y: { title: { text: unit, standoff: 6, font: { size: 12 } } } });

  const line = (name, key, colour) => ({
    type: "scatter", mode: "lines", name, x: moments, y: fine.most(key), line: { color: colour, width: 1.5 }, hovertemplate: "%{y:,}",
  });
  const crowd = Math.max(...series.running, ...series.waiting, ...sum("preempted"));
  const preemptions = {
    type: "bar", name: "preempted", x, y: sum("preempted"), width, marker: { color: COLOURS.lost, line: { width: 0 } }, hovertemplate: "%{y:,}",
  };
  const crowds = [line("running", "running", COLOURS.device), line("waiting", "waiting", COLOURS.host)];
  if (run.preempted.count) crowds.unshift(preemptions);
  plot("requests", crowds, { x: time.axis, y: { tickformat: ",d", dtick: crowd < 6 ? 1 : undefined } });
}

const SHARES = [0, 25, 50, 75, 90, 99];

// Returns ticks for durations from min to max ms: 1-2-5 steps where there are only a decade or two.
function durationTicks(min, max) {
  const steps = max / min > 300 ? [1] : max / min > 30 ? [1, 3] : [1, 2, 5];
  const values = [];
  for (let power = Math.floor(Math.log10(min)); power <= Math.ceil(Math.log10(max)); power++) {
    for (const step of steps) values.push(step * 10 ** power);
  }
  return values.filter((value) => value >= min && value <= max);
}

const shortly = (milliseconds) => {
  for (const [unit, per] of [["h", 3.6e6], ["min", 6e4], ["s", 1e3], ["ms", 1]]) {
    if (milliseconds >= per && (per < 6e4 || milliseconds >= 2 * per)) return `${+(milliseconds / per).toPrecision(2)} ${unit}`;
  }
  return `${+(milliseconds * 1e3).toPrecision(2)} µs`;
};

function distribution(id, of, unitless) {
  const spreads = runs.map(of);
  if (!spreads[0]) return;
  const positive = spreads.flatMap((spread) => spread.quantiles).filter((value) => value > 0);
  // A logarithmic axis has no zero: shorter durations are drawn at `floor`.
  const top = Math.max(1, ...positive) * 1.15;
  const floor = Math.max(Math.min(...positive, top) / 1.15, top / 1e5, unitless ? 1 : 0);
  const ticks = durationTicks(floor, top);
  plot(id, spreads.map((spread, i) => ({
    type: "scatter", mode: "lines", name: named(runs[i]), x: spread.quantiles.map((value) => Math.max(value, floor)),
    y: spread.quantiles.map((_, q) => q), line: { color: OF_RUNS[i % OF_RUNS.length], width: 2 },
    customdata: spread.quantiles.map(ms), hovertemplate: "%{y} % within %{customdata}",
  })), {
    x: { type: "log", range: [Math.log10(floor), Math.log10(top)], tickvals: ticks, ticktext: ticks.map(shortly), unifiedhovertitle: { text: " " } },
    y: { range: [0, 101], tickvals: SHARES, ticktext: SHARES.map((share) => `${share} %`) },
  });
}

function compare() {
  at("hint").hidden = runs.length > 1;
  at("hint").textContent = "One run only: repeat --policy, --write-policy, --preempt-mode or --headroom to compare runs side by side.";
  at("compare").querySelector(".grid").hidden = runs.length < 2;
  const twoTiers = runs.some((run) => run.host_blocks);
  at("by-moved").parentElement.hidden = !twoTiers;
  if (runs.length > 1) {
    at("compare").querySelector("h2").textContent = "Policies side by side";
    const names = runs.map(named);
    // The first run stands at the top.
    const y = { autorange: "reversed", type: "category", ticks: "", rangemode: "normal" };
    const bar = (name, colour, x, text, position) => ({
      type: "bar", orientation: "h", name, y: names, x, marker: { color: colour }, text, textposition: position,
      cliponaxis: false, constraintext: "none", hovertemplate: text ? "%{text}" : "%{x:.1f} %", textangle: 0,
    });
    const chart = (id, bars, x, barmode) => {
      at(id).style.height = `${40 + runs.length * 44}px`;
      plot(id, bars, { x: { ...x, rangemode: "tozero", nticks: 3, tickangle: 0 }, y, barmode, bargap: 0.3, room: 62, hovermode: "y unified" });
    };
    const tier = (name, colour, text) => bar(name, colour, runs.map((run) => 100 * run.hit_ratio_by_tier[name]), text, text && "outside");
    const total = runs.map((run) => percent(run.hit_ratio));
    const tiers = twoTiers ? [tier("device", COLOURS.device), tier("host", COLOURS.host, total)] : [tier("device", COLOURS.device, total)];
    chart("by-tier", tiers, { ticksuffix: " %" }, "stack");
    if (main.ttft_ms) {
      const quantile = (name, key, colour) => bar(name, colour, runs.map((run) => run.ttft_ms[key] / 1e3), runs.map((run) => ms(run.ttft_ms[key])), "outside");
      chart("by-ttft", [quantile("median", "p50", "#93b1dc"), quantile("99 %", "p99", "#2a4f8f")], { ticksuffix: " s" }, "group");
    }
    const most = Math.max(...runs.flatMap((run) => [run.moved.bytes_down, run.moved.bytes_up]));
    const [per, unit] = most >= 1024 * GIB ? [1024 * GIB, "TiB"] : [GIB, "GiB"];
    const way = (name, key, colour) => bar(name, colour, runs.map((run) => run.moved[key] / per), runs.map((run) => size(run.moved[key])), "outside");
    if (twoTiers) chart("by-moved", [way("down", "bytes_down", COLOURS.down), way("up", "bytes_up", COLOURS.up)], { ticksuffix: ` ${unit}` }, "group");
  }
  const kept = (run, key) => run.reservations && percent(run.reservations[key] / run.device_blocks);
  const tickets = (run) => run.reservations && run.reservations.tickets;
  const rows = [
    ["Counted"],
    ["Prompt tokens found", (run) => percent(run.hit_ratio)],
    ["on the device", (run) => percent(run.hit_ratio_by_tier.device)],
    ["on the host", (run) => (run.host_blocks ? percent(run.hit_ratio_by_tier.host) : null)],
    ["on the third tier", (run) => (run.third ? percent(run.third.hit_ratio) : null)],
    ["Copied to the third tier", (run) => (run.third ? size(run.third.bytes_down) : null)],
    ["Copied from the third tier", (run) => (run.third ? size(run.third.bytes_up) : null)],
    ["Copied down", (run) => (run.host_blocks ? size(run.moved.bytes_down) : null)],
    ["Copied up", (run) => (run.host_blocks ? size(run.moved.bytes_up) : null)],
    ["Blocks found on the host but computed, as that was faster", (run) => run.ttft_ms && count(run.skipped_slow)],
    ["Requests served", (run) => count(run.requests)],
    ["Preempted"],
    ["Preemptions", (run) => run.preempted && count(run.preempted.count)],
    ["Requests preempted", (run) => run.preempted && count(run.preempted.requests)],
    ["Tokens of work lost", (run) => run.preempted && count(run.preempted.lost)],
    ["Tokens computed again", (run) => run.preempted && count(run.preempted.recomputed)],
    ["Share of all computed", (run) => run.preempted && `${(100 * run.preempted.share).toFixed(2)} %`],
    ["Promised, of the device"],
    ["For growth of the batch, mean", (run) => kept(run, "headroom")],
    ["In all, mean", (run) => kept(run, "promised")],
    ["In all, peak", (run) => kept(run, "promised_peak")],
    ["Tickets given", (run) => tickets(run) && count(tickets(run).granted)],
    ["Times a ticket was refused", (run) => tickets(run) && count(tickets(run).refused)],
    ["Modelled"],
    ["Time to first token, median", (run) => run.ttft_ms && ms(run.ttft_ms.p50)],
    ["Time to first token, 99 %", (run) => run.ttft_ms && ms(run.ttft_ms.p99)],
    ["Between tokens, median", (run) => run.itl_ms && ms(run.itl_ms.p50)],
    ["Between tokens, 99 %", (run) => run.itl_ms && ms(run.itl_ms.p99)],
    ["In the queue, 99 %", (run) => run.waits && ms(run.waits.queue_ms.p99)],
    ["Output tokens per second", (run) => run.ttft_ms && count(Math.round(run.tokens_per_second))],
    ["Engine time", (run) => run.ttft_ms && duration(run.engine_seconds)],
    ["Measured"],
    ["Bookkeeping, CPU time of a step, median", (run) => run.bookkeeping && duration(run.bookkeeping.us_per_step.p50 / 1e6)],
    ["Bookkeeping, CPU time of a step, 99 %", (run) => run.bookkeeping && duration(run.bookkeeping.us_per_step.p99 / 1e6)],
    ["Duration of this run", (run) => duration(run.wall_seconds)],
  ];
  const heading = add(add(at("table"), "thead"), "tr");
  add(heading, "th", "");
  for (const run of runs) add(heading, "th", names(run).join("\n"), { scope: "col" });
  const body = add(at("table"), "tbody");
  let part;
  for (const [name, of] of rows) {
    if (!of) {
      part = name;
      continue;
    }
    const values = runs.map(of);
    if (values.every((value) => value === null || value === undefined)) continue;
    if (part) add(add(body, "tr", undefined, { class: "part" }), "th", part, { colspan: runs.length + 1 });
    part = undefined;
    const row = add(body, "tr");
    add(row, "th", name, { scope: "row" });
    for (const value of values) add(row, "td", value ?? "–");
  }
}

function pairs(id, caption, entries) {
  const table = at(id);
  add(table, "caption", caption);
  const body = add(table, "tbody");
  for (const [name, value] of entries) {
    const row = add(body, "tr");
    add(row, "th", name, { scope: "row" });
    add(row, "td", value);
  }
}

function settings() {
  at("command").textContent = `$ ${result.command}`;
  const engine = [
    ["Role", main.role],
    ["Preempted first", main.victims],
    ["Most tokens in a step", count(result.max_num_batched_tokens)],
    ["Most requests that run", count(result.max_num_seqs)],
    ["Waiting requests that are prefetched", count(result.prefetch)],
    ["Loads", result.gate ? "where they beat computing" : "always"],
    ["Real bytes", main.verified ? `${count(main.verified.block_bytes)} per block and rank` : "none"],
  ];
  pairs("settings", "The replay", [
    ["Model of time", main.model],
    ["Device", `${count(main.device_blocks)} blocks, ${blocks(main.device_blocks)}`],
    ["Host", main.host_blocks ? `${count(main.host_blocks)} blocks, ${blocks(main.host_blocks)}` : "none"],
    ["Tokens per block", count(result.block_size)],
    ["Tokens per trace id", count(result.trace_block)],
    ["Bytes per block, all ranks", size(result.block_bytes)],
    ["Seed", count(result.seed)],
    ...(main.ttft_ms ? engine : []),
    ["Blockyard", result.blockyard],
  ]);
  const figure = (value) => (Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-2) ? value.toExponential().replace("e+", "e") : count(value));
  pairs("figures", `Figures of ${result.preset}, for --set`, Object.entries(result.figures).map(([name, value]) => [name, figure(value)]));
}

// ---- the page ----

function choose(chosen) {
  [...at("runs").children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === chosen)));
  tiles(runs[chosen]);
  overTime(runs[chosen]);
}

for (const part of document.querySelectorAll("[data-needs]")) part.hidden = !main[part.dataset.needs];
head();
if (runs.length > 1) {
  runs.forEach((run, i) => add(at("runs"), "button", named(run), { type: "button" }).addEventListener("click", () => choose(i)));
}
choose(0);
if (runs.length > 1) runs.forEach((run, i) => entry(at("legend"), named(run), OF_RUNS[i % OF_RUNS.length]));
distribution("ttft", (run) => run.ttft_ms);
distribution("itl", (run) => run.itl_ms);
distribution("queue", (run) => run.waits && run.waits.queue_ms, true);
compare();
settings();
