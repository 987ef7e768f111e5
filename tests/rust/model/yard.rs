//! A naive yard: what the laws say, as plain maps and scans. Nothing is cached: holders, evictable
//! blocks and promises are recomputed for every query.
//!
//! Which free slot is given out is the core's business: the model learns it from tables and plans,
//! and checks that it was free. So it is with the host's victims: the order of a lower tier is not
//! modelled, only that a victim may be taken and that no more go than must. The device's victims
//! are predicted exactly.

use blockyard_core::{
    FlightId, HolderId, Key, LeaseId, ParkedId, Probe, Retention, Room, Speeds, State, Stats, Stop,
    TicketId, Tier, TierStats, WritePolicy,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) type Block = usize;

pub(crate) const DEVICE: usize = 0;
pub(crate) const HOST: usize = 1;

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
    pub(crate) slots: [Option<u32>; 2],
    /// Copies down that have failed since one was good.
    pub(crate) failures: u32,
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
    pub(crate) short: bool,
    pub(crate) ended: Option<Retention>,
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
    Down(Option<ParkedId>),
    Up(LeaseId, usize),
    Private(Option<LeaseId>, usize),
}

#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) purpose: Purpose,
    /// The block, its source and its destination.
    pub(crate) moves: Vec<(Option<Block>, u32, u32)>,
    pub(crate) overdue: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Yard {
    pub(crate) block_size: u64,
    pub(crate) recompute: bool,
    pub(crate) retries: u32,
    pub(crate) null: u32,
    pub(crate) limits: [u32; 2],
    pub(crate) blocks: Vec<Node>,
    pub(crate) slots: [BTreeMap<u32, What>; 2],
    /// Idle slots of the device, the next to go first within its class.
    pub(crate) order: Vec<(Class, u32)>,
    pub(crate) leases: BTreeMap<LeaseId, Seq>,
    pub(crate) parked: BTreeMap<ParkedId, Stay>,
    /// The tier, and its blocks promised to a request that does not run yet, or to a sequence about
    /// to be parked.
    pub(crate) tickets: BTreeMap<TicketId, (usize, u64)>,
    /// Blocks promised for the growth of the running batch.
    pub(crate) headroom: u64,
    pub(crate) flights: BTreeMap<FlightId, InFlight>,
    pub(crate) held: Vec<(u64, Vec<u32>, Retention)>,
    pub(crate) done: Option<u64>,
    pub(crate) epoch: u64,
    pub(crate) parkings: u64,
    pub(crate) evicted: [u64; 2],
    pub(crate) write: WritePolicy,
    /// Published and not copied down yet, and how many of them are remembered.
    pub(crate) fresh: VecDeque<Block>,
    pub(crate) most_fresh: usize,
    /// Blocks that were touched more than once.
    pub(crate) again: BTreeSet<Block>,
    /// Blocks whose end was seen, and keys of those that have not come back.
    pub(crate) gone: BTreeSet<Block>,
    pub(crate) ghosts: BTreeSet<Key>,
    pub(crate) speeds: Option<Speeds>,
    pub(crate) slow: u64,
    /// Numbers for leases that have no handle.
    pub(crate) unnamed: u64,
}

impl Yard {
    pub(crate) fn blocks_of(&self, tokens: u64) -> usize {
        tokens.div_ceil(self.block_size) as usize
    }

    /// The block whose copy, ready or on its way, is in the slot.
    pub(crate) fn block_in(&self, tier: usize, slot: u32) -> Option<Block> {
        match self.slots[tier].get(&slot) {
            Some(What::Ready(block) | What::Filling(Some(block))) => Some(*block),
            _ => None,
        }
    }

    pub(crate) fn blocks_on(&self, tier: usize) -> impl Iterator<Item = Block> {
        self.slots[tier]
            .keys()
            .filter_map(move |&slot| self.block_in(tier, slot))
    }

    pub(crate) fn alive(&self, block: Block) -> bool {
        self.blocks[block].slots != [None; 2]
    }

    pub(crate) fn kept(&self, block: Block) -> bool {
        self.parked.values().any(|stay| stay.path.contains(&block))
    }

    pub(crate) fn in_table(&self, slot: u32) -> bool {
        let tables = self
            .leases
            .values()
            .map(|seq| &seq.table)
            .chain(self.held.iter().map(|held| &held.1));
        tables.flatten().any(|&held| held == slot)
    }

