//! Admit: whether a tier has room for what a verb needs, and the error where it has not. Begin and
//! its dry run, resume, fork, promote, park and tickets ask here, so that they agree.

use super::State;
use super::record::{Running, Start};
use crate::base::{Error, LeaseId, NodeIx, Result, Tier};

/// What a verb needs of a tier, beside what the tier has for it now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Decision {
    pub(super) tier: Tier,
    /// Slots to take or to promise.
    pub(super) need: u64,
    pub(super) free: u64,
    /// Idle blocks that may be evicted for it, less those that it would pin or read itself.
    pub(super) evictable: u64,
    /// Of free and evictable ones together, what is promised to others.
    pub(super) promised: u64,
    /// What of free and evictable ones is promised to no one; below zero where its own idle blocks
    /// back promises.
    pub(super) available: i64,
}

impl Decision {
    /// Whether there is room.
    pub(super) fn fits(&self) -> bool {
        i64::try_from(self.need).is_ok_and(|need| need <= self.available)
    }

    /// `NoRoom` with the numbers, where there is none.
    pub(super) fn check(self) -> Result<()> {
        if self.fits() {
            return Ok(());
        }
        let Self {
            tier,
            need,
            free,
            evictable,
            promised,
            available,
        } = self;
        Err(Error::NoRoom {
            tier,
            need,
            free,
            evictable,
            promised,
            available,
        })
    }
}

impl State {
    /// Blocks of the tokens, and with the promised growth; `TooLarge` if they can never fit.
    pub(super) fn size(&self, tokens: u64, reserve: u64) -> Result<(u32, u32)> {
        self.of_its_own("giving out blocks of the device")?;
        let limit = self.blocks_of(tokens.saturating_add(reserve));
        let limit = self.fits(Tier::DEVICE, limit)?;
        Ok((self.blocks_of(tokens) as u32, limit))
    }

    /// So many blocks, or `TooLarge` if the tier can never hold them.
    pub(super) fn fits(&self, tier: Tier, need: u64) -> Result<u32> {
        let null = self.config.null_slots_of(tier);
        let capacity = u64::from(self.tiers[tier].pool().room() - null);
        if need > capacity {
            return Err(Error::TooLarge {
                tier,
                need,
                capacity,
            });
        }
        Ok(need as u32)
    }

    /// Idle blocks of the device among these that a verb would pin or read: once it has begun they
    /// can be evicted for no one.
    pub(super) fn idle_hits(&self, path: impl Iterator<Item = NodeIx>) -> u64 {
        path.filter_map(|node| self.ready(node, Tier::DEVICE))
            .filter(|&slot| self.takeable(Tier::DEVICE, slot))
            .count() as u64
    }

    /// Whether a tier has room for `need` slots, for a verb that pins `idle_hits` idle blocks itself.
    pub(super) fn decide(&self, tier: Tier, need: u64, idle_hits: u64) -> Decision {
        let ledger = self.tiers[tier].ledger();
        Decision {
            tier,
            need,
            free: u64::from(ledger.free()),
            evictable: u64::from(ledger.takeable()).saturating_sub(idle_hits),
            promised: u64::from(ledger.promised()),
            available: ledger.available() - idle_hits.cast_signed(),
        }
    }

    /// Goes on only where there is room. A refusal is counted.
    pub(super) fn afford(&mut self, decision: Decision) -> Result<()> {
        let answer = decision.check();
        self.counters.no_room += u64::from(answer.is_err());
        answer
    }

    /// Opens the record of a sequence that takes `total` blocks, of which it has `found`: there is room for
    /// the others, and its growth is promised.
    pub(super) fn open_lease(&mut self, start: Start, total: u32, found: u32) -> LeaseId {
        self.make_room(Tier::DEVICE, total - found);
        self.tiers[Tier::DEVICE].promise(start.limit - total);
        let lease = self.leases.insert(Running::new(start));
        self.lease_id(lease)
    }
}
