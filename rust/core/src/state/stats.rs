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
            "running sequences, and ended ones whose loads have not landed yet";
        parked: "sequences", Gauge "parked",
            "parked sequences";
        tickets: "tickets", Gauge "tickets",
            "open reservations, for requests that are not running yet or are about to be parked";
        flights: "flights", Gauge "flights",
            "plans in flight, including those whose outcome is unknown";
        voiding: "flights", Gauge "flights_voiding",
            "flights by which tiers that outlive the process drop records of what was forgotten: durable there when there is none";
        blocks: "blocks", Gauge "blocks",
            "blocks in the trie, including the anonymous ones of parked sequences";
        epoch: "clears", Counter "clears",
            "how often the cache was cleared";
        largest as "largest_begin": "blocks", Gauge "largest_begin",
            "blocks of the largest begin so far: where `ahead` is not given, as many next victims of the device have a copy below";
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
            "begins that were served";
        resumed: "sequences", Counter "sequences{event=resumed}",
            "parked sequences that were resumed";
        forked: "sequences", Counter "sequences{event=forked}",
            "forks";
        finished: "sequences", Counter "sequences{event=finished}",
            "leases that were finished";
        parked as "parkings": "sequences", Counter "sequences{event=parked}",
            "leases that were parked";
        broken: "sequences", Counter "sequences{event=broken}",
            "parked sequences whose keeps were broken";
        leaked: "handles", Counter "handles_leaked",
            "handles that were dropped without the verb that ends them; what they held came back late";
        no_room: "requests", Counter "refusals{what=begin}",
            "begins, forks, resumes and tickets that found no room";
        unserved: "rows", Counter "refusals{what=grow}",
            "rows of grows that found no room";
        tokens: "tokens", Counter "prompt_tokens",
            "prompt tokens of all begins";
        cached: "tokens", Counter "cached_tokens",
            "of these, tokens whose KV was found";
        slow: "blocks", Counter "miss_blocks{reason=slow}",
            "blocks that begins found below and did not load: computing them is faster, or `load` is less";
        sealed: "blocks", Counter "sealed_blocks",
            "blocks that were published, or were found published when they were sealed";
        duplicates: "blocks", Counter "duplicate_blocks",
            "of these, blocks that were computed twice";
        forgotten: "blocks", Counter "forgotten_blocks",
            "blocks that were forgotten, by their keys or their salt, with all that stood on them";
        deduped: "blocks", Counter "deduped_blocks",
            "of those, blocks given up in place while their sequences ran";
        flights as "plans": "plans", Counter "plans",
            "plans made";
        failed: "blocks", Counter "copies_failed{cause=failed}",
            "copies that failed";
        corrupt: "blocks", Counter "copies_failed{cause=corrupt}",
            "copies below that failed their checksum and were dropped";
        overdue: "flights", Counter "flights_overdue",
            "flights that were reported past their deadline: their destinations are quarantined";
        late: "outcomes", Counter "outcomes_late",
            "outcomes that were reported twice or too late; they change nothing";
        rejected: "handles", Counter "handles_rejected",
            "spent or foreign handles that were rejected";
        unseen as "missed_unseen": "blocks", Counter "miss_blocks{reason=unseen}",
            "full blocks that begins did not find, behind one that nobody remembers; evicted ones are among them where no keys are remembered";
        gone as "missed_evicted": "blocks", Counter "miss_blocks{reason=evicted}",
            "the same, behind one that was evicted, as far as keys are remembered: with `second-touch`, `learned` or `ghosts`; else 0";
        filling as "missed_filling": "blocks", Counter "miss_blocks{reason=filling}",
            "the same, behind one that was in flight";
        withheld as "missed_promised": "blocks", Counter "miss_blocks{reason=promised}",
            "the same, where they, or loading them, would use what is promised to others";
        astray as "missed_other": "blocks", Counter "miss_blocks{reason=other}",
            "the same, behind keys that contradict others, or in more pieces than one begin loads";
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
            "slots that have not retired, not counting null slots";
        free: "slots", Gauge "slots{tier=*,set=free}",
            "slots that hold nothing";
        claimed: "slots", Gauge "slots{tier=*,set=claimed}",
            "slots that a begin or a grow has taken, without content yet";
        pinned: "slots", Gauge "slots{tier=*,set=pinned}",
            "slots held by leases and keeps, or being filled";
        idle: "slots", Gauge "slots{tier=*,set=idle}",
            "published blocks that no sequence uses";
        quarantined: "slots", Gauge "slots{tier=*,set=quarantined}",
            "slots that a copy with an unknown outcome may still write to";
        takeable: "slots", Gauge "slots_takeable{tier=*}",
            "idle slots that may be evicted now";
        promised: "slots", Gauge "slots_promised{tier=*}",
            "slots kept obtainable for growth, tickets and keeps";
    }
}

numbers! {
    /// What has happened to one tier, out of the counters of all.
    struct Traffic {
        hits: "blocks", Counter "hit_blocks{tier=*}",
            "blocks that begins found here";
        evicted: "blocks", Counter "evicted_blocks{tier=*}",
            "blocks evicted from here";
        dropped: "blocks", Counter "dropped_blocks{tier=*}",
            "of these, blocks that no tier has then, where there is a tier below";
        unwritten: "blocks", Counter "unwritten_blocks{tier=*}",
            "blocks that left the tier without a copy below, where `write` is \"through\"";
        out: "blocks", Counter "copied_blocks{from=*}",
            "blocks in plans that read from here";
        into as "in": "blocks", Counter "copied_blocks{to=*}",
            "blocks in plans that write here";
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
