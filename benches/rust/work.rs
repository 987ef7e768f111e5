//! The measured work, natively: the same for criterion, for `floor` and for callgrind. The Python
//! side of each row is in `benches/python/measure.py`.

use crate::engine::{self, Engine};
use crate::tiers::Below;
use crate::told::{self, Told};
use blockyard_core::{
    Answer, Cache, Cells, Chain, Config, EvictionPolicy, Extras, Filling, Key, KeyHash, Lease,
    LeaseId, Loading, Namespace, Plan, Request, Retention, Sealing, Seals, Tier,
};
use std::hint::black_box;

/// Tokens per block in all rows.
pub(crate) const BLOCK: u64 = 16;
/// Blocks of a multi-turn request, and how many of them are found.
pub(crate) const TURN: usize = 306;
const FOUND: usize = 189;

/// Keys as an engine gives them: uniform, and never the same twice.
#[derive(Debug)]
pub(crate) struct Source(u64);

impl Default for Source {
    fn default() -> Self {
        Self(7)
    }
}

impl Source {
    /// A number as good as any other.
    pub(crate) fn number(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn keys(&mut self, blocks: usize) -> Vec<Key> {
        (0..blocks).map(|_| self.key()).collect()
    }

    fn key(&mut self) -> Key {
        let mut key = [0; 32];
        for word in key.as_chunks_mut::<8>().0 {
            *word = self.number().to_le_bytes();
        }
        Key(key)
    }
}

/// A yard whose device is full of idle blocks in chains of `chain`.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) cache: Cache,
    pub(crate) source: Source,
}

impl Rig {
    pub(crate) fn new(device: u32, host: u32, policy: EvictionPolicy, chain: usize) -> Self {
        let mut rig = Self::empty(device, host, policy);
        for _ in 0..device as usize / chain {
            rig.visit(chain);
        }
        rig
    }

    fn empty(device: u32, host: u32, policy: EvictionPolicy) -> Self {
        Self::of(vec![device + 1, host], policy)
    }

    /// An empty yard, with a third tier of so many slots if that is not 0.
    pub(crate) fn with_disk(device: u32, host: u32, disk: u32) -> Self {
        let slots = [device + 1, host].into_iter();
        let slots = slots.chain((disk > 0).then_some(disk)).collect();
        Self::of(slots, EvictionPolicy::Recency)
    }

    fn of(slots: Vec<u32>, policy: EvictionPolicy) -> Self {
        let config = Config {
            slots,
            policy,
            block_size: BLOCK as u32,
            ..Config::default()
        };
        let cache = Cache::new(config, KeyHash::Sha256, &Namespace::default()).expect("valid");
        Self {
            cache,
            source: Source::default(),
        }
    }

    /// Begins, seals and finishes a new chain; returns its keys.
    pub(crate) fn visit(&mut self, blocks: usize) -> Vec<Key> {
        let keys = self.source.keys(blocks);
        let lease = self.begin(&keys, 0);
        self.seal(lease, 0, &keys);
        self.finish(lease);
        keys
    }

    pub(crate) fn begin(&self, keys: &[Key], reserve: u64) -> LeaseId {
        self.admit(keys, keys.len() as u64 * BLOCK + 1, reserve)
    }

    fn admit(&self, keys: &[Key], tokens: u64, reserve: u64) -> LeaseId {
        let filling = Filling::Stop;
        let request = Request {
            keys,
            tokens,
            reserve,
            load: u32::MAX,
            filling,
        };
        match self.cache.lock().begin(&request).expect("room") {
            Answer::Begun(begun) => begun.lease,
            Answer::Soon(_) => unreachable!("nothing is awaited"),
        }
    }

    pub(crate) fn seal(&self, lease: LeaseId, first: usize, keys: &[Key]) {
        let computed = (first + keys.len()) as u64 * BLOCK;
        let row = Sealing {
            lease,
            computed,
            first: first as u32,
            keys,
        };
        self.cache.lock().seal(&[row]).expect("sealed");
    }

    /// The copies of these plans are all good.
    pub(crate) fn land(&self, plans: &[Plan]) {
        let outcomes: Vec<_> = plans.iter().map(Plan::whole).collect();
        let mut state = self.cache.lock();
        state.commit(&outcomes, None).expect("in flight");
    }

