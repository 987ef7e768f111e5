//! Questions of a scheduler, and of an operator: how much room there is, which sequences hold what,
//! and what is in flight. They change nothing.

use super::State;
use super::record::{Parked, Running};
use crate::base::{
    FlightId, FlightIx, HoldId, Ix, LeaseId, MAX_TIERS, NodeIx, ParkedId, Result, SlotIx, TicketId,
    Tier,
};
use crate::copies::BlockCosts;
use crate::tiers::Hold;

/// Room on one tier, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// Slots that are free.
    pub free: u32,
    /// Idle blocks that may be evicted now.
    pub evictable: u32,
    /// Of both together, what is promised.
    pub promised: u32,
    /// What of free and evictable ones is promised to no one.
    pub available: i64,
    /// Of what is promised, the headroom: kept for the growth of the running batch as a whole.
    pub headroom: u32,
    /// Blocks evicted so far.
    pub evicted: u64,
}

/// What holds blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HolderId {
    /// A running sequence, or one that has ended and waits for its loads.
    Lease(LeaseId),
    /// A parked sequence, or one that is coming back and waits for its loads.
    Parked(ParkedId),
    /// A ticket, for a sequence that does not run yet, or is to be parked.
    Ticket(TicketId),
    /// A hold, for a reader outside.
    Hold(HoldId),
}

/// What one of them holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Which of them.
    pub id: HolderId,
    /// Blocks of each tier in its table, or that its keeps pin.
    pub held: [u32; MAX_TIERS],
    /// Of the device's, what its end makes free or evictable at once: see [`State::exclusive_blocks`].
    pub alone: u32,
    /// Blocks of each tier promised to it: growth, or a ticket's; for a parked one slots for what has
    /// no copy below, a shared block for each that keeps it.
    pub promised: [u32; MAX_TIERS],
}

/// Device blocks of a parked sequence that are to come free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// Blocks whose copy down is in flight, whatever else pins them.
    pub moving: u32,
    /// Of the others those that only its keeps pin: each is free or evictable once what it and
    /// those below it lack is ready below, or its keeps have ended, and its copies have landed.
    pub alone: u32,
}

impl State {
    /// Room on a tier.
    ///
    /// # Errors
    /// `Argument` for a tier that is not there.
    pub fn room(&self, tier: Tier) -> Result<Room> {
        let tier_state = self.tiers.named(tier)?;
        Ok(Room {
            free: tier_state.ledger().free(),
            evictable: tier_state.ledger().takeable(),
            promised: tier_state.ledger().promised(),
            available: tier_state.ledger().available(),
            headroom: self.headroom_on(tier),
            evicted: self.counters.evicted[tier.at()],
        })
    }

    /// The blocks that a tier may hold: its size, less null and withdrawn slots.
    ///
    /// # Errors
    /// `Argument` for a tier that is not there.
    pub fn limit(&self, tier: Tier) -> Result<u32> {
        let tier_state = self.tiers.named(tier)?;
        Ok(tier_state.pool().room() - self.config.null_slots_of(tier))
    }

    /// The last step that the engine has done, if it has done one.
    pub fn last_done(&self) -> Option<u64> {
        self.done
    }

    /// How many leases have ended their loads: while it stays, none of those that load has.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// Device blocks that the end of this lease makes free or evictable at once, or more: no other
    /// sequence holds them, and no copy reads them or fills what is below.
    ///
    /// # Errors
    /// `Spent` or `Foreign` for a lease that is not there.
    pub fn exclusive_blocks(&self, id: LeaseId) -> Result<u32> {
        Ok(self.lease_alone(&self.leases[self.lease(id)?]))
    }

    fn lease_alone(&self, record: &Running) -> u32 {
        if record.has_ended() {
            return 0;
        }
        // Up to the last block in flight its path stays until that has landed.
        let landing = match record.loading() {
            0 => 0,
            _ => self.last_filling(record) as usize,
        };
        record.table[landing..]
            .iter()
            .map(|&slot| self.given_back(slot))
            .sum()
    }

    fn parked_alone(&self, record: &Parked) -> u32 {
        if record.lease.is_some() {
            return 0;
        }
        let path = record.path[..record.on_device as usize].iter();
        path.filter_map(|&node| self.trie.slot(node, Tier::DEVICE))
            .map(|slot| self.freed_by_unpin(slot))
            .sum()
    }

