// The runs of the result, and what they are called.
const { about, count, percent, duration, size, shortly } = words;
const { add, at } = elements;
const result = elements.data();
const runs = result.runs;
const main = runs[0];

const blocks = (number) => size(number * result.block_bytes);
const ms = (value) => duration(value / 1e3);

// What runs may differ in, as `labels.py` says it.
const CHOICES = [
  ["Eviction", (run) => run.policy],
  ["Copied down", (run) => run.write_policy],
  ["Copies on the host", (run) => (run.host_copies ? `copies ${run.host_copies}` : "copies by policy")],
  ["Hints", (run) => run.hints ?? "no hints"],
  ["Owner of the device", (run) => `${run.owner}'s device`],
  ["Headroom", (run) => (run.headroom ? `headroom ${run.headroom}` : null)],
  ["Kept when preempted", (run) => run.preempt_mode],
  ["Device", (run) => `device ${blocks(run.device_blocks)}`],
  ["Host", (run) => (run.host_blocks ? `host ${blocks(run.host_blocks)}` : "no host")],
  ["Disk", (run) => (run.disk_blocks ? `disk ${blocks(run.disk_blocks)}` : "no disk")],
];
const varied = CHOICES.filter(([, of]) => new Set(runs.map(of)).size > 1);
const full = (run) => CHOICES.map(([, of]) => of(run)).filter(Boolean).join(", ");

// What all runs share is said once, in the settings.
const named = (run) => (varied.length ? varied.map(([, of]) => of(run)).join(", ") : run.policy);
