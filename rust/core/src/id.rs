//! Names for things: newtypes without logic.

use std::fmt;
use std::num::NonZeroU32;

/// Tiers a yard may have: device, host, disk.
pub const MAX_TIERS: usize = 3;

/// The chained hash of a block's tokens and of everything before them, in a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key(pub [u8; 32]);

impl Key {
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

/// Layers whose KV is kept in the same way. Only group 0 exists so far.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Group(pub u8);

/// A kind of memory made of slots: 0 is the device, higher numbers lie below it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Tier(pub u8);

impl Tier {
    /// GPU memory.
    pub const DEVICE: Self = Self(0);
    /// Pinned host memory.
    pub const HOST: Self = Self(1);
    /// Disk.
    pub const DISK: Self = Self(2);

    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }

    /// The tier's word.
    pub fn name(self) -> &'static str {
        ["device", "host", "disk"]
            .get(self.at())
            .copied()
            .unwrap_or("tier")
    }
}

/// Room for one block. A slot knows its group and tier, so that a host slot is never taken for a
/// device slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Slot {
    /// Whose layers it is for.
    pub group: Group,
    /// Where it is.
    pub tier: Tier,
    /// Its number there: an address, stable for the life of the tier.
    pub index: u32,
}

/// A 4-byte index that leaves `Option<Link>` 4 bytes wide.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Link(NonZeroU32);

impl Link {
    pub(crate) fn to(index: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    pub(crate) fn at(self) -> u32 {
        self.0.get() - 1
    }
}

/// An index into an arena with the generation it was given out in: a stale one finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Id {
    pub(crate) index: u32,
    pub(crate) generation: NonZeroU32,
}

impl Id {
    fn number(self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.index)
    }

    fn from_number(number: u64) -> Option<Self> {
        let generation = NonZeroU32::new((number >> 32) as u32)?;
        Some(Self {
            index: number as u32,
            generation,
        })
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub(crate) Id);

        impl $name {
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
    LeaseId
);
handle!(
    /// Which parked sequence; never given out twice.
    ParkedId
);
handle!(
    /// Which ticket; never given out twice.
    TicketId
);
handle!(
    /// Which flight; never given out twice.
    FlightId
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
    /// Its session has ended.
    Ended,
    #[default]
    Ordinary,
    /// Asked to be kept longer.
    Retained,
    /// A copy of a block that a higher tier has too. It enters the other classes when the higher
    /// copy is dropped: then, and leaf first, because higher tiers are evicted leaf first.
    Shadow,
}

impl Class {
    pub(crate) const COUNT: usize = 5;
}

/// What the caller knows of a sequence's future when it finishes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Retention {
    /// Its session has ended: what nobody else shares goes first.
    SessionEnded,
    /// Nothing is known.
    #[default]
    Ordinary,
    /// It will come back: evicted after everything else.
    Retain,
}
