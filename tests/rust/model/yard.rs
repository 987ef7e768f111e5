//! A naive yard: what the laws say, as plain maps and scans. Nothing is cached: holders, evictable
//! blocks and promises are recomputed for every query.
//!
//! Which free slot is given out is the core's business: the model learns it from tables and plans,
//! and checks that it was free. So it is with the victims of the tiers below the device: their order
//! is not modelled, only that a victim may be taken, that no child of it stays on the tier, and that
//! no more go than must. The device's victims are predicted exactly where the order is recency or the
//! heap, which heeds priorities and times to live; under another order they are checked as those below.

use blockyard_core::{
    BlockCosts, EvictionPolicy, FlightId, Hints, HoldId, Key, LeaseId, MAX_TIERS, ParkedId,
    TicketId, TierStats, WritePolicy,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) type Block = usize;

pub(crate) const DEVICE: usize = 0;
/// The epoch of what was forgotten.
pub(crate) const FORGOTTEN: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Class {
    Cleared,
    Ended,
    Ordinary,
    Retained,
}

/// A block: its place in `Yard::blocks` is never used again.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) key: Option<Key>,
    pub(crate) parent: Option<Block>,
    pub(crate) epoch: u64,
    pub(crate) class: Class,
    /// What the last request that said so has said of it: a priority, and the tick at which its time
    /// has passed.
    pub(crate) worth: (u8, u64),
    pub(crate) slots: [Option<u32>; MAX_TIERS],
    /// Where it is pinned or owed a slot while it is kept.
    pub(crate) home: usize,
    /// Copies down from each tier that have failed since one was good.
    pub(crate) failures: [u32; MAX_TIERS],
}

/// An idle slot of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    pub(crate) class: Class,
    /// All have the same, but under an order that asks for it.
    pub(crate) priority: u8,
    /// The tick at which it has outlived its time.
    pub(crate) until: u64,
    pub(crate) slot: u32,
}

/// What is in a slot that is not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Claimed,
    Owned,
    Duplicate(Block),
    Filling(Option<Block>),
    Ready(Block),
    Quarantined,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Seq {
    pub(crate) table: Vec<u32>,
    pub(crate) tokens: u64,
    pub(crate) limit: usize,
    pub(crate) reserve_limit: usize,
    pub(crate) sealed: usize,
    pub(crate) cached: u64,
    pub(crate) epoch: u64,
    pub(crate) loading: u32,
    pub(crate) resumed: Option<ParkedId>,
    pub(crate) incomplete: bool,
    pub(crate) ended: Option<Hints>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Stay {
    pub(crate) path: Vec<Block>,
    pub(crate) on_device: usize,
    pub(crate) computed: u64,
    pub(crate) failures: BTreeMap<Block, u32>,
    pub(crate) order: u64,
    pub(crate) broken: bool,
    pub(crate) lease: Option<LeaseId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A copy down. For a parked sequence, it is to the home of its blocks, or their home follows it.
    Down(Option<ParkedId>),
    /// A copy of a prefix to a tier below the device, ahead of a request.
    Lift,
    Up(LeaseId, usize),
    Private(Option<LeaseId>, usize),
    /// A keyed tier drops records.
    Void,
}

#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) purpose: Purpose,
    /// The block, its source and its destination.
    pub(crate) moves: Vec<(Option<Block>, u32, u32)>,
    pub(crate) overdue: bool,
    /// Whether what it reads is held for it.
    pub(crate) reads: bool,
    /// Places of blocks that a prompt has found by hearsay.
    pub(crate) hearsay: Vec<usize>,
    /// How its copies have ended, while it waits for an earlier one of its lease: how many are good,
    /// and whether the next one is corrupt.
    pub(crate) ended: Option<(usize, bool)>,
}

