//! The policies that there are. Each is registered once, below.

use super::heap::Heap;
use super::learned::Learned;
use super::queues::Queues;
use super::recency::Recency;
use super::usage::{Asks, UsageView};
use super::{Children, Evict, Evictability, InsertAt, Stamps, Views};
use crate::base::{Class, Result, SlotIx};
use std::ops::{Deref, DerefMut};

/// Registers policies: the name by which a user chooses each, and what carries it out.
macro_rules! policies {
    ($($(#[$about:meta])* $name:ident($policy:ty),)+) => {
        /// Which policy a yard uses.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub enum EvictionPolicy {
            $($(#[$about])* $name,)+
        }

        impl EvictionPolicy {
            /// What it asks of a block.
            pub(crate) fn asks(self) -> Asks {
                match self {
                    $(Self::$name => <$policy>::ASKS,)+
                }
            }

            /// Bytes that it has of a slot.
            pub(crate) fn bytes(self) -> usize {
                match self {
                    $(Self::$name => <$policy>::BYTES,)+
                }
            }
        }

        /// A policy at work, of one tier. It is an [`Evict`].
        #[derive(Hash, Debug)]
        pub(crate) enum Policy {
            $($name($policy),)+
        }

        impl Policy {
            /// For a tier of so many slots, which holds `room` blocks together with those above it.
            pub(crate) fn new(
                kind: EvictionPolicy,
                slots: usize,
                room: usize,
                children: Children,
            ) -> Result<Self> {
                Ok(match kind {
                    $(EvictionPolicy::$name => Self::$name(<$policy>::new(slots, room, children)?),)+
                })
            }
        }

        impl Deref for Policy {
            type Target = dyn Evict;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(policy) => policy,)+
                }
            }
        }

        impl DerefMut for Policy {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $(Self::$name(policy) => policy,)+
                }
            }
        }
    };
}

policies! {
    /// Lists by class in order of last use: O(1).
    #[default]
    Recency(Queues<Recency>),
    /// Lists by what is known of a block's uses; which goes first is learned.
    Learned(Queues<Learned>),
    /// An indexed heap of leaves by priority and last use: O(log n).
    Heap(Heap),
}

/// What happens to each block, out of the way of the policy that costs least.
macro_rules! for_each_block {
    ($(fn $verb:ident($($given:ident: $type:ty),+) $(-> $answer:ty)?;)+) => {
        impl Policy {
            $(#[inline]
            pub(crate) fn $verb(&mut self, $($given: $type),+) $(-> $answer)? {
                #[inline(never)]
                fn other(policy: &mut Policy, $($given: $type),+) $(-> $answer)? {
                    (**policy).$verb($($given),+)
                }
                match self {
                    Self::Recency(policy) => policy.$verb($($given),+),
                    _ => other(self, $($given),+),
                }
            })+
        }
    };
}

for_each_block! {
    fn insert(slot: SlotIx, class: Class, view: UsageView<'_>, place: InsertAt, evictability: Evictability);
    fn insert_path(path: &[SlotIx], class: Class, views: Views<'_>, evictability: Evictability);
    fn remove(slot: SlotIx);
    fn remove_path(path: &[SlotIx]);
    fn evict(slot: SlotIx);
    fn refresh(slot: SlotIx, evictability: Evictability);
    fn victim(stamps: Stamps<'_>) -> Option<SlotIx>;
}
