//! What all rows stand on: what a row is, keys, and a yard that is full.

use blockyard_core::{
    Answer, Cache, Config, EvictionPolicy, Filling, Key, KeyHash, LeaseId, MAX_TIERS, Namespace,
    Plan, Request, Retention, Sealing, Tier,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Tokens per block in all rows.
pub(crate) const BLOCK: u64 = 16;

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

    pub(crate) fn empty(device: u32, host: u32, policy: EvictionPolicy) -> Self {
        Self::of(vec![device + 1, host], policy)
    }

    /// An empty yard, with a third tier of so many slots if that is not 0.
    pub(crate) fn with_disk(device: u32, host: u32, disk: u32) -> Self {
        let slots = [device + 1, host].into_iter();
        let slots = slots.chain((disk > 0).then_some(disk)).collect();
        Self::of(slots, EvictionPolicy::Recency)
    }

    /// An empty yard with so many names.
    pub(crate) fn with_names(device: u32, names: u32) -> Self {
        let slots = vec![device + 1, 0, 0, names];
        Self::of(slots, EvictionPolicy::Recency)
    }

    fn of(slots: Vec<u32>, policy: EvictionPolicy) -> Self {
        let mut keyed = [false; MAX_TIERS];
        keyed[Tier::REMOTE.0] = slots.len() > Tier::REMOTE.0;
        let config = Config {
            slots,
            policy,
            keyed,
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

    pub(crate) fn admit(&self, keys: &[Key], tokens: u64, reserve: u64) -> LeaseId {
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
            spoken: None,
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

/// What [`mark`] writes.
pub(crate) static MARK: AtomicU64 = AtomicU64::new(0);

/// Parts a trace of memory where an operation begins or ends.
pub(crate) fn mark() {
    MARK.fetch_add(1, Ordering::Relaxed);
}

/// One row: `prepare` is not measured, `run` is; `run` returns how many operations it did.
pub(crate) trait Row {
    fn prepare(&mut self);
    fn run(&mut self) -> u64;
    fn restore(&mut self) {}
}
