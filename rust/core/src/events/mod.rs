//! What a listener is told: a bounded list that the verbs write under the lock, and that one swap
//! hands over.
//!
//! Blocks are told by their place in the trie, and in order, so that a place may be used again. What
//! a block is comes once, as a [`Name`]; where it is ready, and where no more, takes eight bytes a
//! time. Keys are told as 64-bit numbers, which is how they go out.

mod tokens;
mod wire;

use crate::base::{Id, Ix, Key, LeaseId, NodeIx, Tier, memory};
use crate::keys::Extras;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use tokens::Kept;
pub(crate) use tokens::{NO_TOKENS, Reader, Stage, StagedRow, Tokens};
pub(crate) use wire::{Batch, Extra, Head};

/// One thing that has happened, in its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// The next name: a block has a key, or another parent.
    Named,
    /// A block may be read on a tier from here on.
    Ready(NodeIx, Tier8),
    /// No more.
    Gone(NodeIx, Tier8),
    /// Nothing of what was told is true any more: the epoch has ended.
    Cleared,
    /// Words are missing here. All are told again; so many names stand in for those before it.
    Lost { names: u32 },
}

/// A tier in a byte, so that a word takes eight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tier8(pub(crate) u8);

impl From<Tier> for Tier8 {
    fn from(tier: Tier) -> Self {
        Self(tier.0 as u8)
    }
}

/// What stands before a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Above {
    /// Nothing: it is the first of its sequence.
    Root,
    /// The block in this place, of this key.
    Block(NodeIx, u64),
    /// A block that was dropped.
    Unknown,
}

/// What a block is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) node: NodeIx,
    pub(crate) key: u64,
    pub(crate) above: Above,
    /// The number of its tokens; [`NO_TOKENS`] where they do not come with it.
    pub(crate) from: u64,
}

/// Blocks of which tokens are staged at most, for each name that there is room for.
const MOST_STAGED: u64 = 8;

/// The number by which a key is told: its last eight bytes, as vLLM tells its own.
#[inline]
pub(crate) fn number(key: &Key) -> u64 {
    u64::from_be_bytes(*key.0.last_chunk().unwrap_or(&[0; 8]))
}

/// What besides its tokens a sequence's keys are made of; `None`: nothing.
pub(crate) type Origin = Option<Arc<Extras>>;

/// A row of the last [`Stage`], and the number of its first block.
#[derive(Debug)]
struct Pending {
    lease: LeaseId,
    first: u32,
    blocks: u32,
    number: u64,
}

impl Pending {
    /// The last block of a row says which it is: the first ones need no tokens where they are sealed.
    fn ends(&self, lease: LeaseId, end: u32) -> bool {
        self.lease == lease && self.first + self.blocks == end
    }
}

/// What has happened since the last swap.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) words: Vec<Word>,
    pub(crate) names: VecDeque<Name>,
    pub(crate) tokens: Tokens,
    /// Rows of the last stage that no seal has come to.
    pending: VecDeque<Pending>,
    /// Events that were dropped because nobody took them.
    pub(crate) lost: u64,
}

impl Told {
    /// Empties it for the next swap; its room stays. It frees all tokens, which no lock waits for.
    pub(crate) fn reset(&mut self) {
        self.words.clear();
        self.names.clear();
        self.tokens.reset();
        self.pending.clear();
        self.lost = 0;
    }
}

/// How far all blocks have been told again.
#[derive(Debug, Default)]
pub(crate) struct Retelling {
    /// By place, the generation of the last block there that was told: another may have the place.
    told: Vec<Option<NonZeroU32>>,
    /// Places before this one have been looked at.
    pub(crate) cursor: u32,
    /// Blocks to tell, each waiting for the one behind it, which is its parent.
    pub(crate) path: Vec<Id<NodeIx>>,
    /// Blocks that came since, below one that had not been told.
    pub(crate) behind: Vec<Id<NodeIx>>,
}

