//! What is copied under the lock for a listener, and how it is encoded outside of it.

use super::wire::{Batch, Extra, Head};
use super::{Origin, bits};
use crate::base::{Ix, NodeIx, Result, memory};
use crate::keys::{Extras, Media};

/// A block as a listener must know it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) number: u64,
    /// `None` at the root.
    pub(crate) parent: Option<u64>,
    pub(crate) origin: Origin,
    /// Its place in its sequence.
    pub(crate) block: u32,
    /// A bit for each tier where it is stored.
    pub(crate) tiers: u8,
}

/// A block that a listener must forget on a tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub(crate) number: u64,
    /// Its place, which another block may have by now.
    pub(crate) node: NodeIx,
    pub(crate) tier: u8,
}

/// Blocks that a slice has at most, and tokens: both take time under the lock.
const BLOCKS: usize = 384;
const TOKENS: usize = 16 * BLOCKS;

/// Some of what has happened: nothing is true any more, then what is gone, then what is stored.
#[derive(Default)]
pub(crate) struct Slice {
    /// Blocks that it has at most.
    most: usize,
    pub(crate) cleared: bool,
    pub(crate) removed: Vec<Gone>,
    stored: Vec<Stored>,
    tokens: Vec<u32>,
}

impl Slice {
    /// One with room for all that a slice may have, and for so many removals.
    ///
    /// # Errors
    /// `Memory` where there is none.
    pub(crate) fn with_room(block_size: u32, removed: usize) -> Result<Self> {
        let mut slice = Self {
            most: (TOKENS / block_size as usize).clamp(1, BLOCKS),
            ..Self::default()
        };
        memory::reserve(&mut slice.removed, removed, "the events")?;
        memory::reserve(&mut slice.stored, slice.most, "the events")?;
        let tokens = slice.most.saturating_mul(block_size as usize);
        memory::reserve(&mut slice.tokens, tokens, "the events")?;
        Ok(slice)
    }

    /// Blocks that are looked at together at most, while the lock is held.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn is_full(&self) -> bool {
        self.stored.len() >= self.most
    }

    pub(crate) fn store(&mut self, stored: Stored, tokens: &[u32]) {
        self.stored.push(stored);
        self.tokens.extend_from_slice(tokens);
    }

    /// Adds it to a batch, and empties it; its room stays.
    pub(crate) fn encode(&mut self, block_size: u32, batch: &mut Batch) {
        batch.reserve(self.stored.len(), self.removed.len(), block_size);
        if self.cleared {
            batch.cleared();
        }
        let mut numbers = Vec::new();
        encode_gone(&self.removed, &mut numbers, batch);
        self.cleared = false;
        self.removed.clear();
        self.encode_stored(block_size, batch);
    }

    /// Adds what is stored to a batch, and forgets it.
    pub(crate) fn encode_stored(&mut self, block_size: u32, batch: &mut Batch) {
        let mut numbers = Vec::new();
        let all = self.stored.iter().fold(0, |set, one| set | one.tiers);
        for tier in bits(all) {
            let mut at = 0;
            while at < self.stored.len() {
                at = self.encode_run(at, tier, block_size, &mut numbers, batch);
            }
        }
        self.stored.clear();
        self.tokens.clear();
    }

    /// Adds what has gone to a batch of its own, and to that of a snapshot what this has emitted before: who
    /// begins with it hears of nothing that it does not know. `seen`: the tiers that it emitted of each place.
    pub(crate) fn encode_late(&mut self, seen: &[u8], before: &mut Batch, snapshot: &mut Batch) {
        let mut numbers = Vec::new();
        encode_gone(&self.removed, &mut numbers, before);
        self.removed
            .retain(|gone| seen[gone.node.at()] & 1 << gone.tier != 0);
        encode_gone(&self.removed, &mut numbers, snapshot);
        self.removed.clear();
    }

    /// Adds the blocks from this one on that follow each other on a tier, as one event. Returns the first
    /// behind them.
    fn encode_run(
        &self,
        start: usize,
        tier: u8,
        block_size: u32,
        numbers: &mut Vec<u64>,
        batch: &mut Batch,
    ) -> usize {
        let first = &self.stored[start];
        if first.tiers & 1 << tier == 0 {
            return start + 1;
        }
        numbers.clear();
        numbers.push(first.number);
        let (mut before, own) = (first, apart(&first.origin));
        for next in &self.stored[start + 1..] {
            let follows = next.tiers & 1 << tier != 0
                && next.parent == Some(before.number)
                && apart(&next.origin) == own;
            if !follows {
                break;
            }
            numbers.push(next.number);
            before = next;
        }
        let end = start + numbers.len();
        let (lora, salt) = (own.0.map(text), own.1.map(text));
        let head = Head {
            parent: first.parent,
            tier,
            block_size,
            lora: lora.as_deref(),
            salt: salt.as_deref(),
        };
        let size = block_size as usize;
        let tokens = &self.tokens[start * size..end * size];
        let run = &self.stored[start..end];
        let extras_in = |one: &Stored| match &one.origin {
            Some(own) => extras_of(own, one.block, block_size),
            None => Vec::new(),
        };
        let mut extras: Vec<Vec<Extra>> = Vec::new();
        if run.iter().any(|one| one.origin.is_some()) {
            extras.extend(run.iter().map(extras_in));
        }
        let has_some = extras.iter().any(|extras| !extras.is_empty());
        batch.stored(&head, numbers, tokens, has_some.then_some(&extras));
        end
    }
}

fn encode_gone(gone: &[Gone], numbers: &mut Vec<u64>, batch: &mut Batch) {
    for run in gone.chunk_by(|one, next| one.tier == next.tier) {
        numbers.clear();
        numbers.extend(run.iter().map(|one| one.number));
        batch.removed(run[0].tier, numbers);
    }
}

/// The adapter and the salt of a sequence: one event tells blocks that have them in common.
fn apart(origin: &Origin) -> (Option<&[u8]>, Option<&[u8]>) {
    let own = origin.as_deref();
    own.map_or((None, None), |own| {
        (own.lora.as_deref(), own.salt.as_deref())
    })
}

/// What the key of a block has besides its tokens, as vLLM says it: the salt in the first block, and the
/// media items that the block has a part of.
fn extras_of(origin: &Extras, block: u32, size: u32) -> Vec<Extra> {
    let start = u64::from(block) * u64::from(size);
    let end = start + u64::from(size);
    let over = |item: &&Media| item.start < end && item.end > start;
    let part = |item: &Media| {
        // Both are below 2^63.
        let offset = item.start.cast_signed() - start.cast_signed();
        Extra::Media(text(&item.id), offset)
    };
    let mut extras: Vec<Extra> = origin.media.iter().filter(over).map(part).collect();
    if let Some(salt) = origin.salt.as_deref().filter(|_| start == 0) {
        extras.push(Extra::Salt(text(salt)));
    }
    extras
}

/// Bytes as text: as they are, or as hexadecimal digits where they are none.
fn text(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let digits = b"0123456789abcdef";
    let pair = |byte: &u8| [digits[(byte >> 4) as usize], digits[(byte & 15) as usize]];
    bytes.iter().flat_map(pair).map(char::from).collect()
}
