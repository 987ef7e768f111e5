// The page of a sweep, from its JSON.
const { at, add } = elements;
const { count, percent, size, duration } = words;
const result = elements.data();
const orders = [...new Set(result.points.flatMap((point) => Object.keys(point.hit_ratio)))].sort((a, b) => (a === "optimum") - (b === "optimum"));
const named = (order) => (order === "optimum" ? "optimum, a bound" : order);
const bytes = (blocks) => size(blocks * result.block_bytes);
// At the knee a doubling adds just less than a point, which must not be read as one.
const points = (share) => (share < 0.01 ? `${(Math.floor(1e4 * share) / 100).toFixed(2)} points` : `${(100 * share).toFixed(1)} points`);
const ms = (value) => (value === null ? null : duration(value / 1e3));
const advice = result.advice;

function head() {
  at("trace").textContent = result.trace;
  elements.answer(at("answer"), result.answer);
  const facts = [
    `${count(result.trace_requests)} requests`,
    `${count(result.distinct_blocks)} distinct blocks of ${result.trace_block} tokens, ${size(result.block_bytes)} each`,
    result.preset,
  ];
  if (result.sampled > 1) facts.push(`one block in ${result.sampled} simulated`);
  at("facts").textContent = facts.join(" · ");
  if (!result.complete) add(at("verdicts"), "span", "interrupted: some is missing", { class: "bad" });
}

function tiles() {
  const tile = (name, how, key, value, text, more) => elements.tile(at("tiles"), { name, how, key, value, text, more });
  if (advice.blocks) {
    tile("The knee", "exact", "advice.blocks", advice.blocks, bytes(advice.blocks), `${count(advice.blocks)} blocks`);
    tile("It finds", "exact", "advice.hit_ratio", advice.hit_ratio, percent(advice.hit_ratio), advice.bound === null ? "of the prompt tokens" : `no order more than ${percent(advice.bound)}`);
    tile("Twice as much adds", "exact", "advice.next_gain", advice.next_gain, points(advice.next_gain), `${bytes(2 * advice.blocks)} in all`);
    if (advice.better !== null) {
      const equal = advice.better_equals === null ? "recency never does" : `as recency with ${bytes(advice.better_equals)}`;
      tile(`The ${advice.better} order finds`, result.sampled > 1 ? "sampled" : "simulated", "advice.better_hit_ratio", advice.better_hit_ratio, percent(advice.better_hit_ratio), equal);
    }
  }
  tile("The device alone finds", "exact", "device_hit_ratio", result.device_hit_ratio, percent(result.device_hit_ratio), `${bytes(result.device_blocks)} beside the weights`);
  tile("An infinite cache finds", "exact", "infinite_hit_ratio", result.infinite_hit_ratio, percent(result.infinite_hit_ratio), `as do ${bytes(advice.enough)} under recency`);
}

// The powers of two that suit the size, which a logarithmic axis would write in tens of bytes.
function ticks() {
  const from = Math.ceil(Math.log2(result.points[0].bytes));
  const to = Math.floor(Math.log2(result.points.at(-1).bytes));
  const step = Math.max(1, Math.round((to - from) / 6));
  return Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, i) => 2 ** (from + i * step));
}

function curve() {
  const marks = [];
  const range = [result.points[0].bytes, result.points.at(-1).bytes];
  const own = result.device_blocks * result.block_bytes;
  if (own >= range[0] && own <= range[1]) marks.push({ x: own, label: `the device, ${size(own)}` });
  if (advice.blocks) marks.push({ x: advice.bytes, label: `the knee, ${size(advice.bytes)}` });
  const short = (value) => size(value).replace(/\.0+ /, " ");
  const axis = { label: "memory for the cache, in all", log: true, range, format: short, read: size };
  if (range[0] < range[1] && ticks().length > 1) axis.ticks = ticks();
  charts.plot(at("curve"), {
    id: "hits",
    title: "Prompt tokens found, by size",
    note: "recency is exact at every size, and so is the optimum, which knows the future",
    height: 380,
    x: axis,
    y: { label: "of the prompt tokens", format: words.whole, read: percent },
    marks,
    series: orders.map((order) => {
      const there = result.points.filter((point) => order in point.hit_ratio);
      return { name: named(order), x: there.map((point) => point.bytes), y: there.map((point) => point.hit_ratio[order]), dots: true };
    }),
  });
}

function tables() {
  elements.table(at("sizes"), {
    head: ["size", "blocks", ...orders.map(named)],
    rows: result.points.map((point) => [
      size(point.bytes) + (point.blocks === advice.blocks ? ", the knee" : ""), count(point.blocks),
      ...orders.map((order) => (order in point.hit_ratio ? percent(point.hit_ratio[order]) : null)),
    ]),
  });
  if (result.splits.length) {
    const tier = (split, name) => (split[`${name}_blocks`] ? percent(split.hit_ratio_by_tier[name]) : null);
    elements.table(at("splits"), {
      head: ["device + host + disk", "order", "found", "on the device", "on the host", "on the disk", "copied down", "copied up"],
      rows: result.splits.map((split) => [
        [split.device_blocks, split.host_blocks, split.disk_blocks].filter(Boolean).map(bytes).join(" + "), split.order, percent(split.hit_ratio),
        tier(split, "device"), tier(split, "host"), tier(split, "disk"), size(split.bytes_down), size(split.bytes_up),
      ]),
    });
  }
  if (result.modelled.length) {
    elements.table(at("modelled"), {
      head: ["device + host", "requests", "found", "to first token, median", "to first token, 99 %", "output tokens/s", ""],
      rows: result.modelled.map((one) => [
        [one.device_bytes, one.host_bytes].filter(Boolean).map(size).join(" + "), count(one.requests), percent(one.hit_ratio),
        ms(one.ttft_ms_p50), ms(one.ttft_ms_p99), count(Math.round(one.tokens_per_second)), one.overloaded ? "overloaded: the queue grows" : "",
      ]),
    });
  }
}

function settings() {
  at("command").textContent = `$ ${result.command}`;
  elements.pairs(at("settings"), "The sweep", [
    ["Tokens per block", count(result.trace_block)],
    ["Bytes per block, all ranks", size(result.block_bytes)],
    ["Prompt tokens", count(result.input_tokens)],
    ["Simulated", result.sampled > 1 ? `one block in ${result.sampled}` : "all blocks"],
    ["Seed", count(result.seed)],
    ["Blockyard", result.blockyard],
  ]);
  const figure = (value) => (Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-2) ? value.toExponential().replace("e+", "e") : count(value));
  elements.pairs(at("figures"), `Figures of ${result.preset}, for --set`, Object.entries(result.figures).map(([name, value]) => [name, figure(value)]));
}

for (const section of document.querySelectorAll("[data-needs]")) section.hidden = !result[section.dataset.needs].length;
head();
tiles();
curve();
tables();
settings();
