//! What is known of a block's uses, and what it is worth: kept with the block whatever tier it is on, for
//! the eviction orders that ask. An order that does not ask costs nothing here.

use super::hint::{Hints, NextUse, Priority, Retention};
use crate::base::{Ix, NodeIx, Result, memory};

/// What a request has said of its blocks' future.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Hint {
    /// Nothing.
    #[default]
    None,
    /// Its session has ended.
    Ended,
    /// It will come back.
    Retain,
    /// It will come back in so long.
    Soon(NextUse),
}

impl Hint {
    /// What is promised for a time says more than a word.
    pub(crate) fn of(hints: Hints) -> Self {
        match (hints.next_use, hints.retention) {
            (_, Retention::SessionEnded) => Self::Ended,
            (Some(next_use), _) => Self::Soon(next_use),
            (None, Retention::Retain) => Self::Retain,
            (None, Retention::Ordinary) => Self::None,
        }
    }
}

/// A block's uses, in two bytes: how often it was used, how long the last request was that used it,
/// whether that found it here, and its hint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Usage(u16);

impl Usage {
    /// The most uses that are told apart.
    pub(crate) const MOST_USES: u8 = 15;
    /// How many lengths of requests are told apart.
    pub(crate) const LENGTHS: u8 = 5;
    /// Lengths of requests, in tokens, at which the next class of lengths begins.
    const BOUNDS: [u64; 4] = [512, 4 << 10, 16 << 10, 48 << 10];

    const LENGTH: u32 = 4;
    const FOUND: u32 = 7;
    const HINT: u32 = 8;
    const ENDED: u32 = 15;

    /// Of a block that is published now, and was used as often before it was dropped.
    pub(crate) fn born(before: u8) -> Self {
        Self(u16::from((before + 1).min(Self::MOST_USES)))
    }

    /// Of so many uses, the last by a request of this length, which has found it here or not, and has said
    /// this.
    #[cfg(test)]
    pub(crate) fn told(uses: u8, length: u8, found: bool, hint: Hint) -> Self {
        let mut usage =
            Self(u16::from(uses.min(Self::MOST_USES)) | u16::from(found) << Self::FOUND);
        let below = usize::from(length).checked_sub(1);
        let tokens = below.map_or(0, |below| Self::BOUNDS[below.min(3)]);
        usage.end(Ending::new(tokens, hint));
        usage
    }

    /// A request has found it here.
    pub(crate) fn find(&mut self) {
        let uses = (self.uses() + 1).min(Self::MOST_USES);
        self.0 = self.0 & !u16::from(Self::MOST_USES) | u16::from(uses) | 1 << Self::FOUND;
    }

    /// A request has ended that used it.
    #[inline]
    pub(crate) fn end(&mut self, ending: Ending) {
        let kept = self.0 & (u16::from(Self::MOST_USES) | 1 << Self::FOUND);
        self.0 = kept | ending.0;
    }

    /// Whether a request that used it has ended since it was published.
    pub(crate) fn ended(self) -> bool {
        self.0 >> Self::ENDED == 1
    }

    /// How often it was used: once, where it was not since it was published.
    pub(crate) fn uses(self) -> u8 {
        (self.0 & u16::from(Self::MOST_USES)) as u8
    }

    /// The class of the length of the last request that used it, from 0 to 4.
    pub(crate) fn length(self) -> u8 {
        (self.0 >> Self::LENGTH & 7) as u8
    }

    /// Whether the last request that used it found it here, and did not compute it.
    pub(crate) fn found(self) -> bool {
        self.0 >> Self::FOUND & 1 == 1
    }

    pub(crate) fn hint(self) -> Hint {
        match self.0 >> Self::HINT & 0x7F {
            0 => Hint::None,
            1 => Hint::Ended,
            2 => Hint::Retain,
            said => Hint::Soon(NextUse::of_step((said - 3) as u8)),
        }
    }
}

/// What the end of a request says of each block that it used: the bits of a [`Usage`] for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ending(u16);

impl Ending {
    /// Of a request of so many tokens.
    pub(crate) fn new(tokens: u64, hint: Hint) -> Self {
        let longer = Usage::BOUNDS.iter().filter(|&&least| tokens >= least);
        let said = match hint {
            Hint::None => 0,
            Hint::Ended => 1,
            Hint::Retain => 2,
            Hint::Soon(next_use) => 3 + u16::from(next_use.step()),
        };
        let length = longer.count() as u16;
        Self(length << Usage::LENGTH | said << Usage::HINT | 1 << Usage::ENDED)
    }

