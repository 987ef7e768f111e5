//! Counters and sizes: plain numbers, read in one lock. Each has one row here, which makes its field,
//! its entry in the schema and its value.

use crate::base::{MAX_TIERS, Set, Tier};
use crate::tiers::Ledger;

/// Whether a number goes up alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It counts what has happened, and never falls.
    Counter,
    /// It says what is now.
    Gauge,
}

/// One entry of the schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name in [`Stats::values`]; a tier's begin with the tier's word.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Whether it may fall.
    pub kind: Kind,
    /// Its Prometheus family and labels, `*` for the tier's word; a prefix and the ending of counters
    /// are added outside.
    pub metric: &'static str,
    /// What it means.
    pub help: &'static str,
}

/// A struct of numbers: `field: unit, kind, metric, meaning;`, and `as` where the schema has another
/// name for it.
/// The fields after `..` are no numbers of the schema.
macro_rules! numbers {
    (
        $(#[$about:meta])*
        $visible:vis struct $name:ident {
            $($field:ident $(as $word:literal)?: $unit:literal, $kind:ident $metric:literal, $help:literal;)*
            $(.. { $($(#[$doc:meta])* $other:ident: $type:ty,)* })?
        }
    ) => {
        $(#[$about])*
        $visible struct $name {
            $(#[doc = $help] pub $field: u64,)*
            $($($(#[$doc])* pub $other: $type,)*)?
        }

        impl $name {
            const FIELDS: &[Field] = &[$(Field {
                name: numbers!(@ $field $($word)?),
                unit: $unit,
                kind: Kind::$kind,
                metric: $metric,
                help: $help,
            },)*];

            fn numbers(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((numbers!(@ $field $($word)?), self.$field),)*].into_iter()
            }
        }
    };
    (@ $field:ident) => { stringify!($field) };
    (@ $field:ident $word:literal) => { $word };
}

numbers! {
    /// One reading of everything.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    pub struct Stats {
        leases: "leases", Gauge "leases",
            "running sequences, and ended sequences whose loads are still in flight";
        parked: "sequences", Gauge "parked",
            "parked sequences";
        tickets: "tickets", Gauge "tickets",
            "open reservations, for requests that are not running yet or are about to be parked";
        held_blocks: "blocks", Gauge "held_blocks",
            "blocks of the device that are held for other engines to read";
        flights: "flights", Gauge "flights",
            "copy plans in flight, including plans with an unknown outcome";
        voiding: "flights", Gauge "flights_voiding",
            "flights that remove the records of forgotten blocks from tiers that outlive the process; at 0, the removal is durable";
        blocks: "blocks", Gauge "blocks",
            "blocks in the prefix index, including blocks of parked sequences that have no key";
        epoch: "clears", Counter "clears",
            "how often the cache was cleared";
        largest as "largest_begin": "blocks", Gauge "largest_begin",
            "blocks of the largest admission so far; without `ahead`, this number of next victims of the device have a copy on a lower tier";
        .. {
            /// What has happened.
            counters: Counters,
            /// Per tier, the device first.
            tiers: Vec<TierStats>,
        }
    }
}

numbers! {
    /// What has happened since the yard was made.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Counters {
        begun: "sequences", Counter "sequences{event=begun}",
            "sequences that were admitted (begins)";
        resumed: "sequences", Counter "sequences{event=resumed}",
            "parked sequences that were resumed";
        forked: "sequences", Counter "sequences{event=forked}",
            "sequences that were forked from another sequence";
        finished: "sequences", Counter "sequences{event=finished}",
            "sequences that were finished";
        parked as "parkings": "sequences", Counter "sequences{event=parked}",
            "sequences that were parked (preempted, KV kept)";
        broken: "sequences", Counter "sequences{event=broken}",
            "parked sequences that lost the protection of their KV";
        leaked: "handles", Counter "handles_leaked",
            "handles that the engine dropped without finishing them; their blocks were released late";
        no_room: "requests", Counter "refusals{what=begin}",
            "admissions, forks, resumes and reservations that found no room";
        unserved: "rows", Counter "refusals{what=grow}",
            "decoding rows that found no room to grow";
        tokens: "tokens", Counter "prompt_tokens",
            "prompt tokens of all admissions";
        cached: "tokens", Counter "cached_tokens",
            "prompt tokens whose KV was found";
        slow: "blocks", Counter "miss_blocks{reason=slow}",
            "blocks found on a lower tier and not loaded, because computing is faster or `load` is smaller";
        sealed: "blocks", Counter "sealed_blocks",
            "blocks that were sealed, including blocks that another sequence had already published";
        duplicates: "blocks", Counter "duplicate_blocks",
            "sealed blocks that had already been published, and were computed twice";
        forgotten: "blocks", Counter "forgotten_blocks",
            "blocks that were forgotten by key or salt, including their continuations";
        deduped: "blocks", Counter "deduped_blocks",
            "duplicate blocks that were released while their sequences ran";
        evicted_ahead: "blocks", Counter "evicted_ahead_blocks",
            "blocks that were evicted from the device ahead of need, to keep `spare` slots free; `device_evicted` includes them";
        flights as "plans": "plans", Counter "plans",
            "copy plans that were made";
        failed: "blocks", Counter "copies_failed{cause=failed}",
            "blocks whose copy failed";
        corrupt: "blocks", Counter "copies_failed{cause=corrupt}",
            "blocks on lower tiers that failed their checksum and were dropped";
        overdue: "flights", Counter "flights_overdue",
            "flights that were reported after their deadline; their destinations are quarantined";
        late: "outcomes", Counter "outcomes_late",
            "reports of copies that arrived twice or too late, and changed nothing";
        rejected: "handles", Counter "handles_rejected",
            "handles that were rejected because they were used up or belonged to another cache";
        unseen as "missed_unseen": "blocks", Counter "miss_blocks{reason=unseen}",
            "full prompt blocks that were not found because the first missing block is unknown; includes evicted blocks if no keys are remembered";
        gone as "missed_evicted": "blocks", Counter "miss_blocks{reason=evicted}",
            "full prompt blocks that were not found because the first missing block was evicted; 0 unless keys are remembered (`second-touch`, `learned` or `ghosts`)";
        filling as "missed_filling": "blocks", Counter "miss_blocks{reason=filling}",
            "full prompt blocks that were not found because the first missing block was in flight";
        withheld as "missed_promised": "blocks", Counter "miss_blocks{reason=promised}",
            "full prompt blocks that were not used because the blocks, or the slots to load them, are promised to others";
        unproven as "missed_unproven": "blocks", Counter "miss_blocks{reason=unproven}",
            "full prompt blocks that were found on `remote` by an adopted name alone, and whose load failed; if the load of such a block lands, the block counts as a hit of `remote` from then on, and not earlier";
        astray as "missed_other": "blocks", Counter "miss_blocks{reason=other}",
            "full prompt blocks that were not used because their keys contradict other keys, or because they need more loads than one admission makes";
        .. {
            /// Blocks that begins found, per tier.
            hits: [u64; MAX_TIERS],
            /// Blocks evicted, per tier.
            evicted: [u64; MAX_TIERS],
            /// Of these, blocks that were lost by it where a tier below might have had them, per tier.
            dropped: [u64; MAX_TIERS],
            /// Blocks that left a tier without the copy below that `through` asks for, per tier.
            unwritten: [u64; MAX_TIERS],
            /// Blocks in plans, by the tier that they read from and the tier that they write to.
            moved: [[u64; MAX_TIERS]; MAX_TIERS],
        }
    }
}

numbers! {
    /// The sets of one tier, in slots.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct TierStats {
        capacity: "slots", Gauge "tier_slots{tier=*}",
            "slots of the tier, without null slots and slots removed by a shrink";
        free: "slots", Gauge "slots{tier=*,set=free}",
            "slots without content";
        claimed: "slots", Gauge "slots{tier=*,set=claimed}",
            "slots allocated to a sequence, without content yet";
        pinned: "slots", Gauge "slots{tier=*,set=pinned}",
            "slots used by running or parked sequences, or being filled";
        idle: "slots", Gauge "slots{tier=*,set=idle}",
            "slots of published blocks that no sequence uses";
        quarantined: "slots", Gauge "slots{tier=*,set=quarantined}",
            "slots that a copy with an unknown outcome may still write to";
        takeable: "slots", Gauge "slots_takeable{tier=*}",
            "idle slots that may be evicted now";
        promised: "slots", Gauge "slots_promised{tier=*}",
            "slots promised to growth, reservations and parked sequences";
    }
}

numbers! {
    /// What has happened to one tier, out of the counters of all.
    struct Traffic {
        hits: "blocks", Counter "hit_blocks{tier=*}",
            "prompt blocks found on this tier";
        evicted: "blocks", Counter "evicted_blocks{tier=*}",
            "blocks evicted from this tier";
        dropped: "blocks", Counter "dropped_blocks{tier=*}",
            "evicted blocks that no tier has any more, although there is a lower tier";
        unwritten: "blocks", Counter "unwritten_blocks{tier=*}",
            "blocks that were evicted before `write` \"through\" had copied them to a lower tier";
        out: "blocks", Counter "copied_blocks{from=*}",
            "blocks in copy plans from this tier";
        into as "in": "blocks", Counter "copied_blocks{to=*}",
            "blocks in copy plans to this tier";
    }
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

impl Traffic {
    fn of(counters: &Counters, tier: usize) -> Self {
        Self {
            hits: counters.hits[tier],
            evicted: counters.evicted[tier],
            dropped: counters.dropped[tier],
            unwritten: counters.unwritten[tier],
            out: counters.moved[tier].iter().sum(),
            into: counters.moved.iter().map(|row| row[tier]).sum(),
        }
    }
}

impl Stats {
    /// What [`Self::values`] gives for every yard, in that order.
    pub fn schema() -> impl Iterator<Item = &'static Field> {
        Self::FIELDS.iter().chain(Counters::FIELDS)
    }

    /// What follows for each tier; the names begin with the tier's word and an underscore.
    pub fn tier_schema() -> impl Iterator<Item = &'static Field> {
        TierStats::FIELDS.iter().chain(Traffic::FIELDS)
    }

    /// The values of [`Self::schema`], then of [`Self::tier_schema`] for each tier, then blocks in plans
    /// for each of [`Self::pairs`], with their names.
    pub fn values(&self) -> Vec<(String, u64)> {
        let own = self.numbers().chain(self.counters.numbers());
        let mut values: Vec<_> = own.map(|(name, value)| (name.to_owned(), value)).collect();
        // What a yard has no tier for is 0: all yards have the same schema.
        let none = TierStats::default();
        for at in 0..MAX_TIERS {
            let tier = self.tiers.get(at).unwrap_or(&none);
            let word = Tier(at).name();
            let traffic = Traffic::of(&self.counters, at);
            let own = tier.numbers().chain(traffic.numbers());
            values.extend(own.map(|(name, value)| (format!("{word}_{name}"), value)));
        }
        for (from, to) in Self::pairs() {
            let name = format!("copied_{}_to_{}", from.name(), to.name());
            values.push((name, self.counters.moved[from.at()][to.at()]));
        }
        values
    }

    /// The pairs of tiers between which there are copies: below the device none stays on its tier.
    pub fn pairs() -> impl Iterator<Item = (Tier, Tier)> {
        let every = (0..MAX_TIERS).flat_map(|from| (0..MAX_TIERS).map(move |to| (from, to)));
        let some = every.filter(|&(from, to)| from != to || from == 0);
        some.map(|(from, to)| (Tier(from), Tier(to)))
    }
}
