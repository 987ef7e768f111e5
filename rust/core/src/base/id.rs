//! Names for things: newtypes without logic.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// Tiers a yard may have: device, host, disk, remote.
pub const MAX_TIERS: usize = 4;

/// The chained hash of a block's tokens and of everything before them, in a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key(pub [u8; 32]);

impl Key {
    /// Where a parent's key is asked for: the block is the first of its sequence.
    pub const NO_PARENT: Self = Self([0; 32]);
    /// Where a key is asked for: the block was dropped, and its key is not known any more.
    pub const UNKNOWN: Self = Self([0xFF; 32]);
    /// Leading bytes that are zero in the key of an anonymous block, and behind them its number.
    const ZEROS: usize = 24;
    /// Leading bytes that are zero where a root stands for a parent.
    const BEFORE_ROOT: usize = 16;

    /// What stands for the key of an anonymous block, which has none: its own as long as it lives.
    pub(crate) fn anonymous(node: Id<NodeIx>) -> Self {
        let mut key = Self::NO_PARENT;
        key.0[Self::ZEROS..].copy_from_slice(&node.number().to_le_bytes());
        key
    }

    /// Whether it stands for the key of an anonymous block: one that was parked before it had a
    /// key. No published block has such a key where a tier is keyed.
    pub fn is_anonymous(&self) -> bool {
        self.0.starts_with(&[0; Self::ZEROS]) && *self != Self::NO_PARENT
    }

    /// What stands for the parent of a sequence's first block: the sequence's root, by 127 of its bits.
    pub(crate) fn of_root(root: &Self) -> Self {
        let mut key = Self::NO_PARENT;
        key.0[Self::BEFORE_ROOT..].copy_from_slice(&root.0[..32 - Self::BEFORE_ROOT]);
        key.0[Self::BEFORE_ROOT] |= 1;
        key
    }

    /// Whether it is the root of a sequence, in the place of a parent.
    pub fn is_root(&self) -> bool {
        self.0.starts_with(&[0; Self::BEFORE_ROOT]) && self.0[Self::BEFORE_ROOT] & 1 == 1
    }

    /// Whether it stands for something else than a published block.
    pub(crate) fn is_reserved(&self) -> bool {
        self.0.starts_with(&[0; Self::ZEROS]) || *self == Self::UNKNOWN
    }

    /// Its 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        let digits = b"0123456789abcdef";
        let pair = |byte: &u8| [digits[(byte >> 4) as usize], digits[(byte & 15) as usize]];
        self.0.iter().flat_map(pair).map(char::from).collect()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", &self.hex()[..16])
    }
}

/// Which yard made a plan: a number that is drawn when the yard starts, 0 for a yard without one.
/// Replicas have the same.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct YardId(pub u64);

/// It decides nothing, so that no digest has it.
impl Hash for YardId {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Which start of a process made a yard: the upper half of every generation of a slot. No two starts on
/// one address may have the same, so that it is drawn at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boot(pub NonZeroU32);

impl Default for Boot {
    fn default() -> Self {
        Self(NonZeroU32::MIN)
    }
}

/// It is another one on each replica, so that no digest has it.
impl Hash for Boot {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Layers whose KV is kept in the same way: each group has a yard of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Group(pub u8);

/// A kind of memory made of slots: 0 is the device, higher numbers lie below it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Tier(pub usize);

impl Tier {
    /// GPU memory.
    pub const DEVICE: Self = Self(0);
    /// Pinned host memory.
    pub const HOST: Self = Self(1);
    /// Disk.
    pub const DISK: Self = Self(2);
    /// Stores that engines share. Its slots are names: where a block is follows from its key.
    pub const REMOTE: Self = Self(3);

    #[inline]
    pub(crate) fn at(self) -> usize {
        self.0
    }

    /// The tier's word.
    pub fn name(self) -> &'static str {
        ["device", "host", "disk", "remote"]
            .get(self.at())
            .copied()
            .unwrap_or("tier")
    }
}

/// Room for one block. A slot knows its group and tier, so that a host slot is never taken for a
/// device slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Slot {
    /// The layers that it is for.
    pub group: Group,
    /// Where it is.
    pub tier: Tier,
    /// Its number there: an address, stable for the life of the tier.
    pub index: u32,
}

/// An index into an array of one kind, so that a node is never taken for a slot, nor a slot for a
/// flight.
pub(crate) trait Ix: Copy + Eq + Ord + Hash + fmt::Debug {
    fn new(number: u32) -> Self;
    fn get(self) -> u32;