    /// Of its own blocks, which no other sequence has or has anything below, and of those that it shares.
    pub(crate) fn own_and_shared(tokens: u64, hints: Hints) -> [Self; 2] {
        let own = Hint::of(hints);
        let shared = if own == Hint::Ended { Hint::None } else { own };
        [own, shared].map(|hint| Self::new(tokens, hint))
    }
}

/// What a block is worth beside others, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Worth {
    pub(crate) priority: u8,
    /// The tick from which on it goes first; `u64::MAX`: none.
    pub(crate) until: u64,
}

impl Default for Worth {
    fn default() -> Self {
        Self {
            priority: Priority::default().get(),
            until: u64::MAX,
        }
    }
}

impl Worth {
    /// What is said of a request that ends at this tick, if anything is.
    pub(crate) fn of(hints: Hints, now: u64) -> Option<Self> {
        if hints.priority.is_none() && hints.ttl.is_none() {
            return None;
        }
        Some(Self {
            priority: hints.priority.unwrap_or_default().get(),
            until: hints.ttl.map_or(u64::MAX, |ttl| now + u64::from(ttl)),
        })
    }
}

/// What an order asks of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Asks {
    Nothing,
    /// How it was used.
    Uses,
    /// What it is worth.
    Worth,
}

impl Asks {
    /// Whether it learns from how blocks were used, what hints are worth too, in place of obeying them.
    pub(crate) fn learns(self) -> bool {
        self == Self::Uses
    }
}

/// What an order may ask of a block: nothing is read before it asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsageView<'a> {
    usages: &'a UsageTable,
    node: NodeIx,
}

impl UsageView<'_> {
    /// Of a block of which nothing is known.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        static NONE: UsageTable = UsageTable {
            uses: Vec::new(),
            stamps: Vec::new(),
            worths: Vec::new(),
            asks: Asks::Nothing,
            now: 0,
        };
        NONE.of(NodeIx::default())
    }

    #[inline]
    pub(crate) fn usage(self) -> Usage {
        let usage = self.usages.uses.get(self.node.at());
        usage.copied().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn worth(self) -> Worth {
        let worth = self.usages.worths.get(self.node.at());
        worth.copied().unwrap_or_default()
    }
}

/// The past of every block, by its place in the trie, as far as the order asks for it.
#[derive(Hash, Debug)]
pub(crate) struct UsageTable {
    uses: Vec<Usage>,
    /// The tick at which a request has used each last, where the order asks how.
    stamps: Vec<u32>,
    worths: Vec<Worth>,
    asks: Asks,
    /// Ticks: one for each block that a request has used, when that has ended.
    now: u64,
}

impl UsageTable {
    /// For so many blocks.
    pub(crate) fn new(blocks: usize, asks: Asks) -> Result<Self> {
        let mut usages = Self {
            uses: Vec::new(),
            stamps: Vec::new(),
            worths: Vec::new(),
            asks,
            now: 0,
        };
        usages.reserve(blocks)?;
        usages.grow(blocks);
        Ok(usages)
    }

    /// Bytes for a block.
    pub(crate) fn bytes(asks: Asks) -> usize {
        match asks {
            Asks::Nothing => 0,
            Asks::Uses => size_of::<Usage>() + size_of::<u32>(),
            Asks::Worth => size_of::<Worth>(),
        }
    }

    pub(crate) fn reserve(&mut self, blocks: usize) -> Result<()> {
        let what = "what is known of the blocks' uses";
        let usages = usize::from(self.learns()) * blocks;
        memory::reserve(&mut self.uses, usages, what)?;
        memory::reserve(&mut self.stamps, usages, what)?;
        memory::reserve(
            &mut self.worths,
            usize::from(self.asks == Asks::Worth) * blocks,
            what,
        )
    }

    /// More blocks, for which there is room.
    pub(crate) fn grow(&mut self, blocks: usize) {
        let usages = usize::from(self.learns()) * blocks;
        self.uses.resize(usages, Usage::default());
        self.stamps.resize(usages, 0);
        let worths = usize::from(self.asks == Asks::Worth) * blocks;
        self.worths.resize(worths, Worth::default());
    }

    /// Whether the order asks for anything.
    #[inline]
    pub(crate) fn asked(&self) -> bool {
        self.asks != Asks::Nothing
    }

