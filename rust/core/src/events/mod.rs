//! Events for routers, while somebody listens: beside each node of the trie its tokens, and the tiers
//! on which it was emitted.
//!
//! An event says that a block was stored on a tier or removed from it. A removal is noted when it
//! happens, by the block's number, as the node may be dropped before anybody asks. Of a block that
//! was stored the place alone is noted: what is there is looked up when a slice is handed over. Who
//! comes late and who has let too much wait are served by the same walk over the trie, in slices.

mod early_tokens;
mod marks;
mod sealed;
mod slice;
mod wire;

use crate::base::{Id, Ix, Key, NodeIx, Result, Tier, memory};
use crate::keys::Extras;
use early_tokens::EarlyTokens;
pub(crate) use early_tokens::Late;
pub(crate) use marks::Marks;
use marks::{
    AWAITED, EMITTED, LABEL, LACKS, NUMBER, ORIGIN, PARENT, PLACED, QUEUED, ROOT, SALTED, TOKENS,
};
pub(crate) use slice::{Gone, Slice, Stored};
use std::collections::VecDeque;
use std::sync::Arc;
pub(crate) use wire::Batch;

/// Places that are passed at most while a slice is made.
pub(crate) const PLACES: usize = 1024;

/// Whether blocks with a tenant's salt are emitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Salts {
    /// They are not: to whoever heard them without it, they would be another tenant's.
    #[default]
    Hide,
    /// With their salt, to everybody who listens.
    Tell,
}

/// How listeners hear that nothing of what was emitted is true any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Clears {
    /// All blocks of the rank are gone.
    #[default]
    All,
    /// Each block that was emitted is removed: others emit blocks of this rank, too.
    Own,
}

/// How many events were emitted, and how many were not.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EventStats {
    /// Blocks emitted as stored, on each tier anew.
    pub stored: u64,
    /// Blocks emitted as removed.
    pub removed: u64,
    /// Events that were dropped because nobody took them; a resync followed.
    pub lost: u64,
    /// Resyncs: how often all blocks were emitted again.
    pub resyncs: u64,
    /// Blocks that came to a tier and were not emitted in their turn, as their tokens were not known.
    pub deferred: u64,
    /// Blocks that came to a tier and were not emitted, as they have a salt.
    pub salted: u64,
    /// Blocks whose tokens are not known now, or that come after one of these.
    pub unknown_tokens: u64,
    /// Snapshots that were made.
    pub snapshots: u64,
}

/// The number by which a key is emitted: its last eight bytes, as vLLM tells its own.
#[inline]
pub(crate) fn number(key: &Key) -> u64 {
    u64::from_be_bytes(*key.0.last_chunk().unwrap_or(&[0; 8]))
}

/// What besides its tokens a sequence's keys are made of; `None`: nothing.
pub(crate) type Origin = Option<Arc<Extras>>;

/// What stands before a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Above {
    /// Nothing: it is the first of its sequence.
    Root,
    /// A block of this number.
    Block(u64),
    /// A block that was dropped, or has no key.
    Unknown,
}

/// What blocks of a sequence stand for that their keys do not say.
#[derive(Clone, Copy)]
pub struct Spoken<'a> {
    /// Of whole blocks, one behind the other.
    pub(crate) tokens: &'a [u32],
    pub(crate) origin: &'a Origin,
    /// The first block's place in its sequence.
    pub(crate) block: u32,
}

impl<'a> Spoken<'a> {
    /// The tokens from this block on.
    fn tokens_from(&self, block: u32, size: usize) -> Option<&'a [u32]> {
        let start = block.checked_sub(self.block)? as usize * size;
        self.tokens.get(start..)
    }

    /// What one of the blocks stands for.
    fn of(&self, block: u32, size: usize) -> Option<Self> {
        let tokens = self.tokens_from(block, size)?.get(..size)?;
        Some(Self {
            tokens,
            block,
            ..*self
        })
    }
}

/// Shows none of it.
impl std::fmt::Debug for Spoken<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.tokens.len())
    }
}

/// What most blocks have not: a number that is not its key's, or an origin, with its place in its sequence.
#[derive(Clone, Default)]
struct Special {
    number: u64,
    origin: Origin,
    block: u32,
}

/// A walk over all places, each block behind the ones above it.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Places from this one on were not looked at yet.
    pub(crate) cursor: u32,
    /// Blocks that wait for the one behind them, which is their parent.
    pub(crate) path: Vec<Id<NodeIx>>,
}

impl Walk {
    /// One that has passed all places.
    pub(crate) const ENDED: Self = Self {
        cursor: u32::MAX,
        path: Vec::new(),
    };