    /// Whether a table, a duplicate or a keep holds the slot.
    pub(crate) fn has_holder(&self, tier: usize, slot: u32) -> bool {
        let on = |&block: &Block| self.blocks[block].slots[tier] == Some(slot);
        if tier == HOST {
            return self.parked.values().any(|stay| stay.path.iter().any(on));
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

    pub(crate) fn read(&self, tier: usize, slot: u32) -> bool {
        self.flights
            .values()
            .any(|flight| flight.from == tier && flight.moves.iter().any(|step| step.1 == slot))
    }

    pub(crate) fn ready(&self, block: Block, tier: usize) -> Option<u32> {
        self.blocks[block].slots[tier].filter(|slot| self.slots[tier][slot] == What::Ready(block))
    }

    pub(crate) fn children(&self, tier: usize, block: Block) -> Vec<Block> {
        self.blocks_on(tier)
            .filter(|&child| self.blocks[child].parent == Some(block))
            .collect()
    }

    /// Idle slots that may go, those beyond the tier's size included: they are not read, and no
    /// block below them on the tier is pinned, filling or read.
    pub(crate) fn may_go(&self, tier: usize) -> BTreeSet<u32> {
        let mut may: BTreeSet<u32> = self.slots[tier]
            .keys()
            .copied()
            .filter(|&slot| self.idle(tier, slot))
            .collect();
        for &slot in self.slots[tier].keys() {
            let stays = !self.idle(tier, slot) || self.read(tier, slot);
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
            .filter(|&slot| slot < self.limits[tier])
            .count() as u64
    }

    pub(crate) fn size(&self, tier: usize) -> u64 {
        u64::from(self.limits[tier] - if tier == DEVICE { self.null } else { 0 })
    }

    pub(crate) fn free(&self, tier: usize) -> u64 {
        self.size(tier) - self.slots[tier].range(..self.limits[tier]).count() as u64
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
        let owed = |block: &Block| self.blocks[*block].slots[HOST].is_none();
        kept.into_iter().filter(owed).count() as u64 + tickets
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
            capacity: self.size(tier) + self.slots[tier].range(self.limits[tier]..).count() as u64,
            free: self.free(tier),
            takeable: self.takeable(tier),
            promised: self.promised(tier),
            ..TierStats::default()
        };
        for (&slot, what) in &self.slots[tier] {
            *match what {
                What::Claimed => &mut stats.claimed,
                What::Quarantined => &mut stats.quarantined,
                _ if self.idle(tier, slot) => &mut stats.idle,
                _ => &mut stats.pinned,
            } += 1;
        }
        stats
    }

    pub(crate) fn find(&self, key: &Key) -> Option<Block> {
        let mut all = self.blocks_on(DEVICE).chain(self.blocks_on(HOST));
        all.find(|&block| {
            self.blocks[block].key == Some(*key) && self.blocks[block].epoch == self.epoch
        })
    }

    pub(crate) fn filling(&self, block: Block, tier: usize) -> Option<FlightId> {
        let slot = self.blocks[block].slots[tier].filter(|_| self.ready(block, tier).is_none())?;
        let into =
            |flight: &InFlight| flight.to == tier && flight.moves.iter().any(|step| step.2 == slot);
        self.flights
            .iter()
            .find(|(_, flight)| into(flight))
            .map(|(&id, _)| id)
    }

    /// The longest prefix that is there: first on the device, then on the host.
    pub(crate) fn walk(&self, keys: &[Key]) -> (Vec<Block>, Probe) {
        let (mut path, mut probe) = (Vec::new(), Probe::default());
        for key in keys {
            let Some(block) = self.find(key) else {
                probe.stop = Stop::Missing;
                break;
            };
            let top = usize::from(self.blocks[block].slots[DEVICE].is_none());
            if let Some(flight) = self.filling(block, top) {
                probe.stop = Stop::Filling(flight);
                break;
            }
            if !path.is_empty() && self.waits_for_a_fence(block) {
                probe.stop = Stop::Promised;
                break;
            }
            assert!(top == HOST || probe.hits[HOST] == 0, "INV-21");
            probe.hits[top] += 1;
            path.push(block);
        }
        (path, probe)
    }

    pub(crate) fn probe(&self, keys: &[Key]) -> Probe {
        let (path, probe) = self.walk(keys);
        let missing = self.write == WritePolicy::SecondTouch && probe.stop == Stop::Missing;
        Probe {
            evicted: missing.then(|| self.ghosts.contains(&keys[path.len()])),
            ..probe
        }
    }

    /// What has left every tier since the last call leaves a ghost.
    pub(crate) fn haunt(&mut self) {
        for block in 0..self.blocks.len() {
            if !self.alive(block) && self.gone.insert(block) {
                self.ghosts.extend(self.blocks[block].key);
            }
        }
    }

    /// Blocks in flight between these tiers, in flights that may still end in time.
    pub(crate) fn in_flight(&self, from: usize, to: usize) -> u32 {
        let all = self.flights.values().filter(|flight| !flight.overdue);
        all.filter(|flight| (flight.from, flight.to) == (from, to))
            .map(|flight| flight.moves.len() as u32)
            .sum()
    }

    /// Whether loading beats computing, by adding up what each block takes.
    pub(crate) fn pays(&self, blocks: usize, after: usize) -> bool {
        let Some(speeds) = self.speeds else {
            return true;
        };
        let queue = u64::from(self.in_flight(HOST, DEVICE));
        let computing: u64 = (after..after + blocks)
            .map(|before| speeds.compute + speeds.attend * before as u64)
            .sum();
        (queue + blocks as u64) * speeds.load[1] < computing
    }

    pub(crate) fn compare_questions(&self, state: &State) {
        let (down, up) = (self.in_flight(DEVICE, HOST), self.in_flight(HOST, DEVICE));
        assert_eq!(state.blocks_in_flight(), (down, up), "in flight");
        assert_eq!(state.worth_loading(Tier::HOST, 3, 1), self.pays(3, 1));
        for tier in [DEVICE, HOST] {
            let room = Room {
                free: self.free(tier) as u32,
                evictable: self.takeable(tier) as u32,
                promised: self.promised(tier) as u32,
                available: (self.spare(tier) as u64).cast_signed(),
                headroom: if tier == DEVICE {
                    self.headroom as u32
                } else {
                    0
                },
                evicted: self.evicted[tier],
            };
            assert_eq!(state.room(Tier(tier)), Ok(room));
        }
        let lacks = |&&block: &&Block| self.blocks[block].slots[HOST].is_none();
        let leases = self.leases.values().map(|seq| {
            let blocks = seq.table.len();
            (blocks, seq.limit.saturating_sub(blocks))
        });
        let parked = self.parked.values();
        let parked = parked.map(|stay| (stay.on_device, stay.path.iter().filter(lacks).count()));
        let tickets = self.tickets.values().map(|ticket| (0, ticket.1 as usize));
        let mut here: Vec<_> = leases.chain(parked).chain(tickets).collect();
        here.sort_unstable_by(|one, other| other.cmp(one));
        let told = state.holders().into_iter();
        let told: Vec<_> = told
            .map(|holder| {
                (
                    holder.held[0] as usize,
                    holder.promised.iter().sum::<u32>() as usize,
                )
            })
            .collect();
        assert_eq!(told, here, "holders");
        for holder in state.holders() {
            let mut then = self.clone();
            let room = |yard: &Self| yard.free(DEVICE) + yard.takeable(DEVICE);
            let shared = match holder.id {
                HolderId::Lease(id) if !self.leases.contains_key(&id) => continue,
                HolderId::Lease(id) if self.leases[&id].ended.is_some() => continue,
                HolderId::Lease(id) => {
                    then.end(id, Retention::Ordinary, None);
                    self.leases[&id].resumed.is_some()
                }
                HolderId::Parked(id)
                    if self.parked.get(&id).is_none_or(|stay| stay.lease.is_some()) =>
                {
                    assert_eq!(holder.alone, 0);
                    continue;
                }
                HolderId::Parked(id) => {
                    then.end_keep(id);
                    false
                }
                HolderId::Ticket(id) => {
                    let (tier, blocks) = self.tickets[&id];
                    assert_eq!(u64::from(holder.promised[tier]), blocks);
                    continue;
                }
            };
            let (alone, gained) = (u64::from(holder.alone), room(&then) - room(self));
            assert!(
                alone == gained || ((shared || !self.flights.is_empty()) && alone < gained),
                "{:?} has {alone} alone, and its end gives {gained}",
                holder.id
            );
        }
    }

    pub(crate) fn compare(&self, stats: &Stats) {
        for tier in [DEVICE, HOST] {
            assert_eq!(stats.tiers[tier], self.sizes(tier), "tier {tier}");
            assert_eq!(
                stats.counters.evicted[tier], self.evicted[tier],
                "evicted from tier {tier}"
            );
        }
        assert_eq!(stats.counters.slow, self.slow, "skipped as slow");
        let blocks: BTreeSet<Block> = self.blocks_on(DEVICE).chain(self.blocks_on(HOST)).collect();
        let told = (
            stats.leases,
            stats.parked,
            stats.tickets,
            stats.flights,
            stats.blocks,
            stats.epoch,
        );
        let here = (
            self.leases.len() as u64,
            self.parked.len() as u64,
            self.tickets.len() as u64,
            self.flights.len() as u64,
            blocks.len() as u64,
            self.epoch,
        );
        assert_eq!(
            told, here,
            "leases, parked, tickets, flights, blocks, epoch"
        );
    }
}