    pub(crate) fn finish(&self, lease: LeaseId) {
        self.cache
            .lock()
            .finish(&[lease], Retention::Ordinary, None)
            .expect("finished");
    }
}

/// One row: `prepare` is not measured, `run` is; `run` returns how many operations it did.
pub(crate) trait Row {
    fn prepare(&mut self);
    fn run(&mut self) -> u64;
    fn restore(&mut self) {}
}

/// A probe of nothing, or of a resident prefix.
pub(crate) struct Probe {
    rig: Rig,
    keys: Vec<Key>,
    times: u64,
}

impl Row for Probe {
    fn prepare(&mut self) {}

    fn run(&mut self) -> u64 {
        for _ in 0..self.times {
            black_box(self.rig.cache.lock().probe(black_box(&self.keys)));
        }
        self.times
    }
}

/// The verbs of a multi-turn request, each measured on its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Begin,
    Seal,
    Park,
    Resume,
    Finish,
}

pub(crate) struct Turn {
    rig: Rig,
    verb: Verb,
    requests: Vec<Vec<Key>>,
    leases: Vec<LeaseId>,
    parked: Vec<blockyard_core::ParkedId>,
}

const REQUESTS: usize = 20;

impl Turn {
    fn begin(&mut self) {
        self.leases = self
            .requests
            .iter()
            .map(|keys| self.rig.begin(keys, 64))
            .collect();
    }

    fn seal(&mut self) {
        for (&lease, keys) in self.leases.iter().zip(&self.requests) {
            self.rig.seal(lease, FOUND, &keys[FOUND..]);
        }
    }

    fn park(&mut self) {
        let computed = TURN as u64 * BLOCK;
        let row = |lease| Sealing {
            lease,
            computed,
            first: TURN as u32,
            keys: &[],
        };
        let mut state = self.rig.cache.lock();
        let parked = |&lease| state.park(&row(lease), None).expect("promised");
        self.parked = self.leases.iter().map(parked).collect();
    }

    fn resume(&mut self) {
        let tokens = TURN as u64 * BLOCK + 1;
        let mut state = self.rig.cache.lock();
        self.leases = self
            .parked
            .iter()
            .map(
                |&parked| match state.resume(parked, &[], tokens, 64).expect("room") {
                    Answer::Begun(begun) => begun.lease,
                    Answer::Soon(_) => unreachable!("nothing is in flight"),
                },
            )
            .collect();
        self.parked.clear();
    }

    fn finish(&mut self) {
        for lease in self.leases.drain(..) {
            self.rig.finish(lease);
        }
    }
}

impl Row for Turn {
    fn prepare(&mut self) {
        self.requests = (0..REQUESTS)
            .map(|_| {
                let mut keys = self.rig.visit(FOUND);
                keys.extend(self.rig.source.keys(TURN - FOUND));
                keys
            })
            .collect();
        if self.verb == Verb::Begin {
            return;
        }
        self.begin();
        if self.verb == Verb::Seal {
            return;
        }
        self.seal();
        if self.verb == Verb::Resume {
            self.park();
        }
    }

    fn run(&mut self) -> u64 {
        match self.verb {
            Verb::Begin => self.begin(),
            Verb::Seal => self.seal(),
            Verb::Park => self.park(),
            Verb::Resume => self.resume(),
            Verb::Finish => self.finish(),
        }
        REQUESTS as u64
    }

    fn restore(&mut self) {
        if self.verb == Verb::Park {
            self.resume();
        }
        self.finish();
    }
}

/// A copy down of the next 64 victims, one up of 64 blocks, the landing of the former, and that of
/// 64 blocks of a running sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Copies {
    Demote,
    Promote,
    Commit,
    CommitLease,
}

pub(crate) struct Moves {
    rig: Rig,
    copies: Copies,
    path: Vec<Key>,
    lease: Option<LeaseId>,
    plan: Option<Plan>,
}

/// Blocks of a plan.
const PLAN: usize = 64;

impl Moves {
    fn land(&mut self) {
        if let Some(plan) = self.plan.take() {
            let outcome = plan.whole();
            self.rig
                .cache
                .lock()
                .commit(&[outcome], None)
                .expect("known");
        }
    }

    fn demote(&mut self) {
        self.plan = self.rig.cache.lock().demote(Tier::DEVICE, PLAN as u32);
    }

