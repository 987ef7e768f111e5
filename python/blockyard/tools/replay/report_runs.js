// The runs of the result, and what they are called.
const { count, percent, whole, duration, size, shortly } = words;
const { add, at } = elements;
const result = elements.data();
const runs = result.runs;
const main = runs[0];

const blocks = (number) => size(number * result.block_bytes);
const ms = (value) => duration(value / 1e3);

// What runs may differ in, and what stands for none.
const CHOICES = [
  ["Eviction", (run) => run.policy],
  ["Copied down", (run) => run.write_policy],
  ["Copies on the host", (run) => (run.host_copies ? `copies ${run.host_copies}` : null), "copies as suits"],
  ["Hints", (run) => (run.hints ? run.hints.replaceAll(",", ", ") : null), "no hints"],
  ["Owner of the device", (run) => (run.owner === "engine" ? "engine's device" : null), "cache's device"],
  ["Headroom", (run) => run.headroom, "no headroom"],
  ["Kept when preempted", (run) => run.preempt_mode, "–"],
];
const varied = CHOICES.filter(([, of]) => new Set(runs.map(of)).size > 1);
const full = (run) => CHOICES.map(([, of]) => of(run)).filter(Boolean).join(", ");

// What all runs share is said once, in the settings.
const named = (run) => (varied.length ? varied.map(([, of, none]) => of(run) ?? none).join(", ") : full(run));