/// A block that has landed on a tier below the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) block: Block,
    /// The number of its landing: of what has landed together the order is not known.
    pub(crate) landing: u64,
    /// Whether the core must remember it still.
    pub(crate) sure: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Yard {
    pub(crate) block_size: u64,
    pub(crate) recompute: bool,
    pub(crate) retries: u32,
    /// Tiers that keep what they have under its key.
    pub(crate) keyed: [bool; MAX_TIERS],
    pub(crate) null: u32,
    /// How many tiers it was made with.
    pub(crate) tiers: usize,
    pub(crate) limits: [u32; MAX_TIERS],
    /// Slots whose memory is gone.
    pub(crate) withdrawn: [BTreeSet<u32>; MAX_TIERS],
    pub(crate) blocks: Vec<Node>,
    pub(crate) slots: [BTreeMap<u32, What>; MAX_TIERS],
    /// Idle slots of the device, the next to go first within its class and priority.
    pub(crate) order: Vec<Idle>,
    pub(crate) policy: EvictionPolicy,
    /// Copies on the host of what the device has may go first.
    pub(crate) copies_first: bool,
    /// Blocks that ended requests have used.
    pub(crate) ticks: u64,
    /// Where the device's victims are not predicted: how many have gone that no call has asked for yet.
    pub(crate) surplus: u64,
    pub(crate) leases: BTreeMap<LeaseId, Seq>,
    pub(crate) parked: BTreeMap<ParkedId, Stay>,
    /// The tier, and its blocks promised to a request that does not run yet, or to a sequence about
    /// to be parked.
    pub(crate) tickets: BTreeMap<TicketId, (usize, u64)>,
    /// Slots that are held, of those that the device had at first; and how often the generation of each was
    /// raised.
    pub(crate) holds: BTreeMap<HoldId, Vec<u32>>,
    pub(crate) first_size: u32,
    pub(crate) raised: BTreeMap<u32, u64>,
    /// Blocks promised for the growth of the running batch.
    pub(crate) headroom: u64,
    pub(crate) flights: BTreeMap<FlightId, InFlight>,
    pub(crate) held: Vec<(u64, Vec<u32>, Hints)>,
    pub(crate) done: Option<u64>,
    pub(crate) epoch: u64,
    pub(crate) parkings: u64,
    pub(crate) evicted: [u64; MAX_TIERS],
    /// Slots of the device to keep free, and blocks evicted for that.
    pub(crate) kept_free: u64,
    pub(crate) evicted_ahead: u64,
    /// Leases that have ended their loads.
    pub(crate) loaded: u64,
    pub(crate) writes: [WritePolicy; MAX_TIERS],
    /// Published and not copied down yet.
    pub(crate) fresh: VecDeque<Block>,
    /// Of those that were passed, as they had a copy then: what may stand in line still.
    pub(crate) maybe: BTreeSet<Block>,
    /// What has come to each tier below the device.
    pub(crate) came: [VecDeque<Arrival>; MAX_TIERS],
    /// How many blocks of each tier are remembered so: the most slots that it has had.
    pub(crate) most_fresh: [usize; MAX_TIERS],
    /// Blocks that were touched more than once.
    pub(crate) again: BTreeSet<Block>,
    /// Blocks whose end was seen, and keys of those that have not come back.
    pub(crate) gone: BTreeSet<Block>,
    pub(crate) ghosts: BTreeSet<Key>,
    pub(crate) block_costs: Option<BlockCosts>,
    pub(crate) slow: u64,
    /// Numbers for leases that have no handle.
    pub(crate) unnamed: u64,
    /// How many flights have landed.
    pub(crate) landings: u64,
    /// Whether anything was begun, or restored.
    pub(crate) used: bool,
    /// Blocks that stores are only said to have.
    pub(crate) hearsay: BTreeSet<Block>,
    /// Hits that were counted there, and blocks that proved to be none.
    pub(crate) found: u64,
    pub(crate) lost: u64,
    /// What stores are deleting.
    pub(crate) deletes: BTreeMap<FlightId, Vec<Key>>,
}

impl Yard {
    pub(crate) fn blocks_of(&self, tokens: u64) -> usize {
        tokens.div_ceil(self.block_size) as usize
    }

    /// The tiers below this one that have slots, from the top.
    pub(crate) fn below(&self, tier: usize) -> impl Iterator<Item = usize> {
        (tier + 1..self.tiers).filter(|&tier| self.size(tier) > 0)
    }

    /// The block whose copy, ready or on its way, is in the slot.
    pub(crate) fn block_in(&self, tier: usize, slot: u32) -> Option<Block> {
        match self.slots[tier].get(&slot) {
            Some(What::Ready(block) | What::Filling(Some(block))) => Some(*block),
            _ => None,
        }
    }

    pub(crate) fn blocks_on(&self, tier: usize) -> impl Iterator<Item = Block> {
        self.slots[tier].values().filter_map(|what| match what {
            What::Ready(block) | What::Filling(Some(block)) => Some(*block),
            _ => None,
        })
    }

    pub(crate) fn alive(&self, block: Block) -> bool {
        self.blocks[block].slots != [None; MAX_TIERS]
    }

