//! A path of 1,000 blocks in a full yard: a begin that takes as many, one that finds them, and a forget.

use crate::work::{BLOCK, Rig, Row};
use blockyard_core::{Condemned, EvictionPolicy, Key, LeaseId};

const PATH: usize = 1000;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// It evicts as many.
    BeginNew,
    BeginFound,
    /// All are named.
    Forget,
    /// The first is named, so that the whole trie is looked through, in slices.
    ForgetFirst,
}

pub(crate) struct Path {
    rig: Rig,
    verb: Verb,
    keys: Vec<Key>,
    lease: Option<LeaseId>,
}

impl Path {
    pub(crate) fn new(blocks: u32, verb: Verb) -> Self {
        let rig = Rig::new(blocks, 0, EvictionPolicy::Recency, PATH);
        Self {
            rig,
            verb,
            keys: Vec::new(),
            lease: None,
        }
    }
}

impl Row for Path {
    fn prepare(&mut self) {
        self.keys = match self.verb {
            Verb::BeginNew => self.rig.source.keys(PATH),
            _ => self.rig.visit(PATH),
        };
    }

    fn run(&mut self) -> u64 {
        let named = match self.verb {
            Verb::BeginNew | Verb::BeginFound => {
                let tokens = PATH as u64 * BLOCK + 1;
                self.lease = Some(self.rig.admit(&self.keys, tokens, 0));
                return 1;
            }
            Verb::Forget => &self.keys[..],
            Verb::ForgetFirst => &self.keys[..1],
        };
        let forgotten = self.rig.cache.forget(Condemned::Keys(named), false);
        assert_eq!(forgotten.map(|one| one.blocks), Ok(PATH as u64));
        1
    }

    fn restore(&mut self) {
        match self.lease.take() {
            Some(lease) => {
                self.rig.seal(lease, 0, &self.keys);
                self.rig.finish(lease);
            }
            None => {
                self.rig.visit(PATH);
            }
        }
    }
}