    /// What the device is to get back of a parked sequence, in time in proportion to what of it is
    /// there. What [`State::holders`] says it holds alone is less while its copies are in flight:
    /// the blocks above a source must stay until it has landed.
    ///
    /// # Errors
    /// `Spent` or `Foreign` for one that is not there.
    pub fn pending(&self, id: ParkedId) -> Result<Pending> {
        let record = &self.parked[self.parked(id)?];
        let pool = self.tiers[Tier::DEVICE].pool();
        let mut pending = Pending::default();
        // Deepest first: whether the block below is read by a copy of this path alone.
        let mut below_lands = false;
        let path = record.path[..record.on_device as usize].iter().rev();
        for (&node, slot) in
            path.filter_map(|node| Some((node, self.trie.slot(*node, Tier::DEVICE)?)))
        {
            let cell = pool.cell(slot);
            let copy = self.copy_home(node);
            let moving = copy.is_some();
            let reads = copy.is_some_and(|flight| self.flights[flight].from == Tier::DEVICE);
            let stays = cell.readers > u32::from(reads)
                || self.trie.residency(node, Tier::DEVICE).busy > u32::from(below_lands);
            below_lands = (reads || below_lands) && !stays;
            let own = cell.hold == Hold::Pinned { pins: 1 } && pool.stays(slot);
            pending.moving += u32::from(moving);
            pending.alone += u32::from(own && !moving && !stays);
        }
        Ok(pending)
    }

    /// The flight that brings a kept block home, or to a tier below that, which may become its home.
    fn copy_home(&self, node: NodeIx) -> Option<FlightIx> {
        let home = self.trie[node].keeps.home();
        let mut below = self.tiers.below(Tier::DEVICE).filter(|&tier| tier >= home);
        below
            .find_map(|tier| self.filling(node, tier))
            .filter(|_| !self.is_home(node))
    }

    /// Slots that come back with the last holder of this one.
    fn given_back(&self, slot: SlotIx) -> u32 {
        let pool = self.tiers[Tier::DEVICE].pool();
        let cell = pool.cell(slot);
        let private = u32::from(cell.readers == 0 && pool.stays(slot));
        match cell.hold {
            Hold::Claimed { leases: 1 } | Hold::Owned { leases: 1 } => private,
            Hold::Duplicate { leases: 1 } => {
                let beside = self
                    .node_of(slot)
                    .and_then(|node| self.trie.slot(node, Tier::DEVICE));
                private + beside.map_or(0, |slot| self.freed_by_unpin(slot))
            }
            Hold::Pinned { .. } => self.freed_by_unpin(slot),
            _ => 0,
        }
    }

    /// 1 for a pinned slot that would be evictable with one pin less.
    fn freed_by_unpin(&self, slot: SlotIx) -> u32 {
        let last = self.hold(Tier::DEVICE, slot) == Hold::Pinned { pins: 1 };
        u32::from(last && self.backs(Tier::DEVICE, slot))
    }

    /// What holds blocks, the largest holder first. It takes time in proportion to all that is held.
    pub fn holders(&self) -> Vec<Holder> {
        let on = |tier: Tier, blocks| {
            let mut all = [0; MAX_TIERS];
            all[tier.at()] = blocks;
            all
        };
        let running = self.leases.iter().map(|(lease, record)| Holder {
            id: HolderId::Lease(self.lease_id(lease)),
            held: on(Tier::DEVICE, record.blocks()),
            alone: self.lease_alone(record),
            promised: on(Tier::DEVICE, record.promised()),
        });
        let parked = self.parked.iter().map(|(parked, record)| {
            let (mut held, promised) = self.kept(record);
            held[0] = record.on_device;
            Holder {
                id: HolderId::Parked(ParkedId(self.parked.id(parked))),
                held,
                alone: self.parked_alone(record),
                promised,
            }
        });
        let tickets = self.tickets.iter().map(|(ticket, record)| Holder {
            id: HolderId::Ticket(TicketId(self.tickets.id(ticket))),
            held: [0; MAX_TIERS],
            alone: 0,
            promised: on(record.tier, record.blocks),
        });
        let tier = self.held_tier();
        // An engine's own blocks are held by nobody here.
        let frees = |slot: &SlotIx| (tier == Tier::DEVICE).then(|| self.freed_by_unpin(*slot));
        let holds = self.holdings.iter().map(|(hold, record)| Holder {
            id: HolderId::Hold(HoldId(self.holdings.id(hold))),
            held: on(tier, record.table.len() as u32),
            alone: record.table.iter().filter_map(frees).sum(),
            promised: [0; MAX_TIERS],
        });
        let held = running.chain(parked).chain(holds);
        let mut all: Vec<Holder> = held.chain(tickets).collect();
        all.sort_unstable_by_key(|holder| {
            let blocks = (holder.held[0], holder.promised.iter().sum::<u32>());
            (std::cmp::Reverse(blocks), holder.id)
        });
        all
    }

    /// Blocks of a parked sequence by their home: those that are ready there, and those that it owes
    /// a slot.
    pub(super) fn kept(&self, record: &Parked) -> ([u32; MAX_TIERS], [u32; MAX_TIERS]) {
        let (mut ready, mut owed) = ([0; MAX_TIERS], [0; MAX_TIERS]);
        for &node in &record.path {
            let home = self.trie[node].keeps.home();
            ready[home.at()] += u32::from(self.ready(node, home).is_some());
            owed[home.at()] += u32::from(self.is_owed(node, home));
        }
        (ready, owed)
    }

