//! A multi-turn request with its tokens, in a cache that has a listener or none; and what the listener
//! does outside the lock: a batch of what has happened, a snapshot, and everything told again.

use crate::work::{Row, Source};
use blockyard_core::{
    Answer, Cache, Chain, Clears, Config, Extras, Filling, KeyHash, Lease, Namespace, Request,
    Retention, Salts, Seals,
};
use std::hint::black_box;

const BLOCK: usize = 16;
/// Blocks of a request, how many of them are found, and of the chains that fill the device.
const TURN: usize = 306;
const FOUND: usize = 189;
const CHAIN: usize = 100;
const REQUESTS: usize = 20;
/// Token ids are below this, as Llama 3 has them: half of them take three bytes, half five.
const VOCABULARY: u64 = 128_256;
/// Events that may wait: none is lost in a row but the one that tells all again.
const RING: usize = 1 << 17;
const SHORT_RING: usize = 1 << 13;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    /// 117 blocks are taken from others.
    Begin,
    /// 117 blocks are published.
    Seal,
    /// The same blocks are published by others, which have computed them too.
    SealKnown,
    /// The batch of both, for as many blocks as were published.
    Drain,
    /// All blocks of the device, once.
    Snapshot,
    /// All blocks of the device in slices, for each slice.
    Resync,
}

pub(crate) struct Told {
    pub(crate) cache: Cache,
    source: Source,
    verb: Verb,
    prompts: Vec<Chain>,
    leases: Vec<Lease>,
    device: usize,
}

impl Told {
    /// A device full of idle blocks that were told.
    pub(crate) fn new(blocks: u32, verb: Verb, listener: bool) -> Self {
        let config = Config {
            slots: vec![blocks + 1],
            block_size: BLOCK as u32,
            ..Config::default()
        };
        let cache = Cache::new(config, KeyHash::Sha256, &Namespace::default()).expect("valid");
        if listener {
            let ring = if verb == Verb::Resync {
                SHORT_RING
            } else {
                RING
            };
            cache.listen(ring, Salts::Hide, Clears::All).expect("first");
        }
        let mut made = Self {
            cache,
            source: Source::default(),
            verb,
            prompts: Vec::new(),
            leases: Vec::new(),
            device: blocks as usize,
        };
        for _ in 0..blocks as usize / CHAIN {
            made.visit(CHAIN);
            made.drain();
        }
        made
    }

    fn tokens(&mut self, blocks: usize) -> Vec<u32> {
        let token = |_| (self.source.number() % VOCABULARY) as u32;
        (0..blocks * BLOCK).map(token).collect()
    }

    /// Begins, seals and finishes a new prompt; returns its keys and tokens.
    fn visit(&mut self, blocks: usize) -> Chain {
        let tokens = self.tokens(blocks);
        let mut chain = self.cache.chain(Extras::default()).expect("plain");
        chain.extend(&tokens).expect("room");
        let lease = self.begin(chain.clone());
        self.seal(&[lease]);
        chain
    }

    fn begin(&self, chain: Chain) -> Lease {
        let request = Request {
            keys: chain.keys(),
            tokens: chain.tokens() + 1,
            reserve: 0,
            load: u32::MAX,
            filling: Filling::Stop,
        };
        let answer = self.cache.lock().begin(&request).expect("room");
        let Answer::Begun(begun) = answer else {
            unreachable!("nothing is awaited")
        };
        self.cache.handle(begun.lease, chain)
    }

    fn publish(&self, leases: &[Lease]) {
        for lease in leases {
            let mut seals = Seals::default();
            seals.add(lease, lease.tokens()).expect("appended");
            seals.apply(&mut self.cache.lock()).expect("sealed");
            seals.remember(|_| lease);
        }
    }

    fn seal(&self, leases: &[Lease]) {
        self.publish(leases);
        for lease in leases {
            let mut state = self.cache.lock();
            let ended = state.finish(&[lease.id()], Retention::Ordinary, None);
            ended.expect("live");
            lease.spend();
        }
    }

    /// Takes all events; returns in how many batches.
    fn drain(&self) -> u64 {
        if !self.cache.has_listener() {
            return 0;
        }
        let mut batches = 1;
        while black_box(self.cache.drain(1.0, None).expect("sound")).more {
            batches += 1;
        }
        batches
    }

    fn begin_all(&mut self) {
        let prompts = std::mem::take(&mut self.prompts);
        self.leases = prompts.into_iter().map(|chain| self.begin(chain)).collect();
    }
}

impl Row for Told {
    fn prepare(&mut self) {
        match self.verb {
            Verb::Snapshot => return,
            // More than the ring has, and nobody takes it.
            Verb::Resync => return (0..=SHORT_RING / CHAIN).for_each(|_| drop(self.visit(CHAIN))),
            _ => {}
        }
        for _ in 0..REQUESTS {
            let mut prompt = self.visit(FOUND);
            let more = self.tokens(TURN - FOUND);
            prompt.extend(&more).expect("room");
            self.prompts.push(prompt);
        }
        self.drain();
        if self.verb == Verb::SealKnown {
            self.prompts.extend_from_within(..);
        }
        if self.verb != Verb::Begin {
            self.begin_all();
        }
        if self.verb == Verb::SealKnown {
            self.publish(&self.leases[REQUESTS..]);
        }
        if self.verb == Verb::Drain {
            self.publish(&self.leases);
        }
    }

    fn run(&mut self) -> u64 {
        match self.verb {
            Verb::Begin => self.begin_all(),
            Verb::Seal => self.publish(&self.leases),
            Verb::SealKnown => self.publish(&self.leases[..REQUESTS]),
            Verb::Drain => {
                self.drain();
                return (REQUESTS * (TURN - FOUND)) as u64;
            }
            Verb::Snapshot => {
                let all = self.cache.snapshot(1.0, None).expect("sound");
                assert!(
                    black_box(all).payload.len() > self.device * BLOCK * 3,
                    "all of them"
                );
                return 1;
            }
            Verb::Resync => {
                let slices = self.drain();
                assert!(slices > self.device as u64 / 1024, "in slices");
                return slices;
            }
        }
        REQUESTS as u64
    }

    fn restore(&mut self) {
        let leases = std::mem::take(&mut self.leases);
        self.seal(&leases);
        self.drain();
    }
}
