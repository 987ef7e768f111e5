// Plots of one run over time, of the latencies of all runs, and of all runs side by side.
const GIB = 2 ** 30;
const TIB = 2 ** 40;

// Merges neighbouring intervals, so that each is at least a few pixels wide.
function binned(series, most) {
  const { seconds } = series;
  const width = seconds.length > 1 ? seconds[1] - seconds[0] : seconds[0];
  const each = Math.max(1, Math.ceil(seconds.length / most));
  const bins = Math.ceil(seconds.length / each);
  const start = seconds[0] - width;
  const edges = Array.from({ length: bins + 1 }, (_, i) => start + width * Math.min(i * each, seconds.length));
  const merge = (into) => (name) => Array.from({ length: bins }, (_, i) => series[name].slice(i * each, (i + 1) * each).reduce(into));
  return { edges, width: width * each, sum: merge((a, b) => a + b), most: merge((a, b) => Math.max(a, b)) };
}

// Uses minutes or hours where there would be many seconds.
function timeAxis(series) {
  const last = series.seconds[series.seconds.length - 1];
  const [per, unit, short] = last >= 7200 ? [3600, "hours", "h"] : last >= 300 ? [60, "minutes", "min"] : [1, "seconds", "s"];
  return { scale: (seconds) => seconds / per, axis: { label: `modelled time in ${unit}`, read: (value) => `at ${value.toFixed(1)} ${short}` } };
}

function overTime(run) {
  const parent = at("over-time");
  parent.replaceChildren();
  const series = run.series;
  if (!series || !series.seconds.length) return;
  const coarse = binned(series, 72);
  const fine = binned(series, 150);
  const time = timeAxis(series);
  const edges = coarse.edges.map(time.scale);
  const fineEdges = fine.edges.map(time.scale);
  const ticks = (value) => `${value} %`;
  const each = (bins) => (bins.edges.length > 2 ? `each ${duration(bins.width)}` : "the interval");

  const [device, host, missed] = ["device_hit", "host_hit", "missed"].map(coarse.sum);
  const all = missed.map((tokens, i) => tokens + device[i] + host[i]);
  const share = (name, tokens, colour) => ({
    name, kind: "stack", colour, edges, y: tokens.map((some, i) => (all[i] ? (100 * some) / all[i] : null)),
    read: (i) => `${percent(tokens[i] / all[i])} · ${count(tokens[i])} tokens`,
  });
  const below = run.disk ? "host and disk" : "host";
  charts.plot(parent, {
    id: "hits", title: "Hits by tier", note: `share of the prompt tokens admitted in ${each(coarse)}`, x: time.axis, y: { range: [0, 100], format: ticks },
    series: [share("device", device, "--device"), share(below, host, "--host"), share(run.role === "decode" ? "arrived computed" : "computed", missed, "--computed")],
  });

  const level = (name, key, of, colour, style) => {
    const used = fine.most(key);
    return { name, colour, edges: fineEdges, y: used.map((some) => (100 * some) / of), read: (i) => `${percent(used[i] / of)} · ${blocks(used[i])}`, ...style };
  };
  const levels = [
    level("device", "device_used", run.device_blocks, "--device"),
    level("device, in use by requests", "device_pinned", run.device_blocks, "--pinned", { fill: true }),
  ];
  if (Math.max(...series.device_promised)) levels.push(level("device, promised", "device_promised", run.device_blocks, "--promised"));
  if (run.host_blocks) levels.push(level("host", "host_used", run.host_blocks, "--host"));
  charts.plot(parent, {
    id: "occupancy", title: "Occupancy", x: time.axis, y: { range: [0, 102], format: ticks }, series: levels,
    note: `peak of ${each(fine)}, of ${blocks(run.device_blocks)} on the device${run.host_blocks ? ` and ${blocks(run.host_blocks)} on the host` : ""}`,
  });

  const bytes = ["bytes_down", "bytes_up"].map(coarse.sum);
  const rates = bytes.map((moved) => moved.map((some, i) => some / (coarse.edges[i + 1] - coarse.edges[i])));
  const [per, unit] = Math.max(...rates.flat()) >= GIB / 2 ? [GIB, "GiB/s"] : [2 ** 20, "MiB/s"];
  const flow = (name, way, colour) => ({
    name, colour, edges, fill: true, y: rates[way].map((rate) => rate / per), read: (i) => `${size(rates[way][i])}/s · ${size(bytes[way][i])}`,
  });
  if (run.host_blocks) {
    charts.plot(parent, {
      id: "moved", title: "Bytes moved", note: `mean of ${each(coarse)}; the link carries ${size(result.figures.ranks * result.figures.link_bytes_per_second)}/s each way`,
      x: time.axis, y: { label: unit }, series: [flow("device to host", 0, "--down"), flow("host to device", 1, "--up")],
    });
  }

  const crowd = (name, key, colour) => {
    const y = fine.most(key);
    return { name, colour, edges: fineEdges, y, read: (i) => count(y[i]) };
  };
  const crowds = [crowd("running", "running", "--device"), crowd("waiting", "waiting", "--host")];
  const gone = coarse.sum("preempted");
  // First, so that the lines are drawn over the bars.
  if (run.preempted.count) crowds.unshift({ name: "preempted", kind: "bars", colour: "--lost", edges, y: gone, read: (i) => count(gone[i]) });
  charts.plot(parent, {
    id: "requests", title: "Requests", note: `peak of ${each(fine)}${run.preempted.count ? `; all preemptions of ${each(coarse)}` : ""}`,
    x: time.axis, y: { label: "requests", whole: true }, series: crowds,
  });
}