impl Retelling {
    pub(crate) fn is_told(&self, id: Id<NodeIx>) -> bool {
        self.told.get(id.index.get() as usize) == Some(&Some(id.generation))
    }

    pub(crate) fn set_told(&mut self, id: Id<NodeIx>) {
        let at = id.index.get() as usize;
        if at >= self.told.len() {
            self.told.resize(at + 1, None);
        }
        self.told[at] = Some(id.generation);
    }
}

/// A name that has made room.
#[derive(Debug)]
pub(crate) struct Passed {
    pub(crate) node: NodeIx,
    pub(crate) key: u64,
    pub(crate) above: Above,
    /// Its tokens, if it had some.
    pub(crate) kept: Option<Kept>,
    /// Whether the block was named again since, with all that is known of it.
    pub(crate) is_again: bool,
}

/// A name that was made again: its number among all names, and whether it has tokens.
#[derive(Clone, Copy, Default, Debug)]
struct Newest {
    number: u64,
    has_tokens: bool,
}

/// The list, while somebody listens.
#[derive(Debug)]
pub(crate) struct Events {
    told: Told,
    /// Words that it holds at most.
    most: usize,
    /// Names from which on those of blocks that are no more make room.
    crowd: usize,
    /// Names that have made room.
    passed: u64,
    /// By place, the last name that was made again.
    newest: Vec<Newest>,
    pub(crate) retelling: Option<Box<Retelling>>,
}

impl Events {
    /// A list of at most `most` words, and of about `blocks` names more, so that each block has one.
    ///
    /// # Errors
    /// `Memory` where there is none.
    pub(crate) fn new(most: usize, blocks: usize) -> crate::base::Result<Self> {
        Ok(Self {
            told: Self::room(most)?,
            most,
            crowd: most + blocks,
            passed: 0,
            newest: Vec::new(),
            retelling: None,
        })
    }

    /// Room for one list: the swap brings another.
    pub(crate) fn room(most: usize) -> crate::base::Result<Told> {
        let mut told = Told::default();
        memory::reserve(&mut told.words, most + 1, "the events")?;
        let mut names = Vec::new();
        memory::reserve(&mut names, most, "the events")?;
        told.names = names.into();
        Ok(told)
    }

    /// Hands over what has happened, for an empty list.
    pub(crate) fn swap(&mut self, other: &mut Told) {
        debug_assert!(other.words.is_empty(), "it was reset outside the lock");
        std::mem::swap(&mut self.told, other);
        self.passed = 0;
        self.newest.clear();
    }

    /// What has happened since the last swap.
    pub(crate) fn pending(&self) -> &Told {
        &self.told
    }

    #[inline]
    fn skips(&self, id: Id<NodeIx>) -> bool {
        let retelling = self.retelling.as_ref();
        retelling.is_some_and(|retelling| !retelling.is_told(id))
    }

    #[inline]
    fn push(&mut self, word: Word) {
        if self.told.words.len() >= self.most {
            return self.overflow();
        }
        self.told.words.push(word);
    }

    #[inline]
    pub(crate) fn ready(&mut self, id: Id<NodeIx>, tier: Tier) {
        if !self.skips(id) {
            self.push(Word::Ready(id.index, tier.into()));
        }
    }

    #[inline]
    pub(crate) fn gone(&mut self, id: Id<NodeIx>, tier: Tier) {
        if !self.skips(id) {
            self.push(Word::Gone(id.index, tier.into()));
        }
    }

    /// A block has a key. While all are told again it counts as told, but for one that `waits`, as its
    /// parent was not.
    #[inline]
    pub(crate) fn named(&mut self, name: Name, id: Id<NodeIx>, waits: bool) {
        if let Some(retelling) = &mut self.retelling {
            if !waits {
                retelling.set_told(id);
            } else if !retelling.is_told(id) {
                retelling.behind.push(id);
            }
        }
        self.name(name);
    }