    /// For an array that has an element of each.
    #[inline]
    fn at(self) -> usize {
        self.get() as usize
    }
}

/// Indices that are hashed together: an even number, so that they fill whole words.
const ROW: usize = 64;

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(u32);

        /// As plain numbers, of which a row is hashed as bytes and not one by one.
        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }

            fn hash_slice<H: Hasher>(row: &[Self], state: &mut H) {
                for part in row.chunks(ROW) {
                    let mut plain = [0; ROW];
                    for (number, index) in plain.iter_mut().zip(part) {
                        *number = index.0;
                    }
                    u32::hash_slice(&plain[..part.len()], state);
                }
            }
        }

        impl Ix for $name {
            #[inline]
            fn new(number: u32) -> Self {
                Self(number)
            }

            #[inline]
            fn get(self) -> u32 {
                self.0
            }
        }

        /// Tests compare with plain numbers.
        #[cfg(test)]
        impl PartialEq<u32> for $name {
            fn eq(&self, number: &u32) -> bool {
                self.0 == *number
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

index!(
    /// A block's place in the trie.
    NodeIx
);
index!(
    /// A slot's number on its tier; which tier that is stands beside it.
    SlotIx
);
index!(
    /// A running sequence's place.
    LeaseIx
);
index!(
    /// A parked sequence's place.
    ParkedIx
);
index!(
    /// A ticket's place.
    TicketIx
);
index!(
    /// A hold's place.
    HoldingIx
);
index!(
    /// A flight's place.
    FlightIx
);

/// An index that leaves `Option<Link>` 4 bytes wide.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Link<I>(NonZeroU32, PhantomData<I>);

impl<I> fmt::Debug for Link<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&(self.0.get() - 1)).finish()
    }
}

impl<I: Ix> Link<I> {
    #[inline]
    pub(crate) fn to(index: I) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index.get()), PhantomData)
    }

    #[inline]
    pub(crate) fn at(self) -> I {
        I::new(self.0.get() - 1)
    }

    /// The same number as an index of another kind, for a field that is lent.
    #[inline]
    pub(crate) fn lent<J: Ix>(self) -> Link<J> {
        Link(self.0, PhantomData)
    }
}

/// An index into an arena with the generation it was given out in: a stale one finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Id<I> {
    pub(crate) index: I,
    pub(crate) generation: NonZeroU32,
}

impl<I: Ix> Id<I> {
    pub(crate) fn number(self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.index.get())
    }

    fn from_number(number: u64) -> Option<Self> {
        let generation = NonZeroU32::new((number >> 32) as u32)?;
        Some(Self {
            index: I::new(number as u32),
            generation,
        })
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $index:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub(crate) Id<$index>);

        impl $name {
            /// Where its record is, if it lives.
            #[inline]
            pub(crate) fn at(self) -> $index {
                self.0.index
            }

            /// The same as one number, for sending and logging.
            pub fn number(self) -> u64 {
                self.0.number()
            }

            /// Back from [`Self::number`]; `None` for a number that was never one.
            pub fn from_number(number: u64) -> Option<Self> {
                Id::from_number(number).map(Self)
            }
        }
    };
}

handle!(
    /// Which lease; never given out twice.
    LeaseId, LeaseIx
);
handle!(
    /// Which parked sequence; never given out twice.
    ParkedId, ParkedIx
);
handle!(
    /// Which ticket; never given out twice.
    TicketId, TicketIx
);
handle!(
    /// Which hold; never given out twice.
    HoldId, HoldingIx
);
handle!(
    /// Which flight; never given out twice.
    FlightId, FlightIx
);

/// The five sets of slots; every slot of a tier is in exactly one (INV-1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Set {
    Free,
    Claimed,
    Pinned,
    Idle,
    Quarantined,
}

/// How soon an idle block may be evicted; a block's class is never below its children's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub(crate) enum Class {
    /// Of an epoch that `clear` has ended.
    Cleared,
    /// A copy of a block that a higher tier has too and has used since: where such copies go first.
    Copied,
    /// Its session has ended.
    Ended,
    #[default]
    Ordinary,
    /// Asked to be kept longer.
    Retained,
    /// A copy of a block that a higher tier has too, where such copies go last. It enters the other classes when the higher
    /// copy is dropped: then, and leaf first, because higher tiers are evicted leaf first.
    Shadow,
}

impl Class {
    pub(crate) const COUNT: usize = 6;
}
