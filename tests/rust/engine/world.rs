//! An engine with its tiers and its requests, and what must hold after every step of it.

#[path = "steps.rs"]
mod steps;
#[path = "store.rs"]
mod store;

use crate::listener::Listener;
use crate::naive::Naive;
use blockyard_core::{
    Cache, Chain, Clears, Config, EvictionPolicy, Extras, FlightId, HostCopies, Key, KeyHash,
    MAX_TIERS, Namespace, ParkedId, Plan, Salts, Tier, WritePolicy,
};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

const SIZE: usize = 2;
const POLICIES: [EvictionPolicy; 3] = [
    EvictionPolicy::Recency,
    EvictionPolicy::Heap,
    EvictionPolicy::Learned,
];

pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, most: usize) -> usize {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % most as u64) as usize
    }

    pub(crate) fn one_in(&mut self, most: usize) -> bool {
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
    early: Option<Vec<Option<Block>>>,
    unknown: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) plans: Vec<Vec<u8>>,
    pub(crate) kept: u32,
    pub(crate) cut: u32,
    pub(crate) broken: u32,
    pub(crate) fetched: u32,
    pub(crate) soon: u32,
    pub(crate) fenced: u32,
    pub(crate) corrupt: u32,
    pub(crate) unknown: u32,
    pub(crate) refused: u32,
    pub(crate) resumed_whole: u32,
    /// Blocks that were said to be in a store, that were brought up from there, and that it had lost.
    pub(crate) adopted: u32,
    pub(crate) loaded: u32,
    pub(crate) lost: u32,
    /// The most that a listener knew.
    pub(crate) heard: usize,
}

pub(crate) struct World {
    cache: Cache,
    chance: Chance,
    engine: Vec<Block>,
    below: [Vec<Block>; 2],
    /// What is in the stores that other engines share, by key, in the lives that have some.
    store: BTreeMap<Key, Block>,
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
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let engine = 8 + chance.below(20) as u32;
        let (host, disk) = (
            [0, 6, 14, 40][chance.below(4)],
            [0, 10, 40][chance.below(3)],
        );
        // The lists know of no store.
        let has_naive = seed.is_multiple_of(2);
        let names = [0, 6, 40][chance.below(3)] * u32::from(!has_naive);
        let mut keyed = [false; MAX_TIERS];
        keyed[Tier::REMOTE.0] = names > 0;
        let pick = |at: usize| [WritePolicy::OnEvict, WritePolicy::Through][at];
        let config = Config {
            block_size: SIZE as u32,
            slots: vec![engine, host, disk, names],
            keyed,
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
            store: BTreeMap::new(),
            free: (0..engine).collect(),
            requests: BTreeMap::new(),
            named: 0,
            air: Vec::new(),
            seen: Seen::default(),
            naive: has_naive
                .then(|| Naive::new(SIZE, [host, disk].map(|slots| slots as usize), true)),
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

    fn block_of(&self, tier: Tier, slot: u32) -> &Block {
        match tier.0 {
            0 => &self.engine[slot as usize],
            below => &self.below[below - 1][slot as usize],
        }
    }

    /// What a copy of these blocks reads now; none where a store has lost it.
    fn read(&self, plan: &Plan) -> Vec<Option<Block>> {
        if plan.from == Tier::REMOTE {
            let keys = plan.keys.iter();
            return keys.map(|key| self.store.get(key).copied()).collect();
        }
        let sources = plan.sources.iter();
        sources
            .map(|&slot| Some(*self.block_of(plan.from, slot)))
            .collect()
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
            for &slot in plan.sources.iter().filter(|_| plan.from < Tier::REMOTE) {
                let told = self.block_of(plan.from, slot).told;
                assert!(
                    !told,
                    "a bad copy is offered again: {} slot {slot}",
                    plan.from.name()
                );
            }
            let early = self.chance.one_in(2).then(|| self.read(&plan));
            let unknown = false;
            self.air.push(Flying {
                plan,
                early,
                unknown,
            });
        }
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
    pub(crate) fn end(mut self) -> Seen {
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
