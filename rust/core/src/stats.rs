//! Counters and sizes: plain numbers, read in one lock. Each has one row here, which makes its field,
//! its entry in the schema and its value.

use crate::id::{MAX_TIERS, Set, Tier};
use crate::ledger::Ledger;

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

/// A struct of numbers: `field: unit, meaning;`, and `as` where the schema has another name for it.
/// The fields after `..` are no numbers of the schema.
macro_rules! numbers {
    (
        $(#[$about:meta])*
        $visible:vis struct $name:ident {
            $($field:ident $(as $word:literal)?: $unit:literal, $help:literal;)*
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
        leases: "leases", "running sequences, and ended ones whose loads have not landed yet";
        parked: "sequences", "parked sequences";
        tickets: "tickets",
            "open reservations, for requests that are not running yet or are about to be parked";
        flights: "flights", "plans in flight, including those whose outcome is unknown";
        blocks: "blocks", "blocks in the trie, including the anonymous ones of parked sequences";
        epoch: "clears", "how often the cache was cleared";
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
        begun: "sequences", "begins that were served";
        resumed: "sequences", "parked sequences that were resumed";
        forked: "sequences", "forks";
        finished: "sequences", "leases that were finished";
        parked as "parkings": "sequences", "leases that were parked";
        broken: "sequences", "parked sequences whose keeps were broken";
        leaked: "handles",
            "handles that were dropped without the verb that ends them; what they held came back late";
        no_room: "requests", "begins, forks, resumes and tickets that found no room";
        unserved: "rows", "rows of grows that found no room";
        tokens: "tokens", "prompt tokens of all begins";
        cached: "tokens", "of these, tokens whose KV was found";
        slow: "blocks",
            "blocks that begins found below and did not load: computing them is faster, or `load` is less";
        sealed: "blocks", "blocks that were published, or were found published when they were sealed";
        duplicates: "blocks", "of these, blocks that were computed twice";
        deduped: "blocks", "of those, blocks given up in place while their sequences ran";
        flights as "plans": "plans", "plans made";
        failed: "blocks", "copies that failed";
        corrupt: "blocks", "copies below that failed their checksum and were dropped";
        overdue: "flights",
            "flights that were reported past their deadline: their destinations are quarantined";
        late: "outcomes", "outcomes that were reported twice or too late; they change nothing";
        rejected: "handles", "spent or foreign handles that were rejected";
        .. {
            /// Blocks that begins found, per tier.
            hits: [u64; MAX_TIERS],
            /// Blocks evicted, per tier.
            evicted: [u64; MAX_TIERS],
            /// Blocks in plans, by the tier that they read from and the tier that they write to.
            moved: [[u64; MAX_TIERS]; MAX_TIERS],
        }
    }
}

numbers! {
    /// The sets of one tier, in slots.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct TierStats {
        capacity: "slots", "slots that have not retired, not counting null slots";
        free: "slots", "slots that hold nothing";
        claimed: "slots", "slots that a begin or a grow has taken, without content yet";
        pinned: "slots", "slots held by leases and keeps, or being filled";
        idle: "slots", "published blocks that no sequence uses";
        quarantined: "slots", "slots that a copy with an unknown outcome may still write to";
        takeable: "slots", "idle slots that may be evicted now";
        promised: "slots", "slots kept obtainable for growth, tickets and keeps";
    }
}

numbers! {
    /// What has happened to one tier, out of the counters of all.
    struct Traffic {
        hits: "blocks", "blocks that begins found here";
        evicted: "blocks", "blocks evicted from here";
        out: "blocks", "blocks in plans that read from here";
        into as "in": "blocks", "blocks in plans that write here";
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

    /// The values of [`Self::schema`], then of [`Self::tier_schema`] for each tier, with their names.
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
        values
    }
}