    /// The same of a block that was named before.
    pub(crate) fn name(&mut self, name: Name) {
        if self.told.words.len() >= self.most {
            self.overflow();
        }
        self.told.tokens.named(name.from);
        self.told.names.push_back(name);
        self.told.words.push(Word::Named);
    }

    /// Takes out the oldest name, where there are so many that those of blocks that are no more must make
    /// room. The oldest are those that stand in for what was lost.
    pub(crate) fn pass(&mut self, block_size: usize) -> Option<Passed> {
        if self.told.names.len() <= self.crowd {
            return None;
        }
        let Some(Word::Lost {
            names: before @ 1..,
        }) = self.told.words.first_mut()
        else {
            return None;
        };
        *before -= 1;
        let Name {
            node,
            key,
            above,
            from,
        } = self.told.names.pop_front()?;
        let own = self.passed;
        self.passed += 1;
        let kept = self.told.tokens.take(from, block_size);
        let newest = self.newest.get(node.get() as usize);
        let is_again = newest
            .is_some_and(|newest| newest.number > own && (newest.has_tokens || kept.is_none()));
        Some(Passed {
            node,
            key,
            above,
            kept,
            is_again,
        })
    }

    /// A block whose name was taken out stands still: it is named again, as it is now.
    pub(crate) fn name_again(&mut self, name: Name, kept: Option<Kept>) {
        let at = name.node.get() as usize;
        if at >= self.newest.len() {
            self.newest.resize(at + 1, Newest::default());
        }
        self.newest[at] = Newest {
            number: self.passed + self.told.names.len() as u64,
            has_tokens: kept.is_some(),
        };
        let from = kept.map_or(NO_TOKENS, |kept| self.told.tokens.keep(kept));
        self.name(Name { from, ..name });
    }

    /// Nobody has taken the list for too long: it is dropped, but for the names, and all blocks will
    /// be told again.
    #[cold]
    fn overflow(&mut self) {
        self.told.lost += self.told.words.len() as u64;
        self.tell_again();
    }

    /// All that was told is void, and will be told again.
    pub(crate) fn tell_again(&mut self) {
        self.told.words.clear();
        let names = self.told.names.len() as u32;
        self.told.words.push(Word::Lost { names });
        self.retelling = Some(Box::default());
    }

    /// The epoch has ended: what happened before it is told to nobody.
    pub(crate) fn clear(&mut self) {
        self.told.words.clear();
        self.passed += self.told.names.len() as u64;
        self.told.names.clear();
        self.told.tokens.reset();
        self.told.pending.clear();
        self.told.words.push(Word::Cleared);
        self.retelling = None;
    }

    /// Takes tokens of blocks that the next seal may publish; there are so many slots now.
    pub(crate) fn stage(&mut self, stage: Stage, slots: usize) {
        self.crowd = self.most + slots;
        let told = &mut self.told;
        told.pending.clear();
        told.tokens.forget_unnamed();
        let mut number = told.tokens.next();
        for row in &stage.rows {
            told.pending.push_back(Pending {
                lease: row.lease,
                first: row.first,
                blocks: row.blocks,
                number,
            });
            number += u64::from(row.blocks);
        }
        let most = MOST_STAGED * self.crowd as u64;
        if !told.tokens.stage(stage, most) {
            // Nobody takes them: their blocks are told when a prompt brings these tokens again.
            told.pending.clear();
        }
    }

    /// The first block that was staged for the row of a seal that ends here, and its number. A lease may
    /// come twice, and rows that nothing was sealed of are passed: so a row is known by its end, too.
    pub(crate) fn staged_for(&mut self, lease: LeaseId, end: u32) -> Option<(u32, u64)> {
        let pending = &mut self.told.pending;
        let found = pending.iter().position(|row| row.ends(lease, end));
        let row = found.and_then(|at| pending.drain(..=at).next_back());
        row.map(|row| (row.first, row.number))
    }

    /// Whether there is room for so many words of a retelling: a slice never overflows.
    pub(crate) fn has_room(&self, words: usize) -> bool {
        self.told.words.len() + words <= self.most
    }
}
