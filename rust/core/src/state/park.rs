//! Park: takes a sequence off the device without losing its work. Pins become keeps; nothing is
//! copied yet.

use super::keep::Homes;
use super::record::{Keep, Parked};
use super::{Sealing, State};
use crate::base::{Error, LeaseIx, NodeIx, ParkedId, Result, Tier};
use crate::evict::Hints;
use crate::tiers::{FORGOTTEN, KeepCount};

impl State {
    /// Parks a sequence after the engine's stop ack: `row.computed` is the frozen count of computed
    /// tokens. Full blocks are sealed first, and stay sealed whatever the answer; those that cannot be
    /// sealed, and the partial one, become anonymous. What has no copy below is promised slots of the
    /// nearest lower tier that has room; where none has, as copies elsewhere would be kept from
    /// others, all goes to the nearest that has room for all. `NoRoom` when none has: nothing is given
    /// up then.
    pub fn park(&mut self, row: &Sealing<'_>, after: Option<u64>) -> Result<ParkedId> {
        let lease = self.lease(row.lease)?;
        if self.leases[lease].is_incomplete() {
            return Ok(self.park_again(lease));
        }
        self.check_parking(row)?;
        let blocks = self.blocks_of(row.computed) as u32;
        let below = self.tiers.next_below(Tier::DEVICE);
        let limits = self.home_tiers().map(|tier| self.tiers[tier].pool().room());
        let capacity = limits.max().unwrap_or(0);
        if capacity == 0 || blocks > capacity {
            return Err(Error::TooLarge {
                tier: below.unwrap_or(Tier::HOST),
                need: u64::from(blocks),
                capacity: u64::from(capacity),
            });
        }
        self.counters.sealed += u64::from(self.seal_one(row));
        let mut path = self.sealed_path(lease);
        let homes = self.homes_for(lease, &mut path, blocks)?;
        let root = self.root_of(row.lease).filter(|_| path.is_empty());

        for block in path.len() as u32..blocks {
            let slot = self.leases[lease].table[block as usize];
            let node = self.node_of(slot).unwrap_or_else(|| {
                let node = self.trie.add(path.last().copied(), None);
                self.usages.born(node, 0);
                self.move_in(node, slot);
                node
            });
            path.push(node);
        }
        if let (Some(root), Some(&first)) = (root, path.first()) {
            // A first block that is not full is found by it alone.
            self.trie.set_root(first, root);
        }
        self.parkings += 1;
        let parked = self.parked.insert(Parked {
            path,
            computed: row.computed,
            order: self.parkings,
            ..Parked::default()
        });
        self.keep(parked, homes);
        self.counters.parked += 1;
        self.tiers[Tier::DEVICE].release(self.leases[lease].promised());
        let record = self.leases.remove(lease);
        let kept = self.parked[parked].on_device as usize;
        self.release_or_hold(record, kept, Hints::default(), after);
        self.ease_headroom();
        Ok(ParkedId(self.parked.id(parked)))
    }

    fn check_parking(&self, row: &Sealing<'_>) -> Result<()> {
        self.check_loaded(row.lease, "parking")?;
        let lease = row.lease.at();
        let record = &self.leases[lease];
        if self.detached(lease) {
            let verb = match record.epoch {
                FORGOTTEN => "forget",
                _ => "clear",
            };
            let number = row.lease.number();
            let what = format!("parking lease {number}, which {verb} has detached");
            return Err(Error::state(what, "finish it, and begin again"));
        }
        self.check_sealing(row)?;
        let found = record.cached.min(record.tokens);
        let sealed = u64::from(record.sealed) * u64::from(self.config.block_size);
        if row.computed < found.max(sealed) {
            let help = "no less can be computed than was sealed, or found at the start";
            return Err(Error::argument("computed", row.computed, help));
        }
        Ok(())
    }

    /// The published blocks of a sequence that are sealed.
    fn sealed_path(&self, lease: LeaseIx) -> Vec<NodeIx> {
        let record = &self.leases[lease];
        let mut path = Vec::with_capacity(record.table.len());
        path.extend((0..record.sealed).map_while(|block| self.published(record, block)));
        path
    }

    /// Where a sequence is kept. Its sealed `path` is lent, and given back as it was.
    fn homes_for(&self, lease: LeaseIx, path: &mut Vec<NodeIx>, blocks: u32) -> Result<Homes> {
        let (sealed, mut private) = (path.len(), 0);
        for &slot in &self.leases[lease].table[sealed..blocks as usize] {
            // A fork may have published or parked what this lease has not sealed.
            match self.node_of(slot) {
                Some(node) => path.push(node),
                None => private += 1,
            }
        }
        let homes = self.choose_homes(path, private);
        path.truncate(sealed);
        homes
    }

    /// The nearest tier that can promise what of these published blocks, and of so many private ones,
    /// has no copy below; or else all of it. A store comes last.
    fn choose_homes(&self, path: &[NodeIx], private: u64) -> Result<Homes> {
        let mut refused = None;
        for (weak, only) in [(false, false), (false, true), (true, false), (true, true)] {
            for tier in self.home_tiers() {
                if self.tiers[tier].pool().room() == 0 || weak != (tier == Tier::REMOTE) {
                    continue;
                }
                let homes = Homes { tier, only };
                let Some(mut costs) = self.keep_cost(path, homes) else {
                    return Err(Error::Unsupported {
                        what: "parked sequences that share a block",
                        value: u64::from(KeepCount::MOST),
                        help: "resume or finish some of them first",
                    });
                };
                costs[tier.at()] += private;
                let mut tiers = self.tiers.below(Tier::DEVICE);
                match tiers.try_for_each(|tier| self.decide(tier, costs[tier.at()], 0).check()) {
                    Ok(()) => return Ok(homes),
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
        }
        let tier = Tier::HOST;
        refused.map_or(Ok(Homes { tier, only: true }), Err)
    }

    /// A resume came back incomplete, and its keep is whole: the sequence is parked as it was.
    fn park_again(&mut self, lease: LeaseIx) -> ParkedId {
        self.tiers[Tier::DEVICE].release(self.leases[lease].promised());
        let record = self.leases.remove(lease);
        let again = match record.resumes() {
            Some(parked) => Parked {
                lease: None,
                ..self.parked.remove(parked)
            },
            None => Parked {
                keep: Keep::Broken,
                ..Parked::default()
            },
        };
        let parked = self.parked.insert(again);
        self.release(&record.table, 0, record.tokens, Hints::default());
        self.ease_headroom();
        ParkedId(self.parked.id(parked))
    }

    /// Gives a parked sequence up: its keeps and promises end.
    pub fn abandon(&mut self, id: ParkedId) -> Result<()> {
        let parked = self.parked(id)?;
        self.end_keep(parked);
        Ok(())
    }
}
