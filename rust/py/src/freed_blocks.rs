//! `FreedKeys`: the keys of blocks that an engine has free, by the engine's ids.

use crate::buffers::{integers, room};
use crate::error::Failure;
use crate::keys::Keys;
use blockyard_core::{Chain, Key};
use blockyard_guard::guarded;
use pyo3::prelude::*;
use std::collections::HashSet;

/// What an engine's free block still holds.
#[derive(Clone, Copy)]
struct Held {
    /// The key of the block before it in its sequence; zeros for the first.
    above: Key,
    own: Key,
}

const NONE: Key = Key([0; 32]);

struct Blocks {
    held: Vec<Held>,
    known: Vec<bool>,
}

/// The keys of an engine's blocks whose requests have ended, until the engine writes them again.
///
/// It takes 65 bytes for each block.
///
/// Args:
///     blocks: The blocks that the engine gives out.
///     block_size: Tokens of each.
///
/// Raises:
///     Unavailable: There is no memory for it.
#[pyclass(module = "blockyard._core", subclass)]
pub(crate) struct FreedKeys {
    blocks: Blocks,
    count: u32,
    block_size: u32,
}

#[guarded]
#[pymethods]
impl FreedKeys {
    #[new]
    fn new(blocks: u32, block_size: u32) -> PyResult<Self> {
        let count = blocks as usize;
        let (mut held, mut known) = (Vec::new(), Vec::new());
        room(&mut held, count, "freed blocks")?;
        room(&mut known, count, "freed blocks")?;
        let none = Held {
            above: NONE,
            own: NONE,
        };
        held.resize(count, none);
        known.resize(count, false);
        Ok(Self {
            blocks: Blocks { held, known },
            count: blocks,
            block_size,
        })
    }

    fn __len__(&self) -> usize {
        self.count as usize
    }

    /// Returns the ids of blocks whose keys are known, the smallest first.
    fn known(&self) -> Vec<u32> {
        self.blocks.ids().collect()
    }

    /// Takes the full blocks of a request that has ended, from its first on.
    ///
    /// Args:
    ///     keys: Their keys, or more.
    ///     ids: Their ids, or more.
    ///
    /// Raises:
    ///     Misuse: An id is out of range, here as in all calls; nothing is changed.
    fn add(&mut self, keys: &Bound<'_, Keys>, ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let (ids, blocks) = (self.checked(ids)?, &mut self.blocks);
        let mut above = NONE;
        for (id, &own) in ids.into_iter().zip(keys.get().0.keys()) {
            blocks.held[id] = Held { above, own };
            blocks.known[id] = true;
            above = own;
        }
        Ok(())
    }

    /// Takes note that these are given to others.
    ///
    /// Args:
    ///     ids: Their ids.
    ///
    /// Raises:
    ///     Misuse: An id is out of range; nothing is changed.
    fn forget(&mut self, ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let (ids, blocks) = (self.checked(ids)?, &mut self.blocks);
        for id in ids {
            blocks.known[id] = false;
        }
        Ok(())
    }

    /// Forgets blocks of these keys, and all that stands on any of them.
    ///
    /// Args:
    ///     keys: What is forgotten.
    fn forget_keys(&mut self, keys: &Bound<'_, Keys>) {
        let blocks = &mut self.blocks;
        let mut named: HashSet<Key> = keys.get().0.keys().iter().copied().collect();
        let ids: Vec<u32> = blocks.ids().collect();
        let mut before = None;
        while before != Some(named.len()) {
            before = Some(named.len());
            for &id in &ids {
                let Held { above, own } = blocks.held[id as usize];
                if named.contains(&own) || named.contains(&above) {
                    named.insert(own);
                    blocks.known[id as usize] = false;
                }
            }
        }
    }

    /// Forgets all.
    fn clear(&mut self) {
        self.blocks.known.fill(false);
    }

    /// Returns what is known of blocks that are evicted next, and forgets it.
    ///
    /// Args:
    ///     ids: Free blocks of the engine, the next victim first.
    ///
    /// Returns:
    ///     For each row of blocks that follow one another: their keys, behind that of the block
    ///     before them; the ids; and the place of the first id among the keys, 1, or 0 where the
    ///     first key is its own.
    fn take(&mut self, ids: &Bound<'_, PyAny>) -> PyResult<Vec<(Keys, Vec<u32>, u32)>> {
        let (ids, blocks) = (self.checked(ids)?, &mut self.blocks);
        let mut rows: Vec<(Vec<Key>, Vec<u32>)> = Vec::new();
        // The end of a sequence is evicted before its start.
        for id in ids.into_iter().rev() {
            if !std::mem::take(&mut blocks.known[id]) {
                continue;
            }
            let Held { above, own } = blocks.held[id];
            match rows.last_mut() {
                Some((keys, ids)) if keys.last() == Some(&above) => {
                    keys.push(own);
                    ids.push(id as u32);
                }
                _ => {
                    let keys = if above == NONE {
                        vec![own]
                    } else {
                        vec![above, own]
                    };
                    rows.push((keys, vec![id as u32]));
                }
            }
        }
        let row = |(keys, ids): (Vec<Key>, Vec<u32>)| {
            let first = (keys.len() - ids.len()) as u32;
            let tokens = keys.len() as u64 * u64::from(self.block_size);
            let chain = Chain::ready(self.block_size, keys, tokens).map_err(Failure::from)?;
            Ok((Keys(chain), ids, first))
        };
        rows.into_iter().map(row).collect()
    }
}

impl FreedKeys {
    fn checked(&self, ids: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
        let ids: Vec<u32> = integers("ids", ids)?;
        if let Some(id) = ids.iter().find(|&&id| id >= self.count) {
            let most = i64::from(self.count) - 1;
            let message = format!("ids = {id}: must be an integer from 0 to {most}");
            return Err(Failure::misuse(message).into());
        }
        Ok(ids.into_iter().map(|id| id as usize).collect())
    }
}

impl Blocks {
    fn ids(&self) -> impl Iterator<Item = u32> {
        let known = (0..).zip(&self.known);
        known.filter_map(|(id, &known)| known.then_some(id))
    }
}