    /// Whether the order learns what hints are worth, in place of obeying them.
    #[inline]
    pub(crate) fn learns(&self) -> bool {
        self.asks.learns()
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    #[inline]
    pub(crate) fn of(&self, node: NodeIx) -> UsageView<'_> {
        UsageView { usages: self, node }
    }

    /// The tick at which a request has used the block last, of the clock's 32 low bits.
    #[inline]
    pub(crate) fn last_use(&self, node: NodeIx) -> u32 {
        self.stamps.get(node.at()).copied().unwrap_or_default()
    }

    /// The block is in use.
    #[inline]
    pub(crate) fn touch(&mut self, node: NodeIx) {
        if let Some(stamp) = self.stamps.get_mut(node.at()) {
            *stamp = self.now as u32;
        }
    }

    /// The block is published now, and was used as often before it was dropped.
    #[inline]
    pub(crate) fn born(&mut self, node: NodeIx, before: u8) {
        if self.asked() {
            self.be_born(node, before);
        }
    }

    #[cold]
    fn be_born(&mut self, node: NodeIx, before: u8) {
        if let Some(usage) = self.uses.get_mut(node.at()) {
            *usage = Usage::born(before);
            self.stamps[node.at()] = self.now as u32;
        }
        if let Some(worth) = self.worths.get_mut(node.at()) {
            *worth = Worth::default();
        }
    }

    /// A request has found the block here.
    #[inline]
    pub(crate) fn find(&mut self, node: NodeIx) {
        if let Some(usage) = self.uses.get_mut(node.at()) {
            usage.find();
        }
    }

    /// A request of an engine that owns its device has found the block; the first one that says so is the
    /// one that has computed it.
    pub(crate) fn find_again(&mut self, node: NodeIx) {
        if let Some(usage) = self.uses.get_mut(node.at())
            && usage.ended()
        {
            usage.find();
        }
    }

    /// A request has ended that used the block. Returns what is known of it now.
    #[inline]
    pub(crate) fn end(&mut self, node: NodeIx, ending: Ending, hints: Hints) -> Usage {
        self.now += 1;
        if let Some(worth) = self.worths.get_mut(node.at()) {
            *worth = Worth::of(hints, self.now).unwrap_or(*worth);
        }
        let Some(usage) = self.uses.get_mut(node.at()) else {
            return Usage::default();
        };
        usage.end(ending);
        self.stamps[node.at()] = self.now as u32;
        *usage
    }

    /// The same of a block that is not here, of which only this is known.
    pub(crate) fn end_of_none(&mut self, before: u8, ending: Ending) -> Usage {
        self.now += 1;
        let mut usage = Usage::born(before);
        usage.end(ending);
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_says_what_was_put_in() {
        let mut usage = Usage::born(0);
        assert_eq!((usage.uses(), usage.found(), usage.length()), (1, false, 0));
        for (tokens, length) in [(511, 0), (512, 1), (4096, 2), (16_384, 3), (1 << 40, 4)] {
            usage.end(Ending::new(tokens, Hint::Ended));
            assert_eq!((usage.length(), usage.hint()), (length, Hint::Ended));
        }
        for _ in 0..20 {
            usage.find();
        }
        assert_eq!((usage.uses(), usage.found()), (Usage::MOST_USES, true));
        for step in 0..NextUse::STEPS {
            let soon = Hint::Soon(NextUse::of_step(step));
            usage.end(Ending::new(1, soon));
            assert_eq!((usage.hint(), usage.uses()), (soon, Usage::MOST_USES));
            assert!(usage.found() && usage.length() == 0);
        }
        usage.end(Ending::new(1, Hint::Retain));
        assert_eq!(usage.hint(), Hint::Retain);
        usage.end(Ending::new(1, Hint::None));
        assert_eq!(usage.hint(), Hint::None);
        let again = Usage::born(Usage::MOST_USES);
        assert_eq!((again.uses(), again.found()), (Usage::MOST_USES, false));
    }

    #[test]
    fn the_end_of_a_session_says_more_than_a_time_and_a_time_more_than_a_word() {
        let next_use = Some(NextUse::in_millis(0));
        let hints = |retention| Hints {
            next_use,
            ..Hints::from(retention)
        };
        let soon = Hint::Soon(NextUse::in_millis(0));
        assert_eq!(Hint::of(hints(Retention::SessionEnded)), Hint::Ended);
        assert_eq!(Hint::of(hints(Retention::Retain)), soon);
        assert_eq!(Hint::of(Retention::Retain.into()), Hint::Retain);
        assert_eq!(Hint::of(Hints::default()), Hint::None);
    }
}
