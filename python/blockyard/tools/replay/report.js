// The page: its head, its tiles, the table of all figures and the settings.

function head() {
  at("trace").textContent = result.trace;
  elements.answer(at("answer"), result.answer || []);
  const facts = [`${count(result.trace_requests)} requests`, `${result.preset}`];
  if (main.role && main.role !== "mixed") facts.push(`${main.role} only`);
  if (result.figures.ranks > 1) facts.push(`${result.figures.ranks} ranks`);
  if ((result.speed ?? 1) !== 1) facts.push(`${result.speed} times as fast`);
  if (result.router) facts.push(`${main.replicas.length} engines, routed by ${result.router}`);
  facts.push(`blocks of ${result.block_size} tokens, ${size(result.block_bytes)}`);
  for (const [name, of] of CHOICES.slice(-3)) if (!varied.some(([other]) => other === name)) facts.push(of(main));
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

function tiles(run) {
  at("tiles").replaceChildren();
  const tile = (name, how, key, value, text, more) => elements.tile(at("tiles"), { name, how, key, value, text, more });
  const tier = run.hit_ratio_by_tier;
  const disk = run.disk ? ` · disk ${percent(run.disk.hit_ratio)}` : "";
  tile("Found in the cache", "counted", "hit_ratio", run.hit_ratio, percent(run.hit_ratio), `device ${percent(tier.device)} · host ${percent(tier.host)}${disk}`);
  if (run.ttft_ms) {
    if (run.output_tokens) tile("Time to first token", "modelled", "ttft_ms.p50", run.ttft_ms.p50, ms(run.ttft_ms.p50), `median; 99 % within ${ms(run.ttft_ms.p99)}`);
    if (run.output_tokens) tile("Between tokens", "modelled", "itl_ms.p50", run.itl_ms.p50, ms(run.itl_ms.p50), `median; 99 % within ${ms(run.itl_ms.p99)}`);
    tile("Output", "modelled", "tokens_per_second", run.tokens_per_second, `${count(Math.round(run.tokens_per_second))} tokens/s`, `${count(run.requests)} requests in ${duration(run.engine_seconds)}`);
  }
  const { moved, load } = run;
  if (load) tile("Requests served", "modelled", "load.served_requests_per_second", load.served_requests_per_second, `${about(load.served_requests_per_second)} /s`, `${about(load.offered_requests_per_second)} /s offered${load.overloaded ? ": overloaded" : ""}`);
  if (run.host_blocks) tile("Copied up to the device", "counted", "moved.bytes_up", moved.bytes_up, size(moved.bytes_up), `${count(moved.blocks_up)} blocks; down ${size(moved.bytes_down)}`);
  if (run.waits) {
    tile("Wait in the queue", "modelled", "waits.queue_ms.p99", run.waits.queue_ms.p99, ms(run.waits.queue_ms.p99), `99 % within; median ${ms(run.waits.queue_ms.p50)}`);
    const host = run.host_blocks ? `host ${percent(run.peak.host / run.host_blocks)} full` : "no host tier";
    const mean = run.pinned ?? null;
    tile("In use by requests, peak", "counted", "peak.pinned", run.peak.pinned, percent(run.peak.pinned / run.device_blocks), `of the device${mean === null ? "" : `, mean ${percent(mean / run.device_blocks)}`} · ${host}`);
  }
  const gone = run.preempted;
  if (gone) tile("Preempted", "counted", "preempted.count", gone.count, count(gone.count), gone.count ? `${count(gone.lost)} tokens lost, ${count(gone.recomputed)} computed again` : "no work lost");
  const cost = run.bookkeeping;
  if (cost) tile("Bookkeeping, CPU time of a step", "measured", "bookkeeping.us_per_step.p50", cost.us_per_step.p50, duration(cost.us_per_step.p50 / 1e6), `median; ${(100 * cost.share).toFixed(2)} % of the engine's time`);
  else tile("Duration of this run", "measured", "wall_seconds", run.wall_seconds, duration(run.wall_seconds), `${count(run.requests)} requests`);
}

// ---- tables ----

const kept = (run, key) => run.reservations && percent(run.reservations[key] / run.device_blocks);
const tickets = (run) => run.reservations && run.reservations.tickets;
const rate = (run, key) => run.load && `${about(run.load[key])} /s`;
const ROWS = [
  ["Counted"],
  ["Prompt tokens found", (run) => percent(run.hit_ratio)],
  ["on the device", (run) => percent(run.hit_ratio_by_tier.device)],
  ["on the host", (run) => (run.host_blocks ? percent(run.hit_ratio_by_tier.host) : null)],
  ["on the disk", (run) => (run.disk ? percent(run.disk.hit_ratio) : null)],
  ["Copied to the disk", (run) => (run.disk ? size(run.disk.bytes_down) : null)],
  ["Copied from the disk", (run) => (run.disk ? size(run.disk.bytes_up) : null)],
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
  ["Requests offered", (run) => rate(run, "offered_requests_per_second")],
  ["Requests admitted", (run) => rate(run, "served_requests_per_second")],
  ["Time to first token, median", (run) => run.ttft_ms && run.output_tokens && ms(run.ttft_ms.p50)],
  ["Time to first token, 99 %", (run) => run.ttft_ms && run.output_tokens && ms(run.ttft_ms.p99)],
  ["Between tokens, median", (run) => run.itl_ms && run.output_tokens && ms(run.itl_ms.p50)],
  ["Between tokens, 99 %", (run) => run.itl_ms && run.output_tokens && ms(run.itl_ms.p99)],
  ["In the queue, 99 %", (run) => run.waits && ms(run.waits.queue_ms.p99)],
  ["Output tokens per second", (run) => run.ttft_ms && count(Math.round(run.tokens_per_second))],
  ["Engine time", (run) => run.ttft_ms && duration(run.engine_seconds)],
  ["Measured"],
  ["Bookkeeping, CPU time of a step, median", (run) => run.bookkeeping && duration(run.bookkeeping.us_per_step.p50 / 1e6)],
  ["Bookkeeping, CPU time of a step, 99 %", (run) => run.bookkeeping && duration(run.bookkeeping.us_per_step.p99 / 1e6)],
  ["Duration of this run", (run) => duration(run.wall_seconds)],
];

function compare() {
  at("hint").hidden = runs.length > 1;
  at("hint").textContent = "One run only: repeat --policy, --write-policy, --preempt-mode or --headroom to compare runs side by side.";
  const rows = [];
  let heading;
  for (const [name, of] of ROWS) {
    if (!of) {
      heading = name;
      continue;
    }
    const values = runs.map(of);
    if (values.every((value) => value === null || value === undefined)) continue;
    if (heading) rows.push([heading]);
    heading = undefined;
    rows.push([name, ...values]);
  }
  elements.table(at("compare"), { head: ["", ...runs.map((run) => ({ text: named(run), full: full(run) }))], rows });
}

function engines(run) {
  const replicas = run.replicas || [];
  at("engines").hidden = !replicas.length;
  at("replicas").replaceChildren();
  if (!replicas.length) return;
  const times = replicas.some((replica) => replica.engine_seconds);
  const rows = replicas.map((replica, i) => [
    `engine ${i + 1}`, count(replica.requests), percent(replica.hit_ratio), count(replica.input_tokens), count(replica.output_tokens),
    ...(times ? [duration(replica.engine_seconds), replica.overloaded ? "yes" : replica.overloaded === false ? "no" : null] : []),
  ]);
  const head = ["", "requests", "hit ratio", "prompt tokens", "answer tokens", ...(times ? ["engine time", "overloaded"] : [])];
  elements.table(at("replicas"), { head, rows });
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
  const shared = CHOICES.filter((choice) => !varied.includes(choice)).map(([name, of]) => [name, of(main)]).filter(([, value]) => value);
  elements.pairs(at("settings"), "The replay", [
    ["Model of time", main.model],
    ...shared,
    ...(runs.length > 1 ? runs.map((run, i) => [`Run ${i + 1}`, full(run)]) : []),
    ["Tokens per block", count(result.block_size)],
    ["Tokens per trace id", count(result.trace_block)],
    ["Bytes per block, all ranks", size(result.block_bytes)],
    ["Seed", count(result.seed)],
    ...(main.ttft_ms ? engine : []),
    ["Blockyard", result.blockyard],
  ]);
  const figure = (value) => (Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-2) ? value.toExponential().replace("e+", "e") : count(value));
  elements.pairs(at("figures"), `Figures of ${result.preset}, for --set`, Object.entries(result.figures).map(([name, value]) => [name, figure(value)]));
}

// ---- the page ----

function choose(chosen) {
  [...at("runs").children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === chosen)));
  tiles(runs[chosen]);
  overTime(runs[chosen]);
  engines(runs[chosen]);
}

for (const section of document.querySelectorAll("[data-needs]")) section.hidden = !main[section.dataset.needs];
head();
if (runs.length > 1) {
  runs.forEach((run, i) => add(at("runs"), "button", named(run), { type: "button", title: full(run) }).addEventListener("click", () => choose(i)));
}
choose(0);
sideBySide();
distribution("ttft", "Time to first token", "share of requests that waited no longer", (run) => run.output_tokens && run.ttft_ms);
distribution("itl", "Between tokens", "share of tokens that took no longer", (run) => run.output_tokens && run.itl_ms);
distribution("queue", "In the queue", "arrival to admission, share of requests", (run) => run.waits && run.waits.queue_ms, 1);
compare();
settings();