    /// The next place of a trie of so many.
    pub(crate) fn next(&mut self, places: usize) -> Option<NodeIx> {
        if self.cursor as usize >= places {
            self.cursor = u32::MAX;
            return None;
        }
        self.cursor += 1;
        Some(NodeIx::new(self.cursor - 1))
    }
}

/// What was emitted to a listener, and what waits to be.
pub(crate) struct Events {
    block_size: usize,
    salts: Salts,
    clears: Clears,
    /// Events that wait at most.
    most: usize,
    marks: Vec<Marks>,
    /// The numbers of the blocks above. A seal writes these, marks and tokens, and nothing else.
    parents: Vec<u64>,
    special: Vec<Special>,
    tokens: Vec<u32>,
    /// Places of blocks that were stored, the oldest first; those that the walk comes to are not in it.
    queue: VecDeque<NodeIx>,
    /// What has gone, in this order.
    removed: Vec<Gone>,
    /// Whether nothing of what was emitted before these is true any more.
    cleared: bool,
    pub(crate) walk: Walk,
    early: EarlyTokens,
    pub(crate) stats: EventStats,
}

/// Shows no token, no key and no salt.
impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events")
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl Events {
    /// For a trie of so many blocks at most, of which `most` events may wait.
    ///
    /// # Errors
    /// `Memory` where there is none.
    pub(crate) fn new(
        block_size: u32,
        blocks: usize,
        (most, salts, clears): (usize, Salts, Clears),
    ) -> Result<Self> {
        let mut queue = Vec::new();
        memory::reserve(&mut queue, most.min(blocks), "the events")?;
        let mut events = Self {
            block_size: block_size as usize,
            salts,
            clears,
            most,
            marks: Vec::new(),
            parents: Vec::new(),
            special: Vec::new(),
            tokens: Vec::new(),
            queue: queue.into(),
            removed: Vec::new(),
            cleared: clears == Clears::All,
            walk: Walk::default(),
            early: EarlyTokens::new(2 * blocks),
            stats: EventStats::default(),
        };
        events.reserve(blocks)?;
        Ok(events)
    }

    /// Room for a trie of so many blocks.
    pub(crate) fn reserve(&mut self, blocks: usize) -> Result<()> {
        memory::reserve(&mut self.removed, self.most.min(blocks), "the events")?;
        memory::reserve(&mut self.marks, blocks, "the events")?;
        memory::reserve(&mut self.parents, blocks, "the events")?;
        memory::reserve(&mut self.special, blocks, "the events")?;
        let tokens = blocks.saturating_mul(self.block_size);
        memory::reserve(&mut self.tokens, tokens, "the tokens of blocks")
    }

    /// Steps that a slice takes: it is no longer than what may wait.
    pub(crate) fn steps(&self) -> usize {
        PLACES.min(self.most / 4)
    }

    #[inline]
    pub(crate) fn marks(&self, node: NodeIx) -> Marks {
        self.marks.get(node.at()).copied().unwrap_or_default()
    }

    /// The number by which a block of this key is emitted.
    #[inline]
    pub(crate) fn number_of(&self, node: NodeIx, key: &Key) -> u64 {
        if self.marks(node).has(NUMBER) {
            return self.special[node.at()].number;
        }
        number(key)
    }

    /// The marks of a place, for which there is room then.
    #[inline]
    fn marks_mut(&mut self, node: NodeIx) -> &mut u16 {
        if node.at() >= self.marks.len() {
            self.widen(node.at() + 1);
        }
        &mut self.marks[node.at()].0
    }

    #[cold]
    fn widen(&mut self, places: usize) {
        self.marks.resize(places, Marks::default());
        self.parents.resize(places, 0);
        self.special.resize(places, Special::default());
        self.tokens.resize(places * self.block_size, 0);
    }

    // -- what a block is ------------------------------------------------------------------

    /// Notes what stands before a block. It stays what it was, as a key says its whole prefix.
    #[inline]
    pub(crate) fn place(&mut self, node: NodeIx, above: Above) {
        let marks = self.marks_mut(node);
        if *marks & PLACED != 0 {
            return;
        }
        match above {
            Above::Root => *marks |= ROOT,
            Above::Block(parent) => {
                *marks |= PARENT;
                self.parents[node.at()] = parent;
            }
            Above::Unknown => {}
        }
    }

    /// Notes what a block stands for.
    #[inline]
    pub(crate) fn speak(&mut self, node: NodeIx, spoken: Spoken<'_>) {
        *self.marks_mut(node) |= TOKENS;
        let at = node.at();
        if self.salts == Salts::Hide
            && let Some(own) = spoken.origin
            && own.salt.is_some()
        {
            self.marks[at].0 |= SALTED;
            return;
        }
        if spoken.origin.is_some() {
            self.marks[at].0 |= ORIGIN;
            self.special[at].origin.clone_from(spoken.origin);
            self.special[at].block = spoken.block;
        }
        let start = at * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(spoken.tokens);
    }

    /// The same of a block that has come without it, by the number that its engine has for it.
    pub(crate) fn describe(&mut self, node: NodeIx, own: u64, above: Above, spoken: Spoken<'_>) {
        self.lack(node, false);
        let marks = self.marks_mut(node);
        *marks = *marks & !PLACED | NUMBER;
        self.special[node.at()].number = own;
        self.place(node, above);
        self.speak(node, spoken);
    }

    /// Remembers what a block stands for that may come.
    pub(crate) fn foretell(&mut self, key: u64, own: u64, above: Above, spoken: Spoken<'_>) {
        self.early.insert(key, own, above, spoken);
    }

    /// Publishes the tokens of a block that were noted before it was known.
    pub(crate) fn recall(&mut self, node: NodeIx, key: u64) {
        let early = std::mem::take(&mut self.early);
        if let Some((own, above, spoken)) = early.get(key) {
            self.describe(node, own, above, spoken);
        }
        self.early = early;
    }

    /// The place has no block any more.
    #[inline]
    pub(crate) fn dropped(&mut self, node: NodeIx) {
        if let Some(marks) = self.marks.get_mut(node.at()) {
            debug_assert!(!marks.has(EMITTED), "dropped, and emitted");
            let before = *marks;
            marks.0 &= QUEUED;
            if before.has(ORIGIN | LACKS) {
                self.release(node, before);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn release(&mut self, node: NodeIx, before: Marks) {
        self.stats.unknown_tokens -= u64::from(before.lacks());
        self.special[node.at()].origin = None;
    }

    // -- what happens -----------------------------------------------------------------------

    /// A block may have to be emitted.
    #[inline]
    pub(crate) fn stored(&mut self, node: NodeIx) {
        if self.is_due(node) {
            return;
        }
        if self.is_full() {
            return self.overflow();
        }
        *self.marks_mut(node) |= QUEUED;
        self.queue.push_back(node);
    }

    /// A block of this key has left a tier. `false`: it is none of the most, and nothing is noted yet.
    #[inline]
    pub(crate) fn removed_plain(&mut self, node: NodeIx, tier: Tier, key: &Key) -> bool {
        let bit = 1 << tier.at();
        let waiting = self.queue.len() + self.removed.len();
        let has_room = waiting < self.most && self.removed.len() < self.removed.capacity();
        match self.marks.get_mut(node.at()) {
            Some(marks) if has_room && marks.0 & (bit | SALTED | NUMBER | LACKS) == bit => {
                marks.0 &= !bit;
                self.removed.push(Gone {
                    number: number(key),
                    node,
                    tier: tier.at() as u8,
                });
                true
            }
            _ => false,
        }
    }

    /// A block of this key has left a tier.
    pub(crate) fn removed(&mut self, node: NodeIx, tier: Tier, key: &Key) {
        let (before, bit) = (self.marks(node), 1 << tier.at());
        if !before.has(bit) {
            return;
        }
        *self.marks_mut(node) &= !bit;
        if before.has(SALTED) {
            return;
        }
        if self.clears == Clears::All && self.is_full() {
            return self.overflow();
        }
        self.removed.push(Gone {
            number: self.number_of(node, key),
            node,
            tier: tier.at() as u8,
        });
    }

    /// How many events an overflow drops. Where no clear stands for them, removals stay: there are no more
    /// than blocks that were emitted.
    fn waiting(&self) -> usize {
        match self.clears {
            Clears::All => self.queue.len() + self.removed.len(),
            Clears::Own => self.queue.len(),
        }
    }

    /// How many events more may wait.
    fn room(&self) -> usize {
        self.most.saturating_sub(self.waiting())
    }

    fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Nobody has taken what waits for too long.
    #[cold]
    fn overflow(&mut self) {
        self.stats.lost += self.waiting() as u64;
        self.stats.resyncs += 1;
        self.resync();
    }

    /// All is emitted again: what waited is found by the walk.
    pub(crate) fn resync(&mut self) {
        match self.clears {
            Clears::All => self.forget_emitted(),
            Clears::Own => self.unqueue(!QUEUED),
        }
        self.walk = Walk::default();
    }

    /// The epoch has ended. `order`: what was emitted, children first.
    pub(crate) fn clear<'a>(&mut self, order: impl Iterator<Item = (NodeIx, &'a Key)>) {
        for (node, key) in order {
            for tier in bits(self.marks(node).emitted()) {
                self.removed(node, Tier(tier.into()), key);
            }
        }
        match self.clears {
            Clears::All => self.forget_emitted(),
            Clears::Own => self.unqueue(LABEL),
        }
        self.stats.unknown_tokens = 0;
        self.walk = Walk::ENDED;
    }

    fn forget_emitted(&mut self) {
        self.removed.clear();
        self.cleared = true;
        self.stats.unknown_tokens = 0;
        self.unqueue(LABEL);
    }

    fn unqueue(&mut self, keeps: u16) {
        self.queue.clear();
        self.marks.iter_mut().for_each(|marks| marks.0 &= keeps);
    }

    /// Whether each block that was emitted has to be removed by itself.
    pub(crate) fn removes_each(&self) -> bool {
        self.clears == Clears::Own
    }

    // -- what is handed over ----------------------------------------------------------------

    /// Hands over what has gone, and whether all had before.
    pub(crate) fn hand_removed(&mut self, out: &mut Slice) {
        out.cleared = std::mem::take(&mut self.cleared);
        self.hand_gone(out);
    }

    /// Hands over what has gone, unless all had before: that is emitted first.
    pub(crate) fn hand_gone(&mut self, out: &mut Slice) {
        if self.cleared {
            return;
        }
        std::mem::swap(&mut self.removed, &mut out.removed);
        self.stats.removed += out.removed.len() as u64;
    }

    /// The next place to look at: of what waits, then of the walk over `places`.
    pub(crate) fn next(&mut self, places: usize) -> Option<NodeIx> {
        let Some(node) = self.queue.pop_front() else {
            return self.walk.next(places);
        };
        self.marks[node.at()].0 &= !QUEUED;
        Some(node)
    }

    /// Whether more is to be handed over.
    pub(crate) fn has_more(&self) -> bool {
        let walks = self.walk.cursor < u32::MAX || !self.walk.path.is_empty();
        walks || !self.queue.is_empty() || !self.removed.is_empty()
    }

    /// Whether a block may be in the queue or on the walk, so that it may have to be emitted.
    pub(crate) fn is_due(&self, node: NodeIx) -> bool {
        self.marks(node).has(QUEUED) || node.get() >= self.walk.cursor
    }

    /// A block on the device is not emitted, as the one above it was not.
    pub(crate) fn wait_for(&mut self, above: NodeIx) {
        *self.marks_mut(above) |= AWAITED;
    }

    /// Counts a block as one without tokens, or no more.
    #[inline]
    pub(crate) fn lack(&mut self, node: NodeIx, lacks: bool) {
        if self.marks(node).lacks() == lacks {
            return;
        }
        *self.marks_mut(node) ^= LACKS;
        self.stats.unknown_tokens += u64::from(lacks);
        self.stats.unknown_tokens -= u64::from(!lacks);
    }

    /// Emits a block on these tiers, where it was not.
    #[inline]
    pub(crate) fn emit(&mut self, node: NodeIx, tiers: u8, key: &Key, out: &mut Slice) {
        let marks = &mut self.marks[node.at()];
        let before = *marks;
        marks.0 |= u16::from(tiers);
        if before.has(AWAITED) && tiers & 1 != 0 {
            // Those that wait are somewhere.
            marks.0 &= !AWAITED;
            self.walk.cursor = 0;
        }
        if before.has(SALTED) {
            self.stats.salted += u64::from(tiers.count_ones());
            return;
        }
        self.stats.stored += u64::from(tiers.count_ones());
        self.copy(node, tiers, key, out);
    }

    /// Copies what a listener must know of a block.
    #[inline]
    pub(crate) fn copy(&self, node: NodeIx, tiers: u8, key: &Key, out: &mut Slice) {
        let marks = self.marks[node.at()];
        let start = node.at() * self.block_size;
        let tokens = &self.tokens[start..start + self.block_size];
        let mut stored = Stored {
            number: self.number_of(node, key),
            parent: marks.has(PARENT).then(|| self.parents[node.at()]),
            origin: None,
            block: 0,
            tiers,
        };
        if marks.has(ORIGIN) {
            let special = &self.special[node.at()];
            (stored.origin, stored.block) = (special.origin.clone(), special.block);
        }
        out.store(stored, tokens);
    }
}

/// The tiers of a set, the fastest first.
pub(crate) fn bits(mut set: u8) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let tier = set.trailing_zeros() as u8;
        set &= set.checked_sub(1)?;
        Some(tier)
    })
}
