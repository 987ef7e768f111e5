//! The yard of a further group of layers, by seed: rows are sets of blocks in any order, every block has bytes,
//! and each that comes up is checked. Every other life is compared with plain lists (laws G4 and G8).

use crate::naive::{End, Naive, Why};
use crate::world::Chance;
use blockyard_core::{
    Cache, Condemned, Config, EvictionPolicy, Extras, Fetch, Key, KeyHash, Namespace, Outcome,
    ParkedId, Plan, Presence, Stop, Tier, Wanted, WritePolicy,
};
use std::collections::BTreeMap;

const SIZE: usize = 2;
/// Keys that there are.
const KEYS: usize = 24;
const POLICIES: [EvictionPolicy; 3] = [
    EvictionPolicy::Recency,
    EvictionPolicy::Heap,
    EvictionPolicy::Learned,
];

/// What the lives have met, by name.
pub(crate) type Seen = BTreeMap<&'static str, u32>;

pub(crate) const MET: [&str; 12] = [
    "a kept set",
    "a kept set that came back",
    "a kept set that was broken",
    "a keep without room",
    "a fetch",
    "a fetch that has to wait",
    "a fetch of what is missing",
    "an offload with a hole",
    "an id that is being filled",
    "a copy that failed",
    "a bad copy",
    "a copy without a known end",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Block {
    bytes: u64,
    flipped: bool,
}

struct Flying {
    plan: Plan,
    /// What was read when it began, where it reads at once.
    early: Option<Vec<Block>>,
    unknown: bool,
    /// What has to come up by it.
    wanted: Vec<u64>,
    kept: Option<ParkedId>,
}

struct Kept {
    id: ParkedId,
    bytes: Vec<u64>,
    tokens: usize,
}

struct Sets {
    cache: Cache,
    chance: Chance,
    keys: Vec<Key>,
    /// How often it was cleared: bytes of before are wrong.
    epoch: u64,
    engine: Vec<Block>,
    below: [Vec<Block>; 2],
    air: Vec<Flying>,
    kept: Vec<Kept>,
    named: u64,
    naive: Option<Naive>,
    seen: Seen,
}

pub(crate) fn live(seed: u64) -> Seen {
    let mut world = Sets::new(seed);
    for _ in 0..150 {
        world.act();
    }
    world.end()
}

impl Sets {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let (host, disk) = ([0, 5, 9][chance.below(3)], [0, 6, 14][chance.below(3)]);
        let pick = |at: usize| [WritePolicy::OnEvict, WritePolicy::Through][at];
        let config = Config {
            block_size: SIZE as u32,
            slots: vec![16, host, disk],
            engine: true,
            linked: false,
            policy: POLICIES[chance.below(POLICIES.len())],
            writes_below: vec![pick(chance.below(2))],
            ..Config::default()
        };
        let cache = Cache::new(config, KeyHash::default(), &Namespace::default()).expect("valid");
        let mut chain = cache.chain(Extras::default()).expect("plain");
        let tokens: Vec<u32> = (0..(KEYS * SIZE) as u32).collect();
        chain.extend(&tokens).expect("tokens");
        let naive = Naive::new(SIZE, [host, disk].map(|slots| slots as usize), false);
        Self {
            keys: chain.keys().to_vec(),
            cache,
            chance,
            epoch: 0,
            engine: vec![Block::default(); 16],
            below: [vec![Block::default(); 32], vec![Block::default(); 32]],
            air: Vec::new(),
            kept: Vec::new(),
            named: 0,
            naive: seed.is_multiple_of(2).then_some(naive),
            seen: Seen::new(),
        }
    }

    fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// So many of these numbers, in any order.
    fn draw(&mut self, of: usize, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of).collect();
        let drawn = (0..count.min(of)).map(|_| all.swap_remove(self.chance.below(all.len())));
        drawn.collect()
    }

    fn bytes(&self, key: usize) -> u64 {
        (self.epoch << 32) | (key as u64 + 1)
    }

    fn is_filled(&self, id: u32) -> bool {
        let into =
            |one: &Flying| one.plan.to == Tier::DEVICE && one.plan.destinations.contains(&id);
        self.air.iter().any(into)
    }

    /// Ids that the engine may write; it has written these blocks there.
    fn written(&mut self, bytes: &[u64]) -> Option<Vec<u32>> {
        let free = |id: &u32| self.cache.lock().must_finish(&[*id]) == Ok(None);
        let free: Vec<u32> = (0..16).filter(free).collect();
        let ids = self.draw(free.len(), bytes.len());
        let ids: Vec<u32> = ids.into_iter().map(|at| free[at]).collect();
        for (&id, &bytes) in ids.iter().zip(bytes) {
            self.engine[id as usize] = Block {
                bytes,
                flipped: false,
            };
        }
        (ids.len() == bytes.len()).then_some(ids)
    }

    fn offload(&mut self) {
        let blocks = 1 + self.chance.below(5);
        let row = self.draw(KEYS, blocks);
        let bytes: Vec<u64> = row.iter().map(|&key| self.bytes(key)).collect();
        let Some(mut ids) = self.written(&bytes) else {
            return;
        };
        if let Some(id) = (0..16).find(|&id| self.is_filled(id)) {
            ids[0] = id;
        }
        let keys: Vec<Key> = row.iter().map(|&key| self.keys[key]).collect();
        // A block that is there needs no copy, whatever is done to the id.
        let goes = |at: &usize| {
            let filled = self.is_filled(ids[*at]);
            !filled || self.cache.lock().which(&keys[*at..=*at]) != Ok(vec![Presence::Missing])
        };
        let given: Vec<usize> = (0..row.len()).filter(goes).collect();
        if given.len() < row.len() {
            self.note("an id that is being filled");
        }
        let asked: Vec<Key> = given.iter().map(|&at| keys[at]).collect();
        let wanted = self
            .naive
            .as_mut()
            .map(|naive| naive.offload(&asked, 0, asked.len()));
        let plan = self
            .cache
            .lock()
            .offload(&keys, &ids, 0)
            .expect("the engine's");
        let Some((naive, wanted)) = self.naive.as_mut().zip(wanted) else {
            return;
        };
        let copied: Vec<u32> = wanted.iter().map(|&at| ids[given[at]]).collect();
        assert_eq!(plan.as_ref().map_or(&[][..], |plan| &plan.sources), copied);
        if let Some(plan) = &plan {
            naive.offloaded(&asked, (0, asked.len()), &wanted, plan);
        }
        if wanted.first().is_some_and(|&first| first > 0)
            || wanted.windows(2).any(|two| two[0] + 1 < two[1])
        {
            self.note("an offload with a hole");
        }
    }

    fn keep(&mut self) {
        let full = self.chance.below(5);
        let row = self.draw(KEYS, full);
        let mut bytes: Vec<u64> = row.iter().map(|&key| self.bytes(key)).collect();
        let mut tokens = full * SIZE;
        if full == 0 || self.chance.one_in(2) {
            self.named += 1;
            bytes.push(u64::MAX - self.named);
            tokens += 1;
        }
        let Some(ids) = self.written(&bytes) else {
            return;
        };
        let keys: Vec<Key> = row.iter().map(|&key| self.keys[key]).collect();
        let wanted = self
            .naive
            .as_ref()
            .map(|naive| naive.home(&keys, bytes.len()));
        let kept = self.cache.lock().save_request(&keys, &ids, tokens as u64);
        if let Some(wanted) = wanted {
            assert_eq!(kept.is_ok(), wanted.is_some(), "{kept:?}");
        }
        let Ok((id, plan)) = kept else {
            return self.note("a keep without room");
        };
        if let Some(naive) = self.naive.as_mut() {
            let places = naive.kept(id, &keys, tokens, plan.as_ref());
            let copied: Vec<u32> = places.iter().map(|&at| ids[at]).collect();
            assert_eq!(plan.as_ref().map_or(&[][..], |plan| &plan.sources), copied);
        }
        self.kept.push(Kept { id, bytes, tokens });
        self.note("a kept set");
    }

    /// Brings some up, or a kept set, into ids that are being used by nothing.
    fn fetch(&mut self) {
        let kept = (!self.kept.is_empty() && self.chance.one_in(2))
            .then(|| self.chance.below(self.kept.len()));
        let blocks = 1 + self.chance.below(4);
        let row = self.draw(KEYS, blocks);
        let keys: Vec<Key> = row.iter().map(|&key| self.keys[key]).collect();
        let own = kept.map(|at| self.kept[at].id);
        let (what, bytes) = match kept {
            None => (
                Wanted::Keys(&keys),
                row.iter().map(|&key| self.bytes(key)).collect(),
            ),
            Some(at) => (Wanted::Kept(self.kept[at].id), self.kept[at].bytes.clone()),
        };
        let broken = own.is_some_and(|id| {
            self.cache
                .lock()
                .view_parked(id)
                .is_ok_and(|view| view.broken)
        });
        let bytes: Vec<u64> = if broken { Vec::new() } else { bytes };
        let Some(ids) = self.written(&vec![0; bytes.len()]) else {
            return;
        };
        let wanted = self.naive.as_ref().map(|naive| match own {
            None => naive.found(&keys),
            Some(id) => naive.found_kept(id, ids.len()),
        });
        if let (None, Some(wanted)) = (own, &wanted) {
            self.find(&keys, wanted);
        }
        let fetched = self
            .cache
            .lock()
            .fetch(what, &ids, 0)
            .expect("the engine's");
        let Fetch::Plans(plans) = fetched else {
            return self.note("a fetch that has to wait");
        };
        let mut first = 0;
        for plan in plans {
            if let (Some(naive), Some((tiers, _))) = (self.naive.as_mut(), &wanted) {
                assert_eq!(
                    vec![plan.from.0 - 1; plan.len()],
                    tiers[first..first + plan.len()]
                );
                naive.launched(&plan, Why::Fetch);
            }
            assert_eq!(plan.destinations, ids[first..first + plan.len()]);
            let wanted = bytes[first..first + plan.len()].to_vec();
            first += plan.len();
            self.fly(plan, wanted, own);
        }
        if first > 0 {
            self.note("a fetch");
        }
    }

    /// A find counts what the lists have, tier by tier.
    fn find(&mut self, keys: &[Key], (tiers, end): &(Vec<usize>, End)) {
        let found = self.cache.lock().find(keys, 0).expect("the engine's");
        let count = |tier: usize| tiers.iter().filter(|&&own| own == tier).count() as u32;
        assert_eq!(found.hits, [0, count(0), count(1), 0]);
        assert_eq!(found.stop == Stop::Missing, *end == End::Missing);
        if *end == End::Missing {
            self.note("a fetch of what is missing");
        }
    }

    fn fly(&mut self, plan: Plan, wanted: Vec<u64>, kept: Option<ParkedId>) {
        if self.air.iter().any(|one| one.plan.flight == plan.flight) {
            return;
        }
        let early = self.chance.one_in(2).then(|| self.read(&plan));
        self.air.push(Flying {
            plan,
            early,
            unknown: false,
            wanted,
            kept,
        });
    }

    fn read(&self, plan: &Plan) -> Vec<Block> {
        let tier = match plan.from.0 {
            0 => &self.engine,
            below => &self.below[below - 1],
        };
        plan.sources
            .iter()
            .map(|&slot| tier[slot as usize])
            .collect()
    }

    /// One flight ends, in any order, well or not; or its deadline passes.
    fn land(&mut self) {
        if self.air.is_empty() {
            return;
        }
        let at = self.chance.below(self.air.len());
        let flight = self.air[at].plan.flight;
        if !self.air[at].unknown && self.chance.one_in(8) {
            self.air[at].unknown = true;
            self.note("a copy without a known end");
            assert_eq!(self.cache.lock().mark_unknown(flight), Ok(true));
            if let Some(naive) = self.naive.as_mut() {
                naive.unknown(flight);
            }
            return;
        }
        let Flying {
            plan,
            early,
            unknown,
            wanted,
            kept,
        } = self.air.swap_remove(at);
        let read = early.unwrap_or_else(|| self.read(&plan));
        let mut good = plan.len();
        if self.chance.one_in(5) {
            good = self.chance.below(plan.len() + 1);
            self.note("a copy that failed");
        }
        let bad = |block: &Block| block.flipped && plan.from > Tier::DEVICE;
        let bad = read[..good].iter().position(bad);
        good = bad.unwrap_or(good);
        for (&block, &slot) in read.iter().zip(&plan.destinations) {
            match plan.to.0 {
                0 => self.engine[slot as usize] = block,
                below => self.below[below - 1][slot as usize] = block,
            }
        }
        if !unknown {
            let came: Vec<u64> = read[..good].iter().map(|block| block.bytes).collect();
            let wanted = &wanted[..good.min(wanted.len())];
            assert_eq!(came[..wanted.len()], *wanted, "what comes up");
        }
        let outcome = match bad {
            Some(_) => Outcome::corrupt(plan.flight, good as u32),
            None => Outcome::failed(plan.flight, good as u32),
        };
        if bad.is_some() {
            self.note("a bad copy");
        }
        self.cache.lock().commit(&[outcome], None).expect("known");
        if let Some(naive) = self.naive.as_mut() {
            naive.landed(&plan, good, bad.is_some());
        }
        let back = |own: &Kept| Some(own.id) == kept && own.bytes.len() == good;
        if !unknown && self.kept.iter().any(back) {
            self.note("a kept set that came back");
        }
    }

    fn give_up(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let at = self.chance.below(self.kept.len());
        let own = self.kept.swap_remove(at);
        self.cache.lock().abandon(own.id).expect("kept");
        if let Some(naive) = self.naive.as_mut() {
            naive.abandon(own.id);
        }
    }

    fn below(&mut self) {
        let blocks = 1 + self.chance.below(4) as u32;
        match self.chance.below(6) {
            0 | 1 => {
                let plan = self.cache.lock().demote(Tier::HOST, blocks);
                if let (Some(naive), Some(plan)) = (self.naive.as_mut(), &plan) {
                    naive.launched(plan, Why::Below(None));
                }
            }
            2 if !self.kept.is_empty() => {
                let id = self.kept[self.chance.below(self.kept.len())].id;
                let moved = self
                    .cache
                    .lock()
                    .demote_parked(id, blocks, Some(Tier::DISK));
                if let (Some(naive), Ok(plan)) = (self.naive.as_mut(), moved) {
                    naive.moved(id, blocks as usize, plan.as_ref());
                    if let Some(plan) = plan {
                        naive.launched(&plan, Why::Below(Some(id)));
                    }
                }
            }
            3 => {
                let (tier, slot) = (self.chance.below(2), self.chance.below(20));
                self.below[tier][slot].flipped = true;
            }
            _ => {
                let row = self.draw(KEYS, 5);
                let keys: Vec<Key> = row.iter().map(|&key| self.keys[key]).collect();
                self.cache
                    .lock()
                    .used(&[&keys], None)
                    .expect("the engine's");
            }
        }
    }

    /// What the lists do not know.
    fn elsewhere(&mut self) {
        let tier = Tier(1 + self.chance.below(2));
        let slot = self.chance.below(9) as u32;
        match self.chance.below(12) {
            0 | 1 => _ = self.cache.lock().withdraw(tier, &[slot]),
            2 | 3 => _ = self.cache.lock().resize(tier, 2 + slot),
            4..9 => {
                let row = self.draw(KEYS, 2);
                let keys: Vec<Key> = row.iter().map(|&key| self.keys[key]).collect();
                let force = self.chance.one_in(2);
                let done = self.cache.forget(Condemned::Keys(&keys), force);
                let done = done.expect("there is memory");
                let gone = self.cache.lock().which(&keys).expect("the engine's");
                let spared = gone.iter().filter(|&&one| one != Presence::Missing).count();
                assert!(
                    spared == 0 || !(force || done.kept.is_empty()),
                    "{done:?} {gone:?}"
                );
            }
            9 => {
                self.cache.lock().clear();
                self.epoch += 1;
                for one in &mut self.air {
                    one.wanted.clear();
                }
            }
            _ => {}
        }
    }

    fn act(&mut self) {
        match self.chance.below(16) {
            0..3 => self.offload(),
            3..5 => self.keep(),
            5..8 => self.fetch(),
            8 if self.chance.one_in(2) => self.give_up(),
            8..10 => self.below(),
            10 if self.naive.is_none() => self.elsewhere(),
            _ => self.land(),
        }
        let plans = self.cache.lock().dispatch();
        for plan in plans {
            self.fly(plan, Vec::new(), None);
        }
        self.check();
    }

    fn check(&mut self) {
        assert_eq!(self.cache.audit(), None);
        let before = self.cache.lock().digest();
        let found = self.cache.lock().which(&self.keys).expect("the engine's");
        assert_eq!(self.cache.lock().digest(), before, "which is a question");
        for (key, found) in self.keys.iter().zip(found) {
            let alone = self.cache.lock().find(&[*key], 0).expect("the engine's");
            let alone = match alone.stop {
                Stop::Whole => Presence::Ready,
                Stop::Filling(_) => Presence::Filling,
                _ => Presence::Missing,
            };
            assert_eq!(found, alone, "as a find of this key alone");
            let Some(naive) = &self.naive else { continue };
            let wanted = match naive.which(key) {
                End::Whole => Presence::Ready,
                End::Filling(_) => Presence::Filling,
                End::Missing | End::Scattered => Presence::Missing,
            };
            assert_eq!(found, wanted, "as the lists say");
        }
        let stats = self.cache.lock().stats();
        for tier in [Tier::HOST, Tier::DISK] {
            let Some(naive) = &self.naive else { break };
            let own = &stats.tiers[tier.0];
            let told = (
                own.capacity - own.free,
                (own.free + own.takeable).cast_signed(),
            );
            let (used, room) = naive.tier(tier);
            assert_eq!(
                told,
                (used as u64, room as i64),
                "in use and room of {}",
                tier.name()
            );
        }
        let mut broken = 0;
        for own in &self.kept {
            let view = self.cache.lock().view_parked(own.id).expect("kept");
            let told = (view.broken, view.blocks as usize);
            let whole = (false, own.tokens.div_ceil(SIZE));
            assert!(
                told == whole || told == (true, 0),
                "a set is whole or broken: {told:?}"
            );
            if let Some(naive) = &self.naive {
                assert_eq!(told.1, naive.view(own.id).1);
            }
            broken += u32::from(view.broken);
        }
        if broken > 0 {
            self.note("a kept set that was broken");
        }
    }

    fn end(mut self) -> Seen {
        while !self.air.is_empty() {
            self.land();
            self.check();
        }
        while !self.kept.is_empty() {
            self.give_up();
        }
        self.check();
        let stats = self.cache.lock().stats();
        assert_eq!((stats.parked, stats.flights), (0, 0));
        for tier in &stats.tiers {
            let held = [tier.claimed, tier.pinned, tier.quarantined, tier.promised];
            assert_eq!(held, [0; 4]);
        }
        self.seen
    }
}