    /// Copies a new path down, whose sequence runs on.
    fn demote_lease(&mut self) {
        self.path = self.rig.visit(PLAN);
        let lease = self.rig.begin(&self.path, 0);
        let plan = self.rig.cache.lock().demote_lease(lease, PLAN as u32);
        self.plan = plan.expect("live");
        self.lease = Some(lease);
    }

    fn finish(&mut self, retention: Retention) {
        if let Some(lease) = self.lease.take() {
            let mut state = self.rig.cache.lock();
            state.finish(&[lease], retention, None).expect("live");
        }
    }
}

impl Row for Moves {
    fn prepare(&mut self) {
        match self.copies {
            Copies::Demote => {}
            Copies::Commit => self.demote(),
            Copies::CommitLease => self.demote_lease(),
            Copies::Promote => {
                // Copied down, and evicted by others: it is on the host only.
                self.demote_lease();
                self.land();
                self.finish(Retention::SessionEnded);
                self.rig.visit(PLAN);
            }
        }
    }

    fn run(&mut self) -> u64 {
        match self.copies {
            Copies::Demote => self.demote(),
            Copies::Commit | Copies::CommitLease => self.land(),
            Copies::Promote => {
                self.plan = self
                    .rig
                    .cache
                    .lock()
                    .promote(&self.path, u32::MAX, Tier::DEVICE)
                    .expect("room")
                    .pop();
            }
        }
        1
    }

    fn restore(&mut self) {
        self.land();
        self.finish(Retention::Ordinary);
        if matches!(self.copies, Copies::Demote | Copies::Commit) {
            // The victims that have copies now go; the next ones have none.
            self.rig.visit(PLAN);
        }
    }
}

/// A step of 256 decoding sequences.
pub(crate) struct Decode {
    cache: Cache,
    leases: Vec<Lease>,
    ids: Vec<LeaseId>,
    computed: Vec<u64>,
    tables: Vec<i32>,
    only_grow: bool,
}

const ROWS: usize = 256;
const WIDTH: usize = 512;
const STEPS: u64 = 64;

impl Decode {
    fn new(device: u32, only_grow: bool) -> Self {
        let rig = Rig::new(device, 0, EvictionPolicy::Recency, 100);
        let leases: Vec<Lease> = (0..ROWS as u32)
            .map(|row| {
                let mut chain = rig.cache.chain(Extras::default()).expect("plain");
                let tokens: Vec<u32> = (0..640 + row % 16).map(|at| at + row * 1000).collect();
                chain.extend(&tokens).expect("tokens");
                let id = rig.admit(chain.keys(), chain.tokens(), 0);
                rig.cache.handle(id, chain)
            })
            .collect();
        let ids = leases.iter().map(Lease::id).collect();
        let computed = leases.iter().map(Lease::tokens).collect();
        let mut made = Self {
            cache: rig.cache,
            leases,
            ids,
            computed,
            tables: vec![0; ROWS * WIDTH],
            only_grow,
        };
        // The first step seals the prompts.
        made.grow();
        made.rest();
        made
    }

    fn grow(&self) {
        let mut unserved = Vec::new();
        self.cache
            .lock()
            .grow(&self.ids, |_| 1, &mut unserved)
            .expect("live");
        assert!(unserved.is_empty(), "room");
    }

    fn rest(&mut self) {
        for lease in &self.leases {
            lease.append(&[7]).expect("open");
        }
        let tables = &mut self.tables;
        let write = |at: usize, slot: u32| tables[at] = slot.cast_signed();
        self.cache
            .lock()
            .block_tables(&self.ids, WIDTH, Cells::Changed, Loading::Refuse, write)
            .expect("wide");
        let mut seals = Seals::default();
        for (lease, computed) in self.leases.iter().zip(&mut self.computed) {
            seals.add(lease, *computed).expect("appended");
            *computed += 1;
        }
        seals.apply(&mut self.cache.lock()).expect("sealed");
        seals.remember(|at| &self.leases[at]);
    }
}

impl Row for Decode {
    fn prepare(&mut self) {}

    fn run(&mut self) -> u64 {
        for _ in 0..STEPS {
            self.grow();
            if !self.only_grow {
                self.rest();
            }
        }
        STEPS
    }

