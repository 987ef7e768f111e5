//! An engine that gives out its blocks itself, by seed: every block has bytes, copies read and write
//! them when they may, and each position that a request uses is checked (laws E1 to E7).

#[path = "support/listener.rs"]
mod listener;
#[path = "engine/naive.rs"]
mod naive;

use blockyard_core::{
    Cache, Chain, Clears, Config, EvictionPolicy, Extras, Fetch, FlightId, Hints, HostCopies,
    KeyHash, Namespace, NextUse, Outcome, ParkedId, Plan, Priority, Retention, Salts, Stop, Tier,
    Wanted, WritePolicy,
};
use listener::Listener;
use naive::{End, Naive, Why};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

const SIZE: usize = 2;
const POLICIES: [EvictionPolicy; 3] = [
    EvictionPolicy::Recency,
    EvictionPolicy::Heap,
    EvictionPolicy::Learned,
];

struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % most as u64) as usize
    }

    fn one_in(&mut self, most: usize) -> bool {
        self.below(most) == 0
    }
}

/// The bytes of a block: what the tokens up to its last computed position make of it.
fn bytes(tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    tokens.hash(&mut hasher);
    hasher.finish()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Block {
    bytes: u64,
    /// A bit of it has flipped.
    flipped: bool,
    /// A fetch has said so: it must not be offered again.
    told: bool,
}

#[derive(Debug, Default)]
struct Request {
    tokens: Vec<u32>,
    most: usize,
    ids: Vec<u32>,
    computed: usize,
    kept: Option<ParkedId>,
    /// What is loaded for it: flights, with the block that each begins at.
    loads: Vec<(FlightId, usize)>,
    /// Leading good blocks of each load that has ended.
    good: BTreeMap<usize, usize>,
    runs: bool,
}

impl Request {
    /// The tokens up to the end of what a block has of them.
    fn until(&self, block: usize, computed: usize) -> &[u32] {
        &self.tokens[..((block + 1) * SIZE).min(computed)]
    }
}

struct Flying {
    plan: Plan,
    /// What was read when it began, where it reads at once.
    early: Option<Vec<Block>>,
    unknown: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Seen {
    plans: Vec<Vec<u8>>,
    kept: u32,
    cut: u32,
    broken: u32,
    fetched: u32,
    soon: u32,
    fenced: u32,
    corrupt: u32,
    unknown: u32,
    refused: u32,
    resumed_whole: u32,
    /// The most that a listener knew.
    heard: usize,
}

struct World {
    cache: Cache,
    chance: Chance,
    engine: Vec<Block>,
    below: [Vec<Block>; 2],
    free: Vec<u32>,
    requests: BTreeMap<u32, Request>,
    named: u32,
    air: Vec<Flying>,
    seen: Seen,
    /// What lies below, by plain lists, in every other life: none is resized or cleared there.
    naive: Option<Naive>,
    listener: Listener,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let engine = 8 + chance.below(20) as u32;
        let (host, disk) = (
            [0, 6, 14, 40][chance.below(4)],
            [0, 10, 40][chance.below(3)],
        );
        let pick = |at: usize| [WritePolicy::OnEvict, WritePolicy::Through][at];
        let config = Config {
            block_size: SIZE as u32,
            slots: vec![engine, host, disk],
            engine: true,
            policy: POLICIES[chance.below(POLICIES.len())],
            host_copies: [None, Some(HostCopies::First), Some(HostCopies::Last)][chance.below(3)],
            writes_below: vec![pick(chance.below(2))],
            ..Config::default()
        };
        let cache = Cache::new(config, KeyHash::default(), &Namespace::default());
        let cache = cache.expect("valid");
        // Every third overflows, and tells all again.
        let ring = if seed.is_multiple_of(3) { 24 } else { 1 << 12 };
        cache
            .listen(
                ring,
                Salts::Hide,
                [Clears::All, Clears::Own][seed as usize % 2],
            )
            .expect("nobody else listens");
        Self {
            listener: Listener::default(),
            cache,
            chance,
            engine: vec![Block::default(); engine as usize],
            below: [vec![Block::default(); 64], vec![Block::default(); 64]],
            free: (0..engine).collect(),
            requests: BTreeMap::new(),
            named: 0,
            air: Vec::new(),
            seen: Seen::default(),
            naive: seed
                .is_multiple_of(2)
                .then(|| Naive::new(SIZE, [host, disk].map(|slots| slots as usize))),
        }
    }

    fn chain(&self, tokens: &[u32]) -> Chain {
        let mut chain = self.cache.chain(Extras::default()).expect("plain");
        chain.extend(tokens).expect("tokens");
        chain
    }

    fn block(&mut self, tier: Tier, slot: u32) -> &mut Block {
        match tier.0 {
            0 => &mut self.engine[slot as usize],
            below => &mut self.below[below - 1][slot as usize],
        }
    }

    fn pick(&mut self, wanted: impl Fn(&Request) -> bool) -> Option<u32> {
        let all: Vec<u32> = self
            .requests
            .iter()
            .filter(|(_, request)| wanted(request))
            .map(|(&name, _)| name)
            .collect();
        (!all.is_empty()).then(|| all[self.chance.below(all.len())])
    }

    /// What the cranes are given; some read at once, others when they end.
    fn dispatch(&mut self) {
        let plans = self.cache.lock().dispatch();
        for plan in plans {
            self.seen.plans.push(plan.to_bytes());
            for &slot in &plan.sources {
                let told = self.block_of(plan.from, slot).told;
                assert!(
                    !told,
                    "a bad copy is offered again: {} slot {slot}",
                    plan.from.name()
                );
            }
            let early = self.chance.one_in(2).then(|| {
                let sources = plan.sources.clone();
                let read = |&slot: &u32| *self.block(plan.from, slot);
                sources.iter().map(read).collect()
            });
            let unknown = false;
            self.air.push(Flying {
                plan,
                early,
                unknown,
            });
        }
    }

    fn add(&mut self) {
        if self.requests.len() == 8 {
            return;
        }
        let (family, prompt) = (self.chance.below(3) as u32, 1 + self.chance.below(9));
        let own = self.chance.below(5);
        let mut tokens: Vec<u32> = (0..prompt as u32).map(|at| 100 * family + at).collect();
        tokens.extend((0..own as u32).map(|at| 1_000 * (self.named + 1) + at));
        let most = tokens.len() + 1 + self.chance.below(6);
        self.named += 1;
        let request = Request {
            tokens,
            most,
            ..Request::default()
        };
        self.requests.insert(self.named, request);
    }

    /// The engine gives a waiting request its blocks, and asks what is below.
    fn admit(&mut self) {
        let Some(name) = self.pick(|request| !request.runs && request.loads.is_empty()) else {
            return;
        };
        let request = &self.requests[&name];
        let blocks = request.tokens.len().div_ceil(SIZE);
        if self.free.len() < blocks {
            return;
        }
        let (kept, tokens) = (request.kept, request.tokens.clone());
        let chain = self.chain(&tokens);
        let ids: Vec<u32> = self.free[..blocks].to_vec();
        let mut computed = 0;
        let fetched = if let Some(kept) = kept {
            let view = self.cache.lock().view_parked(kept).expect("kept");
            computed = view.computed as usize;
            let (what, blocks) = (Wanted::Kept(kept), view.blocks as usize);
            let fetched = self.cache.lock().fetch(what, &ids[..blocks], 0);
            let naive = self.naive.as_ref();
            let wanted = naive.map(|naive| naive.found_kept(kept, blocks));
            self.as_wanted(fetched.expect("its own"), wanted, &ids[..blocks])
        } else {
            // The last token is computed anew, so that there are logits.
            let most = (tokens.len() - 1) / SIZE;
            let keys = &chain.keys()[..most];
            let before = self.cache.lock().digest();
            let found = self.cache.lock().find(keys, 0).expect("an engine's");
            assert_eq!(self.cache.lock().digest(), before, "find is pure");
            let blocks = found.hits.iter().sum::<u32>() as usize;
            if let (Stop::Filling(_), true) = (found.stop, self.chance.one_in(2)) {
                self.seen.soon += 1;
                return;
            }
            let what = Wanted::Keys(keys);
            let wanted = self.naive.as_ref().map(|naive| naive.found(keys));
            if let Some((tiers, end)) = &wanted {
                let count = |own: usize| tiers.iter().filter(|&&tier| tier == own).count() as u32;
                assert_eq!(found.hits, [0, count(0), count(1)]);
                let stop = match end {
                    End::Whole => Stop::Whole,
                    End::Missing => Stop::Missing,
                    End::Filling(flight) => Stop::Filling(*flight),
                    End::Scattered => Stop::Scattered,
                };
                assert_eq!(found.stop, stop);
            }
            let fetched = self.cache.lock().fetch(what, &ids[..blocks], 0);
            self.as_wanted(fetched.expect("found"), wanted, &ids[..blocks])
        };
        let plans = match fetched {
            Fetch::Soon(_) => {
                self.seen.soon += 1;
                return;
            }
            Fetch::Plans(plans) => plans,
        };
        self.free.drain(..blocks);
        let request = self.requests.get_mut(&name).expect("it waits");
        (request.ids, request.computed) = (ids, computed);
        request.good.clear();
        let mut first = 0;
        for plan in &plans {
            request.loads.push((plan.flight, first));
            first += plan.len();
        }
        self.seen.fetched += u32::from(first > 0);
        self.loaded(name);
    }

    /// A fetch brings up what the lists have, from the tiers where they have it.
    fn as_wanted(
        &mut self,
        fetched: Fetch,
        wanted: Option<(Vec<usize>, End)>,
        ids: &[u32],
    ) -> Fetch {
        let Some((tiers, end)) = wanted else {
            return fetched;
        };
        match &fetched {
            Fetch::Soon(flight) => {
                let fence = self.cache.lock().must_finish(ids).expect("its own");
                assert!(
                    fence == Some(*flight) || (tiers.is_empty() && end == End::Filling(*flight))
                );
            }
            Fetch::Plans(plans) => {
                let mut told = Vec::new();
                for plan in plans {
                    told.extend(vec![plan.from.0 - 1; plan.len()]);
                    self.naive
                        .as_mut()
                        .expect("it is asked")
                        .launched(plan, Why::Fetch);
                }
                assert_eq!(told, tiers[..told.len().max(ids.len().min(tiers.len()))]);
            }
        }
        fetched
    }

    /// All its loads have ended: it runs from its good prefix.
    fn loaded(&mut self, name: u32) {
        let request = self.requests.get_mut(&name).expect("it loads");
        if !request.loads.is_empty() {
            return;
        }
        let mut blocks = 0;
        while let Some(&good) = request.good.get(&blocks).filter(|&&good| good > 0) {
            blocks += good;
        }
        let kept = request.kept.take();
        let tokens = match kept {
            Some(_) => request.computed.min(blocks * SIZE),
            None => blocks * SIZE,
        };
        let whole = kept.is_some() && tokens == request.computed;
        request.computed = tokens;
        request.runs = true;
        self.seen.resumed_whole += u32::from(whole && tokens > 0);
        if let Some(kept) = kept {
            self.let_go(kept);
        }
        self.check(name);
    }

    /// What a request has computed, or was brought up for it, is right.
    fn check(&self, name: u32) {
        let request = &self.requests[&name];
        for block in 0..request.computed.div_ceil(SIZE) {
            let own = self.engine[request.ids[block] as usize];
            let right = bytes(request.until(block, request.computed));
            assert_eq!(own.bytes, right, "block {block} of request {name}");
        }
    }

    /// One more position of a running request is computed, if nothing forbids to write its block.
    fn compute(&mut self) {
        let Some(name) = self.pick(|request| request.runs) else {
            return;
        };
        let request = &self.requests[&name];
        let at = request.computed;
        if at == request.tokens.len() {
            return self.finish(name);
        }
        let id = request.ids[at / SIZE];
        if self
            .cache
            .lock()
            .must_finish(&[id])
            .expect("its own")
            .is_some()
        {
            self.seen.fenced += 1;
            return;
        }
        let request = self.requests.get_mut(&name).expect("it runs");
        request.computed += 1;
        let content = bytes(&request.tokens[..=at]);
        if request.computed == request.tokens.len() && request.tokens.len() < request.most {
            let next = bytes(&request.tokens) as u32 % 50;
            request.tokens.push(next);
            if request.tokens.len().div_ceil(SIZE) > request.ids.len() {
                match self.free.pop() {
                    Some(id) => request.ids.push(id),
                    // No room to grow: it waits for that, or is preempted.
                    None => _ = request.tokens.pop(),
                }
            }
        }
        self.engine[id as usize] = Block {
            bytes: content,
            ..Block::default()
        };
        self.check(name);
    }

    fn finish(&mut self, name: u32) {
        let request = self.requests.remove(&name).expect("it runs");
        let full = request.computed / SIZE;
        let chain = self.chain(&request.tokens[..request.computed]);
        let first = if full > 0 {
            self.chance.below(full) * self.chance.below(2)
        } else {
            0
        };
        let ids = &request.ids[first..full];
        let wanted = self
            .naive
            .as_mut()
            .map(|naive| naive.stow(chain.keys(), first, ids.len()));
        let stowed = self.cache.lock().stow(chain.keys(), ids, first as u32);
        let plan = stowed.expect("its own");
        self.describe(&chain, first, &request.tokens[first * SIZE..full * SIZE]);
        if let (Some(naive), Some(wanted)) = (self.naive.as_mut(), wanted) {
            let told = plan.as_ref().map_or(&[][..], |plan| &plan.sources);
            let copied: Vec<u32> = wanted.iter().map(|&at| ids[at]).collect();
            assert_eq!(told, copied, "what a stow copies");
            if let Some(plan) = &plan {
                naive.stowed(chain.keys(), (first, ids.len()), &wanted, plan);
            }
        }
        // The engine may give them out again at once.
        self.free.extend(&request.ids);
    }

    fn preempt(&mut self) {
        let Some(name) = self.pick(|request| request.runs && request.computed > 0) else {
            return;
        };
        let request = self.requests.get_mut(&name).expect("it runs");
        let ids = std::mem::take(&mut request.ids);
        let (tokens, computed) = (request.tokens.clone(), request.computed);
        request.runs = false;
        let chain = self.chain(&tokens[..computed]);
        let used = computed.div_ceil(SIZE);
        let wanted = self
            .naive
            .as_ref()
            .map(|naive| naive.home(chain.keys(), used));
        let answer = self
            .cache
            .lock()
            .stow_kept(chain.keys(), &ids[..used], computed as u64);
        self.describe(&chain, 0, &tokens[..computed / SIZE * SIZE]);
        if let Some(wanted) = wanted {
            assert_eq!(answer.is_ok(), wanted.is_some(), "{answer:?}");
        }
        match answer {
            Ok((kept, plan)) => {
                if let Some(naive) = self.naive.as_mut() {
                    let places = naive.kept(kept, chain.keys(), computed, plan.as_ref());
                    let told = plan.as_ref().map_or(&[][..], |plan| &plan.sources);
                    let copied: Vec<u32> = places.iter().map(|&at| ids[at]).collect();
                    assert_eq!(told, copied, "what is copied to be kept");
                    if let Some((plan, home)) = plan.as_ref().zip(wanted.flatten()) {
                        assert_eq!(plan.to.0 - 1, home);
                    }
                }
                self.requests.get_mut(&name).expect("it waits").kept = Some(kept);
                self.seen.kept += 1;
            }
            Err(_) => self.seen.refused += 1,
        }
        self.free.extend(ids);
    }

    fn abort(&mut self) {
        if let Some(name) = self.pick(|request| request.loads.is_empty()) {
            let request = self.requests.remove(&name).expect("picked");
            if let Some(kept) = request.kept {
                self.let_go(kept);
            }
            self.free.extend(request.ids);
        }
    }

    fn let_go(&mut self, kept: ParkedId) {
        self.cache.lock().abandon(kept).expect("kept");
        if let Some(naive) = self.naive.as_mut() {
            naive.abandon(kept);
        }
    }

    /// One flight ends, in any order, well or not; or its deadline passes.
    fn land(&mut self) {
        if self.air.is_empty() {
            return;
        }
        let at = self.chance.below(self.air.len());
        if !self.air[at].unknown && self.chance.one_in(8) {
            self.air[at].unknown = true;
            self.seen.unknown += 1;
            let flight = self.air[at].plan.flight;
            assert!(self.cache.lock().mark_unknown(flight).expect("known"));
            if let Some(naive) = self.naive.as_mut() {
                naive.unknown(flight);
            }
            return self.came(flight, 0);
        }
        let Flying {
            plan,
            early,
            unknown,
        } = self.air.swap_remove(at);
        let now = |slot: &u32| *self.block_of(plan.from, *slot);
        let read = early.unwrap_or_else(|| plan.sources.iter().map(now).collect());
        let mut good = plan.len();
        if self.chance.one_in(6) {
            good = self.chance.below(plan.len() + 1);
        }
        let bad = read[..good]
            .iter()
            .position(|block| block.flipped && plan.from.0 > 0);
        good = bad.unwrap_or(good);
        for (block, &slot) in read.iter().zip(&plan.destinations) {
            // What is behind the good ones may be written, too.
            *self.block(plan.to, slot) = *block;
        }
        let outcome = match bad {
            Some(bad) => {
                let slot = plan.sources[bad];
                if !unknown && self.block_of(plan.from, slot).flipped {
                    self.block(plan.from, slot).told = true;
                }
                self.seen.corrupt += 1;
                Outcome::corrupt(plan.flight, good as u32)
            }
            None => Outcome::failed(plan.flight, good as u32),
        };
        self.cache.lock().commit(&[outcome], None).expect("known");
        if let Some(naive) = self.naive.as_mut() {
            naive.landed(&plan, good, bad.is_some());
        }
        if !unknown {
            self.came(plan.flight, good);
        }
    }

    fn block_of(&self, tier: Tier, slot: u32) -> &Block {
        match tier.0 {
            0 => &self.engine[slot as usize],
            below => &self.below[below - 1][slot as usize],
        }
    }

    /// A load that some request waits for has ended with so many good blocks.
    fn came(&mut self, flight: FlightId, good: usize) {
        let waits = self.requests.iter_mut().find_map(|(&name, request)| {
            let at = request.loads.iter().position(|&(own, _)| own == flight)?;
            let (_, first) = request.loads.remove(at);
            request.good.insert(first, good);
            Some(name)
        });
        if let Some(name) = waits {
            let request = &self.requests[&name];
            // Short of the whole, what follows does not count.
            if request.loads.is_empty() {
                self.loaded(name);
            }
        }
    }

    fn below(&mut self, plan: Option<Plan>, kept: Option<ParkedId>) {
        if let (Some(naive), Some(plan)) = (self.naive.as_mut(), plan) {
            naive.launched(&plan, Why::Below(kept));
        }
    }

    /// What an engine says where a request ends.
    fn hints(&mut self) -> Hints {
        let retentions = [
            Retention::SessionEnded,
            Retention::Ordinary,
            Retention::Retain,
        ];
        let millis = self.chance.below(3_000_000) as u64;
        let (priority, ttl) = (self.chance.below(101) as u64, self.chance.below(60) as u32);
        Hints {
            retention: retentions[self.chance.below(3)],
            next_use: self.chance.one_in(2).then(|| NextUse::in_millis(millis)),
            priority: self
                .chance
                .one_in(2)
                .then(|| Priority::new(priority).expect("valid")),
            ttl: self.chance.one_in(2).then_some(ttl),
        }
    }

    fn elsewhere(&mut self) {
        let blocks = 1 + self.chance.below(6) as u32;
        match self.chance.below(9) {
            0..3 => {
                let plan = self.cache.lock().demote(Tier::HOST, blocks);
                self.below(plan, None);
            }
            3 => {
                if let Some(name) = self.pick(|request| request.kept.is_some()) {
                    let kept = self.requests[&name].kept.expect("picked");
                    let moved = self
                        .cache
                        .lock()
                        .demote_parked(kept, blocks, Some(Tier::DISK));
                    if let (Some(naive), Ok(plan)) = (self.naive.as_mut(), &moved) {
                        naive.moved(kept, blocks as usize, plan.as_ref());
                    }
                    self.below(moved.ok().flatten(), Some(kept));
                }
            }
            4 => {
                if let Some(name) = self.pick(|_| true) {
                    let chain = self.chain(&self.requests[&name].tokens);
                    let plans = self.cache.lock().promote(chain.keys(), blocks, Tier::HOST);
                    for plan in plans.into_iter().flatten() {
                        self.below(Some(plan), None);
                    }
                }
            }
            5 | 6 if self.naive.is_some() => {}
            5 => {
                let tier = Tier(1 + self.chance.below(2));
                let slots = self.chance.below(40) as u32;
                let mut cache = self.cache.lock();
                if self.chance.one_in(4) {
                    _ = cache.withdraw(tier, &[slots, slots + 1]);
                } else {
                    _ = cache.resize(tier, slots);
                }
            }
            6 if self.chance.one_in(12) => self.cache.lock().clear(),
            7 if self.chance.one_in(2) => {
                let (tier, slot) = (self.chance.below(2), self.chance.below(40));
                self.below[tier][slot].flipped = true;
            }
            _ => {
                if let Some(name) = self.pick(|_| true) {
                    let chain = self.chain(&self.requests[&name].tokens);
                    let ended = self.chance.one_in(2).then(|| self.hints());
                    self.cache
                        .lock()
                        .used(&[chain.keys()], ended)
                        .expect("an engine's");
                }
            }
        }
    }

    fn act(&mut self) {
        match self.chance.below(20) {
            0..2 => self.add(),
            2..5 => self.admit(),
            5..11 => self.compute(),
            11..13 => self.preempt(),
            13..17 => self.land(),
            17 if self.chance.one_in(4) => self.abort(),
            _ => self.elsewhere(),
        }
        self.dispatch();
        self.sound();
    }

    /// The keys are the engine's, so that the tokens of what it stows come beside them.
    fn describe(&self, chain: &Chain, first: usize, tokens: &[u32]) {
        let extras = Extras::default();
        let described = self
            .cache
            .describe(chain.keys(), first, tokens, &[], extras);
        described.expect("whole blocks");
    }

    /// What a listener knows of the tiers below is what is there. O1
    fn listen(&mut self) {
        let here = self.cache.lock().ready_blocks();
        let mut here: Vec<_> = here
            .into_iter()
            .map(|(block, tier)| (block, tier.0))
            .collect();
        here.sort_unstable();
        let drained = self.cache.drain(0.0, None).expect("it listens");
        self.listener.hear(drained.payload.as_deref());
        self.listener.compare(&here, drained.more);
        assert!(self.listener.ready.iter().all(|&(_, tier)| tier > 0));
        self.seen.heard = self.seen.heard.max(self.listener.ready.len());
    }

    fn sound(&mut self) {
        let violation = self.cache.audit();
        assert_eq!(violation, None);
        self.listen();
        if let Some(naive) = &self.naive {
            let stats = self.cache.lock().stats();
            for tier in [Tier::HOST, Tier::DISK] {
                let own = &stats.tiers[tier.0];
                let used = own.capacity - own.free;
                let room = (own.free + own.takeable).cast_signed();
                let name = tier.name();
                let (there, wanted) = naive.tier(tier);
                assert_eq!(used, there as u64, "slots in use on {name}");
                assert_eq!(room, wanted as i64, "room on {name}");
            }
        }
        for request in self.requests.values() {
            if let Some(kept) = request.kept {
                let view = self.cache.lock().view_parked(kept).expect("kept");
                if let Some(naive) = &self.naive {
                    let tokens = if view.broken {
                        0
                    } else {
                        view.computed as usize
                    };
                    assert_eq!((tokens, view.blocks as usize), naive.view(kept));
                }
                self.seen.broken += u32::from(view.broken);
                let short = (view.computed as usize) < request.computed && !view.broken;
                self.seen.cut += u32::from(short);
            }
        }
    }

    /// All is ended: nothing is kept, pinned or in the air (E6).
    fn end(mut self) -> Seen {
        while !self.air.is_empty() {
            self.land();
            self.dispatch();
            self.sound();
        }
        while !self.requests.is_empty() {
            self.abort();
        }
        let stats = self.cache.lock().stats();
        assert_eq!((stats.parked, stats.flights), (0, 0));
        for tier in &stats.tiers {
            let held = [tier.claimed, tier.pinned, tier.quarantined, tier.promised];
            assert_eq!(held, [0; 4]);
        }
        self.free.sort_unstable();
        let all: Vec<u32> = (0..self.engine.len() as u32).collect();
        assert_eq!(self.free, all, "the engine has all its ids again");
        assert_eq!(self.cache.lock().must_finish(&all), Ok(None));
        self.seen
    }
}

fn live(seed: u64) -> Seen {
    let mut world = World::new(seed);
    for _ in 0..250 {
        world.act();
    }
    world.end()
}

fn seeds() -> u64 {
    let told = std::env::var("BLOCKYARD_ENGINES").ok();
    told.map_or(300, |told| told.parse().expect("a number of seeds"))
}

/// Law: O1, O2, O3
#[test]
fn no_request_of_an_engine_meets_a_wrong_byte() {
    let mut all = Seen::default();
    for seed in 0..seeds() {
        let seen = std::panic::catch_unwind(|| live(seed));
        let seen = seen.unwrap_or_else(|why| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(why)
        });
        all.kept += seen.kept;
        all.cut += seen.cut;
        all.broken += seen.broken;
        all.fetched += seen.fetched;
        all.soon += seen.soon;
        all.fenced += seen.fenced;
        all.corrupt += seen.corrupt;
        all.unknown += seen.unknown;
        all.refused += seen.refused;
        all.resumed_whole += seen.resumed_whole;
        all.heard = all.heard.max(seen.heard);
    }
    let Seen {
        kept,
        cut,
        broken,
        fetched,
        soon,
        fenced,
        ..
    } = all;
    assert!(
        kept.min(cut).min(broken).min(fetched).min(soon).min(fenced) > 0,
        "{all:?}"
    );
    let Seen {
        corrupt,
        unknown,
        refused,
        resumed_whole,
        heard,
        ..
    } = all;
    assert!(heard > 20, "{heard} blocks at most are known to a listener");
    assert!(
        corrupt.min(unknown).min(refused).min(resumed_whole) > 0,
        "{all:?}"
    );
}

#[test]
fn the_same_steps_give_the_same_plans() {
    for seed in 0..10 {
        assert_eq!(live(seed), live(seed));
    }
}