    pub(crate) fn kept(&self, block: Block) -> bool {
        self.parked.values().any(|stay| stay.path.contains(&block))
    }

    pub(crate) fn in_table(&self, slot: u32) -> bool {
        let tables = self
            .leases
            .values()
            .map(|seq| &seq.table)
            .chain(self.held.iter().map(|held| &held.1))
            .chain(self.holds.values());
        tables.flatten().any(|&held| held == slot)
    }

    /// Whether a table, a hold, a duplicate or a keep holds the slot.
    pub(crate) fn has_holder(&self, tier: usize, slot: u32) -> bool {
        let on = |&block: &Block| self.blocks[block].slots[tier] == Some(slot);
        if tier > DEVICE {
            let home = |&&block: &&Block| self.blocks[block].home == tier;
            let mut kept = self.parked.values().flat_map(|stay| &stay.path);
            return kept.any(|block| on(block) && home(&block));
        }
        self.in_table(slot)
            || self
                .parked
                .values()
                .any(|stay| stay.path[..stay.on_device].iter().any(on))
            || self.slots[DEVICE]
                .values()
                .any(|what| matches!(what, What::Duplicate(block) if on(block)))
    }

    pub(crate) fn idle(&self, tier: usize, slot: u32) -> bool {
        matches!(self.slots[tier].get(&slot), Some(What::Ready(_))) && !self.has_holder(tier, slot)
    }

    /// All slots of a tier that a table, a hold, a duplicate or a keep holds.
    fn held_slots(&self, tier: usize) -> BTreeSet<u32> {
        let on = |block: &Block| self.blocks[*block].slots[tier];
        let kept = self.parked.values().flat_map(|stay| match tier {
            DEVICE => &stay.path[..stay.on_device],
            _ => &stay.path[..],
        });
        let home = |block: &&Block| tier == DEVICE || self.blocks[**block].home == tier;
        let mut held: BTreeSet<u32> = kept.filter(home).filter_map(on).collect();
        if tier == DEVICE {
            let tables = self.leases.values().map(|seq| &seq.table);
            let tables = tables.chain(self.held.iter().map(|held| &held.1));
            held.extend(tables.chain(self.holds.values()).flatten());
            held.extend(self.slots[DEVICE].values().filter_map(|what| match what {
                What::Duplicate(block) => on(block),
                _ => None,
            }));
        }
        held
    }

    /// All slots of a tier that hold a block and have no holder.
    pub(crate) fn idle_slots(&self, tier: usize) -> BTreeSet<u32> {
        let held = self.held_slots(tier);
        let ready = self.slots[tier].iter();
        let ready =
            ready.filter(|(slot, what)| matches!(what, What::Ready(_)) && !held.contains(slot));
        ready.map(|(&slot, _)| slot).collect()
    }

    pub(crate) fn read(&self, tier: usize, slot: u32) -> bool {
        self.read_slots(tier).any(|read| read == slot)
    }

    /// What flights read on a tier, and hold.
    fn read_slots(&self, tier: usize) -> impl Iterator<Item = u32> {
        let flights = self.flights.values();
        flights
            .filter(move |flight| flight.reads && flight.from == tier)
            .flat_map(|flight| flight.moves.iter().map(|step| step.1))
    }

    pub(crate) fn ready(&self, block: Block, tier: usize) -> Option<u32> {
        self.blocks[block].slots[tier].filter(|slot| self.slots[tier][slot] == What::Ready(block))
    }

    /// Whether a tier below this one has the block, or will.
    pub(crate) fn has_copy_below(&self, block: Block, tier: usize) -> bool {
        self.blocks[block].slots[tier + 1..]
            .iter()
            .any(Option::is_some)
    }

    /// Whether a kept block has its copy where it belongs.
    pub(crate) fn at_home(&self, block: Block) -> bool {
        self.ready(block, self.blocks[block].home).is_some()
    }

    pub(crate) fn children(&self, tier: usize, block: Block) -> Vec<Block> {
        self.blocks_on(tier)
            .filter(|&child| self.blocks[child].parent == Some(block))
            .collect()
    }