    fn restore(&mut self) {
        if self.only_grow {
            for _ in 0..STEPS {
                self.rest();
            }
        }
    }
}

/// Begins of new blocks in a full pool: what it costs more than in an empty one is the eviction.
pub(crate) struct Evict {
    rig: Rig,
    blocks: usize,
    requests: Vec<Vec<Key>>,
    leases: Vec<LeaseId>,
}

impl Evict {
    fn new(leaves: u32, blocks: usize, policy: EvictionPolicy, in_flight: InFlight) -> Self {
        let rig = match in_flight {
            InFlight::Nothing => Rig::new(leaves, 1024, policy, 1),
            InFlight::Chain => Self::chain_in_front(leaves, policy),
        };
        Self {
            rig,
            blocks,
            requests: Vec::new(),
            leases: Vec::new(),
        }
    }

    /// The oldest blocks are a chain whose tail is being copied down.
    fn chain_in_front(leaves: u32, policy: EvictionPolicy) -> Rig {
        let mut rig = Rig::empty(leaves, 1024, policy);
        let keys = rig.visit(1023);
        let lease = rig.begin(&keys, 0);
        let row = Sealing {
            lease,
            computed: 1023 * BLOCK,
            first: 1023,
            keys: &[],
        };
        {
            let mut state = rig.cache.lock();
            let parked = state.park(&row, None).expect("promised");
            let plan = state.demote_parked(parked, 64, None).expect("kept");
            assert!(
                plan.is_some_and(|plan| plan.len() == 64),
                "the tail is in flight"
            );
            state.abandon(parked).expect("kept");
        }
        for _ in 0..leaves - 1024 {
            rig.visit(1);
        }
        rig
    }
}

/// What is in flight at the front of the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InFlight {
    Nothing,
    /// 64 blocks of a chain of 1,024.
    Chain,
}

impl Row for Evict {
    fn prepare(&mut self) {
        let requests = (2000 / self.blocks).max(1);
        self.requests = (0..requests)
            .map(|_| self.rig.source.keys(self.blocks))
            .collect();
        self.leases.clear();
        self.leases.reserve(requests);
    }

    fn run(&mut self) -> u64 {
        for keys in &self.requests {
            let tokens = keys.len() as u64 * BLOCK;
            let filling = Filling::Stop;
            let request = Request {
                keys: &[],
                tokens,
                reserve: 0,
                load: 0,
                filling,
            };
            if let Ok(Answer::Begun(begun)) = self.rig.cache.lock().begin(&request) {
                self.leases.push(begun.lease);
            }
        }
        self.requests.len() as u64
    }

    fn restore(&mut self) {
        for (&lease, keys) in self.leases.iter().zip(&self.requests) {
            self.rig.seal(lease, 0, keys);
            self.rig.finish(lease);
        }
    }
}

/// Keys of prompts of 4,096 tokens.
pub(crate) struct Hashing {
    cache: Cache,
    tokens: Vec<u32>,
}

impl Row for Hashing {
    fn prepare(&mut self) {}

    fn run(&mut self) -> u64 {
        for _ in 0..10 {
            let mut chain: Chain = self.cache.chain(Extras::default()).expect("plain");
            chain.extend(&self.tokens).expect("tokens");
            black_box(chain.keys());
        }
        10 * self.tokens.len() as u64 / BLOCK
    }
}

/// The rows by name; `blocks` is the size of the full pool.
pub(crate) const ROWS_BY_NAME: &[&str] = &[
    "probe",
    "match64",
    "match128",
    "begin",
    "begin-learned",
    "begin-two-tiers",
    "begin-three-tiers",
    "seal",
    "park",
    "resume",
    "finish",
    "finish-learned",
    "demote",
    "promote",
    "commit",
    "commit-lease",
    "decode",
    "grow",
    "evict4-list",
    "evict4-heap",
    "evict4-learned",
    "evict4-list-air",
    "evict4-heap-air",
    "evict1000-list",
    "evict1000-heap",
    "evict1000-learned",
    "keys",
    "engine-find",
    "engine-fetch",
    "engine-stow",
    "engine-land",
    "engine-step",
    "quiet-begin",
    "quiet-seal",
    "told-begin",
    "told-seal",
    "told-drain",
    "told-snapshot",
    "told-retell",
];

