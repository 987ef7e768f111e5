//! Counters and sizes: plain numbers, read in one lock. One schema names them all.

use crate::id::{MAX_TIERS, Set, Tier};
use crate::ledger::Ledger;

/// What has happened since the yard was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(missing_docs, reason = "`SCHEMA` says what each means")]
pub struct Counters {
    pub begun: u64,
    pub resumed: u64,
    pub forked: u64,
    pub finished: u64,
    pub parked: u64,
    pub broken: u64,
    pub leaked: u64,
    pub no_room: u64,
    pub unserved: u64,
    pub tokens: u64,
    pub cached: u64,
    pub slow: u64,
    pub hits: [u64; MAX_TIERS],
    pub sealed: u64,
    pub duplicates: u64,
    pub deduped: u64,
    pub evicted: [u64; MAX_TIERS],
    pub flights: u64,
    pub moved: [[u64; MAX_TIERS]; MAX_TIERS],
    pub failed: u64,
    pub corrupt: u64,
    pub overdue: u64,
    pub late: u64,
    pub rejected: u64,
}

/// The sets of one tier, in slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(missing_docs, reason = "`SCHEMA` says what each means")]
pub struct TierStats {
    pub capacity: u64,
    pub free: u64,
    pub claimed: u64,
    pub pinned: u64,
    pub idle: u64,
    pub quarantined: u64,
    pub takeable: u64,
    pub promised: u64,
}

impl TierStats {
    pub(crate) fn of(ledger: &Ledger) -> Self {
        let count = |set| u64::from(ledger.count(set));
        Self {
            capacity: u64::from(ledger.capacity()),
            free: count(Set::Free),
            claimed: count(Set::Claimed),
            pinned: count(Set::Pinned),
            idle: count(Set::Idle),
            quarantined: count(Set::Quarantined),
            takeable: u64::from(ledger.takeable()),
            promised: u64::from(ledger.promised()),
        }
    }
}

/// One reading of everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Per tier, the device first.
    pub tiers: Vec<TierStats>,
    /// Running leases, those included that have ended and wait for their loads.
    pub leases: u64,
    /// Parked sequences.
    pub parked: u64,
    /// Open tickets.
    pub tickets: u64,
    /// Flights in flight, those included whose end is unknown.
    pub flights: u64,
    /// Blocks in the trie, and anonymous ones.
    pub blocks: u64,
    /// How often the yard was cleared.
    pub epoch: u64,
    /// What has happened.
    pub counters: Counters,
}

/// One entry of the schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name in [`Stats::values`]; a tier's begin with the tier's word.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What it means.
    pub help: &'static str,
}

const fn field(name: &'static str, unit: &'static str, help: &'static str) -> Field {
    Field { name, unit, help }
}

/// What [`Stats::values`] gives for every yard, in that order.
pub const SCHEMA: &[Field] = &[
    field(
        "leases",
        "leases",
        "running sequences, with those whose loads have yet to land",
    ),
    field("parked", "sequences", "parked sequences"),
    field(
        "tickets",
        "tickets",
        "open reservations, for requests that are not running yet or are about to be parked",
    ),
    field(
        "flights",
        "flights",
        "plans in flight, with those whose end is unknown",
    ),
    field(
        "blocks",
        "blocks",
        "blocks in the trie, and anonymous ones of parked sequences",
    ),
    field("epoch", "clears", "how often the cache was cleared"),
    field("begun", "sequences", "begins that were served"),
    field("resumed", "sequences", "parked sequences that were resumed"),
    field("forked", "sequences", "forks"),
    field("finished", "sequences", "leases that were finished"),
    field("parkings", "sequences", "leases that were parked"),
    field(
        "broken",
        "sequences",
        "parked sequences whose keeps were broken",
    ),
    field(
        "leaked",
        "handles",
        "handles dropped without the verb that ends them; what they held came back late",
    ),
    field(
        "no_room",
        "requests",
        "begins, forks, resumes and tickets that found no room",
    ),
    field("unserved", "rows", "rows of grows that found no room"),
    field("tokens", "tokens", "tokens of all begins"),
    field("cached", "tokens", "of these, tokens whose KV was found"),
    field(
        "slow",
        "blocks",
        "blocks that begins found below and did not load: computing them is faster, or their bound",
    ),
    field(
        "sealed",
        "blocks",
        "blocks published, or found published when sealed",
    ),
    field(
        "duplicates",
        "blocks",
        "of these, blocks that were computed twice",
    ),
    field(
        "deduped",
        "blocks",
        "of those, blocks given up in place while their sequences ran",
    ),
    field("plans", "plans", "plans made"),
    field("failed", "blocks", "copies that failed"),
    field(
        "corrupt",
        "blocks",
        "copies below that failed their checksum and were dropped",
    ),
    field(
        "overdue",
        "flights",
        "flights that the yard was told are past their deadline: their destinations are quarantined",
    ),
    field(
        "late",
        "outcomes",
        "duplicate or late outcomes; they change nothing",
    ),
    field(
        "rejected",
        "handles",
        "spent or foreign handles that were turned away",
    ),
];

/// What follows for each tier; the names begin with the tier's word and an underscore.
pub const TIER_SCHEMA: &[Field] = &[
    field(
        "capacity",
        "slots",
        "slots that have not retired, null slots not counted",
    ),
    field("free", "slots", "slots nobody has"),
    field(
        "claimed",
        "slots",
        "slots taken by a begin or a grow, without content",
    ),
    field(
        "pinned",
        "slots",
        "slots held by leases and keeps, or being filled",
    ),
    field("idle", "slots", "published blocks nobody uses"),
    field(
        "quarantined",
        "slots",
        "slots whose copy has an unknown end",
    ),
    field("takeable", "slots", "idle slots that may be evicted now"),
    field(
        "promised",
        "slots",
        "slots kept obtainable for growth, tickets and keeps",
    ),
    field("hits", "blocks", "blocks that begins found here"),
    field("evicted", "blocks", "blocks evicted from here"),
    field("out", "blocks", "blocks in plans that read from here"),
    field("in", "blocks", "blocks in plans that write here"),
];

impl Stats {
    /// The values of [`SCHEMA`], then of [`TIER_SCHEMA`] for each tier, with their names.
    pub fn values(&self) -> Vec<(String, u64)> {
        let c = &self.counters;
        let own = [
            self.leases,
            self.parked,
            self.tickets,
            self.flights,
            self.blocks,
            self.epoch,
            c.begun,
            c.resumed,
            c.forked,
            c.finished,
            c.parked,
            c.broken,
            c.leaked,
            c.no_room,
            c.unserved,
            c.tokens,
            c.cached,
            c.slow,
            c.sealed,
            c.duplicates,
            c.deduped,
            c.flights,
            c.failed,
            c.corrupt,
            c.overdue,
            c.late,
            c.rejected,
        ];
        let mut values: Vec<(String, u64)> = SCHEMA
            .iter()
            .map(|field| field.name.to_owned())
            .zip(own)
            .collect();
        for (at, tier) in self.tiers.iter().enumerate() {
            let out: u64 = c.moved[at].iter().sum();
            let into: u64 = c.moved.iter().map(|row| row[at]).sum();
            let own = [
                tier.capacity,
                tier.free,
                tier.claimed,
                tier.pinned,
                tier.idle,
                tier.quarantined,
                tier.takeable,
                tier.promised,
                c.hits[at],
                c.evicted[at],
                out,
                into,
            ];
            let word = Tier(at).name();
            let names = TIER_SCHEMA
                .iter()
                .map(|field| format!("{word}_{}", field.name));
            values.extend(names.zip(own));
        }
        values
    }
}
