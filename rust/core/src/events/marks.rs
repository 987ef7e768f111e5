//! What is known of a place of the trie, in two bytes.

use crate::base::MAX_TIERS;

/// A bit for each tier where its block was emitted, the lowest ones, and flags.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Marks(pub(super) u16);

pub(super) const EMITTED: u16 = (1 << MAX_TIERS) - 1;
/// Its keys are made of more than tokens.
pub(super) const ORIGIN: u16 = 1 << 7;
/// It waits in the queue, whichever block it has by then.
pub(super) const QUEUED: u16 = 1 << 8;
/// Its block is counted as one without tokens.
pub(super) const LACKS: u16 = 1 << 9;
/// A block on the device waits for this one to be emitted there.
pub(super) const AWAITED: u16 = 1 << 10;
pub(super) const TOKENS: u16 = 1 << 11;
pub(super) const ROOT: u16 = 1 << 12;
pub(super) const PARENT: u16 = 1 << 13;
/// It has a salt that is not emitted. Its tokens are not kept.
pub(super) const SALTED: u16 = 1 << 14;
/// Its number is not its key's.
pub(super) const NUMBER: u16 = 1 << 15;
pub(super) const PLACED: u16 = ROOT | PARENT;
/// What stays as long as the block does.
pub(super) const LABEL: u16 = TOKENS | PLACED | SALTED | NUMBER | ORIGIN;

impl Marks {
    #[inline]
    pub(super) fn has(self, any: u16) -> bool {
        self.0 & any != 0
    }

    /// The tiers where the block was emitted, a bit for each.
    #[inline]
    pub(crate) fn emitted(self) -> u8 {
        (self.0 & EMITTED) as u8
    }

    /// Whether it is known what stands before the block.
    #[inline]
    pub(crate) fn is_placed(self) -> bool {
        self.has(PLACED)
    }

    #[inline]
    pub(crate) fn has_tokens(self) -> bool {
        self.has(TOKENS)
    }

    /// Whether all is known that an event must say.
    #[inline]
    pub(crate) fn is_complete(self) -> bool {
        self.is_placed() && self.has_tokens()
    }

    /// Whether the block is counted as one without tokens.
    #[inline]
    pub(crate) fn lacks(self) -> bool {
        self.has(LACKS)
    }

    /// Whether a snapshot has the block.
    #[inline]
    pub(crate) fn is_in_snapshot(self) -> bool {
        self.has(EMITTED) && !self.has(SALTED)
    }
}
