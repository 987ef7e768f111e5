//! Questions of a scheduler and of whoever asks why: how much room there is, who holds what, and
//! what is in the air. They change nothing.

use super::State;
use super::keep::HOST;
use crate::error::{Error, Result};
use crate::id::{LeaseId, ParkedId, TicketId, Tier};

/// Room on one tier, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// Slots nobody has.
    pub free: u32,
    /// Idle blocks that may be evicted now.
    pub evictable: u32,
    /// Of both together, what is promised.
    pub promised: u32,
    /// Blocks evicted so far.
    pub evicted: u64,
}

/// Who holds blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Who {
    /// A running sequence, or one that has ended and waits for its loads.
    Lease(LeaseId),
    /// A parked sequence, or one that is coming back and waits for its loads.
    Parked(ParkedId),
    /// A ticket, for somebody who does not run yet.
    Ticket(TicketId),
}

/// What one of them holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Which.
    pub who: Who,
    /// Device blocks in its table, or that its keeps pin.
    pub device: u32,
    /// Blocks promised to it: growth or a ticket's on the device; for a parked one slots of the
    /// host, a shared block for each that keeps it.
    pub promised: u32,
}

impl State {
    /// Room on a tier.
    ///
    /// # Errors
    /// `Argument` for a tier that is not there.
    pub fn room(&self, tier: Tier) -> Result<Room> {
        let Some(storey) = self.tiers.get(tier.at()) else {
            let help = "this cache was made without that tier";
            return Err(Error::argument("tier", tier.name(), help));
        };
        Ok(Room {
            free: storey.ledger.free(),
            evictable: storey.ledger.takeable(),
            promised: storey.ledger.promised(),
            evicted: self.counters.evicted[tier.at()],
        })
    }

    /// Who holds what, the largest first. It takes time in proportion to all that is held.
    pub fn holders(&self) -> Vec<Holder> {
        let running = self.leases.iter().map(|(lease, record)| Holder {
            who: Who::Lease(self.lease_id(lease)),
            device: record.blocks(),
            promised: record.promised(),
        });
        let owed = |path: &[u32]| {
            let lacks = |&&node: &&u32| self.trie[node].slot(HOST).is_none();
            path.iter().filter(lacks).count() as u32
        };
        let parked = self.parked.iter().map(|(parked, record)| Holder {
            who: Who::Parked(ParkedId(self.parked.id(parked))),
            device: record.on_device,
            promised: owed(&record.path),
        });
        let tickets = self.tickets.iter().map(|(ticket, record)| Holder {
            who: Who::Ticket(TicketId(self.tickets.id(ticket))),
            device: 0,
            promised: record.blocks,
        });
        let mut all: Vec<Holder> = running.chain(parked).chain(tickets).collect();
        all.sort_unstable_by_key(|holder| {
            let blocks = (holder.device, holder.promised);
            (std::cmp::Reverse(blocks), holder.who)
        });
        all
    }

    /// Blocks in the air, down and up; those of flights whose end is unknown do not count.
    pub fn blocks_in_air(&self) -> (u32, u32) {
        self.air.into()
    }

    /// Whether loading so many blocks behind `after` others, and behind all that is on its way
    /// up, takes less time than computing them; always, where no speeds are known.
    pub fn worth_loading(&self, blocks: u32, after: u32) -> bool {
        self.config
            .speeds
            .is_none_or(|speeds| speeds.worth(blocks, after, self.air[1]))
    }
}
