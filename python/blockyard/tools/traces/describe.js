// The page of `blockyard trace describe`, from the JSON of description.py.
const found = elements.data();
const { at, add } = elements;

at("name").textContent = found.trace;
at("facts").textContent = `${words.count(found.requests)} requests in ${words.duration(found.seconds)}, blocks of ${words.count(found.block_size)} tokens. Blockyard ${found.blockyard}`;
elements.answer(at("answer"), found.answer);

const tile = (name, value, text, key, how) => elements.tile(at("tiles"), { name, value, text, key, how });
if (found.blocks) {
  tile("Hits of an infinite cache", found.blocks.infinite_hit_ratio, words.percent(found.blocks.infinite_hit_ratio), "blocks.infinite_hit_ratio", "of prompt tokens");
  tile("Distinct blocks", found.blocks.distinct, words.count(found.blocks.distinct), "blocks.distinct");
  tile("Never used again", found.blocks.once, words.percent(found.blocks.once), "blocks.once", "of distinct blocks");
}
tile("Requests per second", found.rate.mean, found.rate.mean.toPrecision(3), "rate.mean", "mean");
tile("In the busiest minute", found.rate.busiest, found.rate.busiest.toPrecision(3), "rate.busiest", "per second");
if (found.continued) tile("Continued later", found.continued.share, words.percent(found.continued.share), "continued.share", "of requests");
if (found.sessions) tile("Sessions", found.sessions.count, words.count(found.sessions.count), "sessions.count");

const shares = Array.from({ length: 101 }, (_, i) => i / 100);
const plots = at("plots");

// A distribution on a logarithmic axis cannot show zeros: they stand at its left end.
function spread(id, title, note, series, label, read) {
  const least = Math.min(...series.flatMap((one) => one.from.quantiles.filter((value) => value > 0)));
  charts.plot(plots, {
    id, title, note, along: "y",
    x: { label, log: true, read, format: read },
    y: { range: [0, 1], format: words.whole, read: words.whole },
    series: series.map((one) => ({ name: one.name, x: one.from.quantiles.map((value) => Math.max(value, least)), y: shares })),
  });
}

if (found.reuse) {
  charts.plot(plots, {
    id: "hits", title: "Hits by size of an LRU cache", note: "share of the prompts' tokens found; requests one after another, copies and answers left out",
    x: { label: "blocks", log: true, format: words.count },
    y: { format: words.whole, read: words.percent },
    series: [{ name: "hits", x: found.reuse.curve.blocks, y: found.reuse.curve.hit_ratio, fill: true }],
  });
}
charts.plot(plots, {
  id: "arrivals", title: "Arrivals", note: "requests per second",
  x: { label: "from the first arrival", format: words.shortly, read: words.duration },
  y: {},
  series: [{ name: "requests per second", edges: found.rate.edges, y: found.rate.arrivals, kind: "bars" }],
});
spread("lengths", "Lengths", "share of prompts and answers that are not longer", [{ name: "prompts", from: found.prompts }, { name: "answers", from: found.answers }], "tokens", words.count);
if (found.reuse) spread("reuse", "Time between two uses of a block", "share of the uses after no longer a time", [{ name: "uses", from: found.reuse.seconds }], "time", words.shortly);
if (found.continued) spread("continued", "Time until a request is continued", "share of those that are; what continues a request uses the last full block of its prompt", [{ name: "continued", from: found.continued.pause }], "time", words.shortly);
if (found.sessions) {
  spread("turns", "Requests of a session", "share of sessions that have no more", [{ name: "sessions", from: found.sessions.turns }], "requests", words.count);
  if (found.sessions.pause) spread("pauses", "Time between two requests of a session", "answer and thought together", [{ name: "pauses", from: found.sessions.pause }], "time", words.shortly);
}

const rows = [["tokens per prompt", found.prompts, words.count], ["tokens per answer", found.answers, words.count]];
if (found.reuse) rows.push(["blocks between uses", found.reuse.blocks, words.count], ["time between uses", found.reuse.seconds, words.duration]);
if (found.continued) rows.push(["time to continuation", found.continued.pause, words.duration]);
if (found.sessions) rows.push(["requests per session", found.sessions.turns, words.count]);
if (found.sessions && found.sessions.pause) rows.push(["time between these", found.sessions.pause, words.duration]);
elements.table(at("numbers"), {
  head: ["", "mean", "10 %", "median", "90 %", "99 %", "most"],
  rows: rows.map(([name, from, read]) => [name, ...[from.mean, from.p10, from.p50, from.p90, from.p99, from.max].map((value) => read(value >= 10 && read === words.count ? Math.round(value) : value))]),
});
