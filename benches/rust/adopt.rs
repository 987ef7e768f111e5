//! What a store is said to have: 1,000 keys, in a yard whose names are all taken; and the same once more.

use crate::work::{Rig, Row};
use blockyard_core::{Key, Tier};

const PATH: usize = 1000;

pub(crate) struct Adopt {
    rig: Rig,
    known: bool,
    keys: Vec<Key>,
}

impl Adopt {
    /// `known`: they were adopted before, so that nothing changes.
    pub(crate) fn new(blocks: u32, known: bool) -> Self {
        let rig = Rig::with_names(64, blocks);
        let keys = Vec::new();
        let mut row = Self { rig, known, keys };
        for _ in 0..blocks as usize / PATH {
            row.keys = row.rig.source.keys(PATH);
            row.adopt();
        }
        row
    }

    fn adopt(&self) {
        let adopted = self.rig.cache.lock().adopt(&self.keys, None, Tier::REMOTE);
        assert_eq!(adopted, Ok(PATH as u32));
    }
}

impl Row for Adopt {
    fn prepare(&mut self) {
        if !self.known {
            self.keys = self.rig.source.keys(PATH);
        }
    }

    fn run(&mut self) -> u64 {
        self.adopt();
        1
    }
}