const SHARES = [0, 25, 50, 75, 90, 99];

function distribution(id, title, note, of, atLeast = 0) {
  const spreads = runs.map(of);
  if (!spreads.every(Boolean)) return;
  // The shortest and the longest percent would take most of the axis, as a few of them last a hundred times as long.
  const top = Math.max(1, ...spreads.map((spread) => spread.p99)) * 1.3;
  // A logarithmic axis has no zero: shorter durations are drawn at `floor`.
  const positive = spreads.flatMap((spread) => spread.quantiles.slice(1)).filter((value) => value > 0);
  const floor = Math.max(Math.min(...positive, top / 10) / 1.15, top / 1e5, atLeast);
  charts.plot(at("latency"), {
    id, title, note, along: "y", height: 290,
    x: { log: true, range: [floor, top], ticks: DURATIONS, format: (value) => shortly(value / 1e3) },
    y: { range: [0, 101], ticks: SHARES, format: (share) => `${share} %`, read: (share) => `${share} % within` },
    series: runs.map((run, i) => ({
      name: named(run), full: full(run), x: spreads[i].quantiles.map((value) => Math.max(value, floor)),
      y: spreads[i].quantiles.map((_, share) => share), read: (share) => ms(spreads[i].quantiles[share]),
    })),
  });
}

// Durations in ms that are round in their unit, as a minute has sixty seconds; the fullest list first.
const DURATIONS = [
  [[1, 2, 5], [0.5, 1, 2, 5, 10, 30], [1, 2, 5, 10, 30, 100]],
  [[1, 3], [0.5, 1, 2, 5, 10, 30], [1, 3, 10, 30, 100]],
  [[1, 3], [1, 5, 20], [1, 5, 25, 100]],
  [[1], [1, 10], [1, 10, 100]],
].map(([steps, minutes, hours]) => {
  const seconds = [-3, -2, -1, 0, 1, 2, 3, 4].flatMap((power) => steps.map((step) => step * 10 ** power)).filter((value) => value < 3e4);
  return [...seconds, ...minutes.map((value) => 6e4 * value), ...hours.map((value) => 3.6e6 * value)];
});

function sideBySide() {
  at("side-by-side").hidden = runs.length < 2;
  if (runs.length < 2) return;
  const rows = runs.map((run) => ({ name: named(run), full: full(run) }));
  const texts = (of) => runs.map(of);
  const tier = (name, colour, of, said) => ({ name, colour, values: runs.map(of), texts: said });
  const tiers = [tier("device", "--device", (run) => 100 * run.hit_ratio_by_tier.device)];
  if (runs.some((run) => run.host_blocks)) tiers.push(tier("host", "--host", (run) => 100 * run.hit_ratio_by_tier.host));
  if (runs.some((run) => run.disk)) tiers.push(tier("disk", "--disk", (run) => (run.disk ? 100 * run.disk.hit_ratio : 0)));
  tiers[tiers.length - 1].texts = texts((run) => percent(run.hit_ratio));
  charts.bars(at("bars"), { id: "by-tier", title: "Hit ratio by tier", note: "share of all prompt tokens", rows, stack: true, series: tiers });
  if (runs.every((run) => run.ttft_ms && run.output_tokens)) {
    const quantile = (name, key, colour) => tier(name, colour, (run) => run.ttft_ms[key] / 1e3, texts((run) => ms(run.ttft_ms[key])));
    charts.bars(at("bars"), { id: "by-ttft", title: "Time to first token", note: "modelled", rows, series: [quantile("median", "p50", "--device"), quantile("99 %", "p99", "--pinned")] });
  }
  if (runs.some((run) => run.host_blocks)) {
    const way = (name, key, colour) => tier(name, colour, (run) => run.moved[key] / GIB, texts((run) => size(run.moved[key])));
    charts.bars(at("bars"), { id: "by-moved", title: "Bytes moved", note: "in the modelled layout", rows, series: [way("down", "bytes_down", "--down"), way("up", "bytes_up", "--up")] });
  }
}