pub(crate) fn row(name: &str, blocks: u32) -> Box<dyn Row> {
    let turn_of = |verb, policy| {
        let rig = Rig::new(blocks, blocks, policy, 100);
        Box::new(Turn {
            rig,
            verb,
            requests: vec![],
            leases: vec![],
            parked: vec![],
        })
    };
    let turn = |verb| turn_of(verb, EvictionPolicy::Recency);
    let learned = EvictionPolicy::Learned;
    let moves = |copies| {
        let rig = Rig::new(blocks, blocks, EvictionPolicy::Recency, 64);
        Box::new(Moves {
            rig,
            copies,
            path: vec![],
            lease: None,
            plan: None,
        })
    };
    let probe = |length: usize, times| {
        let mut rig = Rig::new(blocks, 0, EvictionPolicy::Recency, 100);
        let keys = if length > 0 {
            rig.visit(length)
        } else {
            vec![]
        };
        Box::new(Probe { rig, keys, times })
    };
    let evict =
        |leaves, count, policy, in_flight| Box::new(Evict::new(leaves, count, policy, in_flight));
    match name {
        "probe" => probe(0, 10_000),
        "match64" => probe(64, 500),
        "match128" => probe(128, 500),
        "begin" => turn(Verb::Begin),
        "begin-learned" => turn_of(Verb::Begin, learned),
        "finish-learned" => turn_of(Verb::Finish, learned),
        "begin-two-tiers" => Box::new(Below::new(blocks, false)),
        "begin-three-tiers" => Box::new(Below::new(blocks, true)),
        "seal" => turn(Verb::Seal),
        "park" => turn(Verb::Park),
        "resume" => turn(Verb::Resume),
        "finish" => turn(Verb::Finish),
        "demote" => moves(Copies::Demote),
        "promote" => moves(Copies::Promote),
        "commit" => moves(Copies::Commit),
        "commit-lease" => moves(Copies::CommitLease),
        "decode" => Box::new(Decode::new(blocks, false)),
        "grow" => Box::new(Decode::new(blocks, true)),
        "evict4-list" => evict(25_000, 4, EvictionPolicy::Recency, InFlight::Nothing),
        "evict4-heap" => evict(25_000, 4, EvictionPolicy::Heap, InFlight::Nothing),
        "evict4-learned" => evict(25_000, 4, learned, InFlight::Nothing),
        "evict4-list-air" => evict(25_000, 4, EvictionPolicy::Recency, InFlight::Chain),
        "evict4-heap-air" => evict(25_000, 4, EvictionPolicy::Heap, InFlight::Chain),
        "evict1000-list" => evict(1_000_000, 1000, EvictionPolicy::Recency, InFlight::Nothing),
        "evict1000-learned" => evict(1_000_000, 1000, learned, InFlight::Nothing),
        "evict1000-heap" => evict(1_000_000, 1000, EvictionPolicy::Heap, InFlight::Nothing),
        "engine-find" => Box::new(Engine::new(blocks, engine::Verb::Find)),
        "engine-fetch" => Box::new(Engine::new(blocks, engine::Verb::Fetch)),
        "engine-stow" => Box::new(Engine::new(blocks, engine::Verb::Stow)),
        "engine-land" => Box::new(Engine::new(blocks, engine::Verb::Land)),
        "engine-step" => Box::new(Engine::new(blocks, engine::Verb::Step)),
        "quiet-begin" => Box::new(Told::new(blocks, told::Verb::Begin, false)),
        "quiet-seal" => Box::new(Told::new(blocks, told::Verb::Seal, false)),
        "told-begin" => Box::new(Told::new(blocks, told::Verb::Begin, true)),
        "told-seal" => Box::new(Told::new(blocks, told::Verb::Seal, true)),
        "told-drain" => Box::new(Told::new(blocks, told::Verb::Drain, true)),
        "told-snapshot" => Box::new(Told::new(blocks, told::Verb::Snapshot, true)),
        "told-retell" => Box::new(Told::new(blocks, told::Verb::Retell, true)),
        "keys" => {
            let cache = Rig::empty(1, 0, EvictionPolicy::Recency).cache;
            Box::new(Hashing {
                cache,
                tokens: (0..4096).collect(),
            })
        }
        _ => panic!("no row {name}; there are {ROWS_BY_NAME:?}"),
    }
}