    /// Blocks in flight, down and up; those of flights whose end is unknown do not count.
    pub fn blocks_in_flight(&self) -> (u32, u32) {
        let (mut down, mut up) = (0, 0);
        for (from, row) in self.in_flight.iter().enumerate() {
            down += row[from + 1..].iter().sum::<u32>();
            up += row[..from].iter().sum::<u32>();
        }
        (down, up)
    }

    /// Blocks in flight from one tier to another.
    ///
    /// # Errors
    /// `Argument` for a tier that is not there.
    pub fn in_flight(&self, from: Tier, to: Tier) -> Result<u32> {
        for tier in [from, to] {
            self.limit(tier)?;
        }
        Ok(self.in_flight[from.at()][to.at()])
    }

    /// Blocks in flight from a tier down, and up to it or past it from below.
    ///
    /// # Errors
    /// `Argument` for a tier that is not there.
    pub fn in_flight_of(&self, tier: Tier) -> Result<(u32, u32)> {
        self.limit(tier)?;
        let down = self.in_flight[tier.at()][tier.at() + 1..].iter().sum();
        let below = self.in_flight[tier.at() + 1..].iter();
        Ok((
            down,
            below.map(|row| row[..=tier.at()].iter().sum::<u32>()).sum(),
        ))
    }

    /// Blocks that are on their way up to the device, by where they come from.
    pub(super) fn rising(&self) -> [u32; MAX_TIERS] {
        self.in_flight.map(|row| row[0])
    }

    /// Flights that [`State::dispatch`] has given out, and of which no outcome has come.
    pub fn dispatched(&self) -> Vec<FlightId> {
        self.flights
            .iter()
            .filter(|(_, record)| record.waits.is_none() && record.ended.is_none())
            .map(|(flight, _)| FlightId(self.flights.id(flight)))
            .collect()
    }

    /// Idle blocks that nobody can have since flights read them, or something below them, or fill what
    /// is below them: for each tier with some, how many, and the flights, the oldest first. It takes
    /// time in proportion to the tiers and to what is in flight.
    pub fn idle_in_flight(&self) -> Vec<(Tier, u32, Vec<FlightId>)> {
        let all = self.tiers.all().map(|tier| self.idle_in_flight_on(tier));
        all.filter(|&(_, blocks, _)| blocks > 0).collect()
    }

    fn idle_in_flight_on(&self, tier: Tier) -> (Tier, u32, Vec<FlightId>) {
        let mut seen = vec![false; self.tiers[tier].pool().len() as usize];
        let (mut blocks, mut holders) = (0, Vec::new());
        for (flight, record) in self.flights.iter() {
            let reads = record.reads && record.from == tier;
            let fills = record.to == tier && tier > Tier::DEVICE;
            let mut holds = false;
            for step in &record.moves {
                let ends = [reads.then_some(step.from), fills.then_some(step.to)];
                for slot in ends.into_iter().flatten() {
                    let mut next = Some(slot);
                    while let Some(slot) = next {
                        let idle = matches!(self.hold(tier, slot), Hold::Idle { .. });
                        holds |= idle;
                        if std::mem::replace(&mut seen[slot.at()], true) {
                            break;
                        }
                        blocks += u32::from(idle);
                        next = self.parent_slot(tier, slot);
                    }
                }
            }
            holders.extend(holds.then_some((record.launched, flight)));
        }
        holders.sort_unstable();
        let name = |(_, flight)| FlightId(self.flights.id(flight));
        (tier, blocks, holders.into_iter().map(name).collect())
    }

    /// Plans that [`State::dispatch`] would give out now, and the flight of the oldest of them.
    pub fn undispatched(&self) -> Option<(u32, FlightId)> {
        let waiting = self
            .flights
            .iter()
            .filter_map(|(flight, record)| Some((record.waits?, flight)));
        let (plans, oldest) = waiting.fold((0, None), |(plans, oldest), next| {
            (plans + 1, Some(oldest.map_or(next, |one| next.min(one))))
        });
        oldest.map(|(_, flight)| (plans, FlightId(self.flights.id(flight))))
    }

    /// Flights in flight, and blocks that [`State::dispatch`] would give out now, to judge its work.
    pub fn dispatch_work(&self) -> usize {
        let waiting = self
            .flights
            .iter()
            .filter(|(_, record)| record.waits.is_some());
        let blocks: usize = waiting.map(|(_, record)| record.moves.len()).sum();
        self.flights.len() + blocks
    }

    /// Whether loading that many blocks from a tier, behind `after` others and behind all that is on
    /// its way up from there, takes less time than computing them; always, where no costs are known.
    pub fn worth_loading(&self, from: Tier, blocks: u32, after: u32) -> bool {
        let run = std::iter::once((from, blocks));
        let worth = |block_costs: BlockCosts| block_costs.best(run, after, self.rising()) > 0;
        self.config.block_costs.is_none_or(worth)
    }
}