    /// Idle slots that may go, those beyond the tier's size included: they are not read, and no
    /// block below them on the tier is pinned, filling or read.
    pub(crate) fn may_go(&self, tier: usize) -> BTreeSet<u32> {
        let idle = self.idle_slots(tier);
        let reads: BTreeSet<u32> = self.read_slots(tier).collect();
        let mut may = idle.clone();
        for &slot in self.slots[tier].keys() {
            let stays = !idle.contains(&slot) || reads.contains(&slot);
            let mut at = self.block_in(tier, slot).filter(|_| stays);
            while let Some((block, slot)) =
                at.and_then(|block| Some((block, self.blocks[block].slots[tier]?)))
            {
                may.remove(&slot);
                at = self.parent(block);
            }
        }
        may
    }

    pub(crate) fn takeable(&self, tier: usize) -> u64 {
        self.may_go(tier)
            .into_iter()
            .filter(|&slot| self.stays(tier, slot))
            .count() as u64
    }

    pub(crate) fn size(&self, tier: usize) -> u64 {
        let null = if tier == DEVICE { self.null } else { 0 };
        let slots = (null..self.limits[tier]).filter(|&slot| self.stays(tier, slot));
        slots.count() as u64
    }

    /// Whether the slot may be given out, were it free.
    pub(crate) fn stays(&self, tier: usize, slot: u32) -> bool {
        slot < self.limits[tier] && !self.withdrawn[tier].contains(&slot)
    }

    /// Slots that hold something, and that are given out no more.
    pub(crate) fn leaving(&self, tier: usize) -> impl Iterator<Item = u32> {
        let held = self.slots[tier].keys().copied();
        held.filter(move |&slot| !self.stays(tier, slot))
    }

    pub(crate) fn free(&self, tier: usize) -> u64 {
        let held = self.slots[tier].len() - self.leaving(tier).count();
        self.size(tier) - held as u64
    }

    pub(crate) fn promised(&self, tier: usize) -> u64 {
        let tickets = self.tickets.values().filter(|ticket| ticket.0 == tier);
        let tickets: u64 = tickets.map(|ticket| ticket.1).sum();
        if tier == DEVICE {
            let running = self.leases.values().filter(|seq| seq.ended.is_none());
            let growth = running.map(|seq| seq.limit.saturating_sub(seq.table.len()) as u64);
            return growth.sum::<u64>() + tickets + self.headroom;
        }
        let kept: BTreeSet<Block> = self
            .parked
            .values()
            .flat_map(|stay| stay.path.clone())
            .collect();
        let owed = |block: &Block| self.is_owed(*block, tier);
        kept.into_iter().filter(owed).count() as u64 + tickets
    }

    /// Whether a kept block is promised a slot on this tier.
    pub(crate) fn is_owed(&self, block: Block, tier: usize) -> bool {
        let node = &self.blocks[block];
        node.home == tier && node.slots[tier].is_none()
    }

    /// What can be had and is not promised.
    pub(crate) fn spare(&self, tier: usize) -> usize {
        (self.free(tier) + self.takeable(tier)).saturating_sub(self.promised(tier)) as usize
    }

    pub(crate) fn unbacked(&self, tier: usize) -> bool {
        self.free(tier) + self.takeable(tier) < self.promised(tier)
    }

    pub(crate) fn sizes(&self, tier: usize) -> TierStats {
        let mut stats = TierStats {
            capacity: self.size(tier) + self.leaving(tier).count() as u64,
            free: self.free(tier),
            takeable: self.takeable(tier),
            promised: self.promised(tier),
            ..TierStats::default()
        };
        let idle = self.idle_slots(tier);
        for (&slot, what) in &self.slots[tier] {
            *match what {
                What::Claimed => &mut stats.claimed,
                What::Quarantined => &mut stats.quarantined,
                _ if idle.contains(&slot) => &mut stats.idle,
                _ => &mut stats.pinned,
            } += 1;
        }
        stats
    }

    pub(crate) fn find(&self, key: &Key) -> Option<Block> {
        let mut all = (0..self.tiers).flat_map(|tier| self.blocks_on(tier));
        all.find(|&block| {
            self.blocks[block].key == Some(*key) && self.blocks[block].epoch == self.epoch
        })
    }

    /// The flight that brings the block to the tier.
    pub(crate) fn filling(&self, block: Block, tier: usize) -> Option<FlightId> {
        let slot = self.blocks[block].slots[tier].filter(|_| self.ready(block, tier).is_none())?;
        let into =
            |flight: &InFlight| flight.to == tier && flight.moves.iter().any(|step| step.2 == slot);
        self.flights
            .iter()
            .find(|(_, flight)| into(flight))
            .map(|(&id, _)| id)
    }
}
