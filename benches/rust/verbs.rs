//! The verbs of a cache that gives out its own blocks: probes, the turns of a request, copies, a step that
//! decodes, evictions, and keys.

use crate::work::{BLOCK, Rig, Row, mark};
use blockyard_core::{
    Answer, Batch, Cache, Cells, Chain, EvictionPolicy, Extras, Filling, Growth, Key, Lease,
    LeaseId, Loading, Plan, Request, Retention, Sealing, Seals, TableCells, Tier,
};
use std::hint::black_box;

/// Blocks of a multi-turn request, and how many of them are found.
const TURN: usize = 306;
const FOUND: usize = 189;

/// A probe of nothing, or of a resident prefix.
pub(crate) struct Probe {
    rig: Rig,
    keys: Vec<Key>,
    times: u64,
}

impl Probe {
    pub(crate) fn new(blocks: u32, length: usize, times: u64) -> Self {
        let mut rig = Rig::new(blocks, 0, EvictionPolicy::Recency, 100);
        let keys = if length > 0 {
            rig.visit(length)
        } else {
            vec![]
        };
        Self { rig, keys, times }
    }
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
    /// With room that was made ahead.
    BeginSpare,
    /// The making of that room.
    Spare,
    Seal,
    Park,
    Resume,
    Finish,
}

impl Verb {
    fn spares(self) -> bool {
        matches!(self, Self::BeginSpare | Self::Spare)
    }
}

pub(crate) struct Turn {
    rig: Rig,
    verb: Verb,
    requests: Vec<Vec<Key>>,
    leases: Vec<LeaseId>,
    parked: Vec<blockyard_core::ParkedId>,
}

const REQUESTS: usize = 20;
/// As many as find room in what is kept free.
const SPARED: usize = 4;

impl Turn {
    pub(crate) fn new(blocks: u32, verb: Verb, policy: EvictionPolicy) -> Self {
        // With a host, only what has a copy there would go ahead.
        let host = if verb.spares() { 0 } else { blocks };
        Self {
            rig: Rig::new(blocks, host, policy, 100),
            verb,
            requests: vec![],
            leases: vec![],
            parked: vec![],
        }
    }

    fn begin(&mut self) {
        self.leases = self
            .requests
            .iter()
            .map(|keys| self.rig.begin(keys, 64))
            .collect();
    }

    /// Returns how many blocks it has evicted.
    fn spare(&self) -> u64 {
        let made = self.rig.cache.lock().make_spare();
        assert!(
            made as usize >= SPARED * (TURN - FOUND),
            "{made} in a full pool"
        );
        made.into()
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
            spoken: None,
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
        let requests = if self.verb.spares() { SPARED } else { REQUESTS };
        self.requests = (0..requests)
            .map(|_| {
                let mut keys = self.rig.visit(FOUND);
                keys.extend(self.rig.source.keys(TURN - FOUND));
                keys
            })
            .collect();
        if self.verb == Verb::BeginSpare {
            self.spare();
        }
        if self.verb.spares() || self.verb == Verb::Begin {
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
            Verb::Begin | Verb::BeginSpare => self.begin(),
            Verb::Spare => return self.spare(),
            Verb::Seal => self.seal(),
            Verb::Park => self.park(),
            Verb::Resume => self.resume(),
            Verb::Finish => self.finish(),
        }
        self.requests.len() as u64
    }

    fn restore(&mut self) {
        if self.verb == Verb::Spare {
            self.begin();
            self.seal();
        }
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
    pub(crate) fn new(blocks: u32, copies: Copies) -> Self {
        Self {
            rig: Rig::new(blocks, blocks, EvictionPolicy::Recency, 64),
            copies,
            path: vec![],
            lease: None,
            plan: None,
        }
    }

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

/// A step of 256 decoding sequences: all four verbs, `grow` alone, or one verb for all of it.
pub(crate) struct Decode {
    cache: Cache,
    leases: Vec<Lease>,
    ids: Vec<LeaseId>,
    batch: Batch,
    computed: Vec<u64>,
    tables: Vec<i32>,
    verbs: Verbs,
    steps: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verbs {
    Four,
    Grow,
    One,
}

const ROWS: usize = 256;
const WIDTH: usize = 512;
const STEPS: u64 = 64;

impl Decode {
    pub(crate) fn new(device: u32, verbs: Verbs) -> Self {
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
        let mut batch = rig.cache.batch();
        batch.add(&rig.cache, leases.iter()).expect("live");
        let mut made = Self {
            cache: rig.cache,
            batch,
            leases,
            ids,
            computed,
            tables: vec![0; ROWS * WIDTH],
            verbs,
            steps: 0,
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
        let write = |cells: TableCells<'_>| {
            let at = cells.row * WIDTH + cells.first;
            let slots = cells.slots();
            for (cell, slot) in tables[at..at + slots.len()].iter_mut().zip(slots) {
                *cell = slot.cast_signed();
            }
        };
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

    fn step(&mut self) {
        let tokens = [7; ROWS];
        let (computed, steps) = (&self.computed, self.steps);
        let computed = |row: usize| computed[row] + steps;
        let appended = self.batch.append(&tokens, |_| 1, computed);
        let mut appended = appended.expect("open");
        let growth = Growth {
            more: |_| 1,
            width: Some(WIDTH),
            loading: Loading::Refuse,
        };
        let done = appended.step(&mut self.cache.lock(), &growth);
        let done = done.expect("live");
        assert!(done.unserved.is_empty(), "room");
        for cell in &done.cells {
            let at = cell.row as usize * WIDTH + cell.column as usize;
            self.tables[at] = cell.slot.cast_signed();
        }
        drop(appended);
        self.steps += 1;
    }
}

impl Row for Decode {
    fn prepare(&mut self) {}

    fn run(&mut self) -> u64 {
        for _ in 0..STEPS {
            mark();
            if self.verbs == Verbs::One {
                self.step();
                continue;
            }
            self.grow();
            if self.verbs == Verbs::Four {
                self.rest();
            }
        }
        mark();
        STEPS
    }

    fn restore(&mut self) {
        if self.verbs == Verbs::Grow {
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
    pub(crate) fn new(
        leaves: u32,
        blocks: usize,
        policy: EvictionPolicy,
        in_flight: InFlight,
    ) -> Self {
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
            spoken: None,
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

impl Hashing {
    pub(crate) fn new() -> Self {
        Self {
            cache: Rig::empty(1, 0, EvictionPolicy::Recency).cache,
            tokens: (0..4096).collect(),
        }
    }
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
