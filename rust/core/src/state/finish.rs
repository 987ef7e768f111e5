//! Finish: gives back everything that a sequence holds, deepest block first, so that a child is
//! always evicted before its parent.

use super::State;
use super::record::{Held, Phase, Running};
use crate::base::{Class, LeaseId, LeaseIx, NodeIx, ParkedId, Result, SlotIx, Tier};
use crate::collections::mix;
use crate::evict::{Ending, Hints, Retention, Usage};
use crate::tiers::Hold;

impl State {
    /// Ends sequences. With `after`, a step in flight may still write: their slots are held back
    /// until that step is reported done. A sequence whose loads are in flight keeps only those, until
    /// they land. A bad row, or one that is named again, is rejected and counted, and the others
    /// are served; the error is that of the first bad row (INV-2).
    pub fn finish(
        &mut self,
        leases: &[LeaseId],
        hints: impl Into<Hints>,
        after: Option<u64>,
    ) -> Result<()> {
        let hints = hints.into();
        let mut all = Ok(());
        for &id in leases {
            match self.lease(id) {
                Ok(lease) => {
                    self.counters.finished += 1;
                    self.end(lease, hints, after);
                }
                Err(bad) => {
                    self.reject(1);
                    all = all.and(Err(bad));
                }
            }
        }
        self.ease_headroom();
        all
    }

    /// Counts handles that were turned away before their verb came here.
    pub fn reject(&mut self, handles: u64) {
        self.counters.rejected += handles;
    }

    pub(super) fn end(&mut self, lease: LeaseIx, hints: Hints, after: Option<u64>) {
        let promised = self.leases[lease].promised();
        self.tiers[Tier::DEVICE].release(promised);
        if let Phase::Loading { flights, resumes } = self.leases[lease].phase {
            // Its path stays pinned until its loads land, so that what arrives has its parents.
            let landing = self.last_filling(&self.leases[lease]);
            self.cut(lease, landing);
            let record = &mut self.leases[lease];
            record.limit = record.blocks();
            record.phase = Phase::Ended {
                flights,
                resumes,
                hints,
            };
            return;
        }
        let record = self.leases.remove(lease);
        if let Some(parked) = record.resumes() {
            self.end_keep(parked);
        }
        self.release_or_hold(record, 0, hints, after);
    }

    /// Blocks up to and with the last one in flight: while something is, all that is sealed stands
    /// there or above it, as the audit checks.
    pub(super) fn last_filling(&self, record: &Running) -> u32 {
        let last = record
            .table
            .iter()
            .rposition(|&slot| matches!(self.hold(Tier::DEVICE, slot), Hold::Filling { .. }));
        last.map_or(0, |at| at as u32 + 1)
    }

    /// Gives a table back, or holds it back for a step in flight. A keep pins the first `kept` blocks
    /// from now on.
    pub(super) fn release_or_hold(
        &mut self,
        record: Running,
        kept: usize,
        hints: Hints,
        after: Option<u64>,
    ) {
        let (table, tokens, epoch) = (record.table, record.tokens, record.epoch);
        let Some(step) = after.filter(|&step| self.done.is_none_or(|done| done < step)) else {
            return self.release(&table, kept, tokens, hints);
        };
        for &slot in &table[..kept] {
            self.pin_published(slot);
        }
        self.held.push(Held {
            step,
            table,
            tokens,
            hints,
            epoch,
        });
    }

    /// Pins the published block that a slot of a table is, or stands beside.
    fn pin_published(&mut self, slot: SlotIx) {
        let node = self.node_of(slot);
        if let Some(published) = node.and_then(|node| self.trie.slot(node, Tier::DEVICE)) {
            self.pin(Tier::DEVICE, published);
        }
    }

    /// The engine has done this step, and all before it: what was held back for them is released.
    pub fn done(&mut self, step: u64) {
        self.done = self.done.max(Some(step));
        if self.held.iter().all(|held| held.step > step) {
            return;
        }
        for held in std::mem::take(&mut self.held) {
            if held.step <= step {
                self.release(&held.table, 0, held.tokens, held.hints);
            } else {
                self.held.push(held);
            }
        }
    }

    /// Unpins a table, deepest block first, of a sequence that had so many tokens. Its pins of the first
    /// `kept` blocks become a keep's.
    ///
    /// A block's class is never below its children's: `least` carries the highest class upwards,
    /// and "session ended" reaches only as far as no other sequence has anything below.
    pub(super) fn release(&mut self, table: &[SlotIx], kept: usize, tokens: u64, hints: Hints) {
        let mut retention = hints.retention;
        if self.copies_first || self.usages.asked() {
            self.end_path(table, tokens, hints);
            if self.usages.learns() {
                // It learns what hints are worth, and obeys none.
                retention = Retention::Ordinary;
            }
        }
        let mut alone = retention == Retention::SessionEnded;
        let mut least = if retention == Retention::Retain {
            Class::Retained
        } else {
            Class::Ended
        };
        let (mut child, mut rest) = (None, table);
        while let Some((&slot, above)) = rest.split_last() {
            let device = &mut self.tiers[Tier::DEVICE];
            if !alone && device.unpins_end(slot) {
                rest = device.unpin_end(rest, kept, &mut self.trie, &self.usages, &mut least);
                continue;
            }
            rest = above;
            if let Some(node) = self.node_of(slot) {
                alone = alone && self.is_alone(node, child, slot);
                if alone {
                    self.trie[node].class = Class::Ended;
                } else {
                    least = self.trie.raise_class(node, least);
                }
                child = Some(node);
            }
            if above.len() < kept {
                self.pin_published(slot);
            }
            self.release_slot(slot);
            // It may have retired, and be gone.
            child = child.filter(|&child| self.trie.alive(child));
        }
    }

    /// Tells of the end of a request that used these blocks, which it holds still.
    #[cold]
    fn end_path(&mut self, table: &[SlotIx], tokens: u64, hints: Hints) {
        let (mut alone, mut child) = (hints.retention == Retention::SessionEnded, None);
        let (asked, endings) = (self.usages.asked(), Ending::own_and_shared(tokens, hints));
        let mut uses = std::mem::take(&mut self.scratch.uses);
        for &slot in table.iter().rev() {
            let Some(node) = self.node_of(slot) else {
                continue;
            };
            alone = alone && self.is_alone(node, child, slot);
            child = Some(node);
            if asked {
                let usage = self.usages.end(node, endings[usize::from(!alone)], hints);
                uses.push((mix(&self.trie[node].key), usage));
            }
            if self.copies_first {
                self.leave_copy(node);
            }
        }
        self.tell_orders(uses);
    }

    /// A request that ends has used blocks of these keys, the deepest first: all tiers' orders hear of it.
    pub(super) fn tell_orders(&mut self, mut uses: Vec<(u64, Usage)>) {
        for tier in self.tiers.all() {
            self.tiers[tier].used(&uses, self.usages.now());
        }
        uses.clear();
        self.scratch.uses = uses;
    }

    /// Whether this is the block's last holder and `child` the only block below it on any tier.
    fn is_alone(&self, node: NodeIx, child: Option<NodeIx>, slot: SlotIx) -> bool {
        let own = matches!(
            self.hold(Tier::DEVICE, slot),
            Hold::Pinned { pins: 1 } | Hold::Duplicate { leases: 1 }
        );
        let published = self.trie.slot(node, Tier::DEVICE);
        own && published
            .is_some_and(|slot| self.hold(Tier::DEVICE, slot) == Hold::Pinned { pins: 1 })
            && self.has_no_other(node, child)
    }

    /// Whether no keep holds the block, and `child` is the only block below it on any tier.
    pub(super) fn has_no_other(&self, node: NodeIx, child: Option<NodeIx>) -> bool {
        self.trie[node].keeps.count() == 0
            && self.tiers.all().all(|tier| {
                let own = child.is_some_and(|child| self.trie.slot(child, tier).is_some());
                self.trie.residency(node, tier).children == u32::from(own)
            })
    }

    /// Takes back what a handle held that was dropped and not finished, and counts it.
    pub(crate) fn leak_lease(&mut self, id: LeaseId) {
        if let Ok(lease) = self.lease(id) {
            self.counters.leaked += 1;
            self.end(lease, Hints::default(), None);
            self.ease_headroom();
        }
    }

    /// The same for a parked sequence.
    pub(crate) fn leak_parked(&mut self, id: ParkedId) {
        if let Ok(parked) = self.parked(id) {
            self.counters.leaked += 1;
            self.end_keep(parked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Key;
    use crate::copies::Outcome;
    use crate::evict::{EvictionPolicy, Hint};
    use crate::state::{Answer, Config, Filling, Request, Sealing};

    const BLOCK: u32 = 256;
    const ROWS: [[Key; 3]; 2] = [[key(1), key(2), key(3)], [key(1), key(2), key(4)]];

    const fn key(number: u8) -> Key {
        Key([number; 32])
    }

    fn state(engine: bool) -> State {
        let config = Config {
            policy: EvictionPolicy::Learned,
            block_size: BLOCK,
            slots: vec![16, 8],
            engine,
            ..Config::default()
        };
        State::new(config).expect("it fits")
    }

    /// What is said of the first, the second and the last block of a row.
    fn said(state: &State, row: &[Key]) -> Vec<(Hint, u8)> {
        let node = |key| state.trie.find(key).expect("it is there");
        let usage = |key| state.usages.of(node(key)).usage();
        row.iter()
            .map(|key| (usage(key).hint(), usage(key).length()))
            .collect()
    }

    /// A row has ended with its session that shares two blocks: the first of them has one child, and is
    /// no less shared. Three blocks of 256 tokens are of the lengths between 512 and 4,096.
    fn learn(state: &State, row: &[Key]) {
        let shared = (Hint::None, 1);
        assert_eq!(said(state, row), [shared, shared, (Hint::Ended, 1)]);
    }

    #[test]
    fn a_path_that_others_share_further_down_is_not_learned_as_ended_above_it() {
        let tokens = u64::from(3 * BLOCK);
        let mut own = state(false);
        for (row, says) in ROWS
            .iter()
            .zip([Retention::Ordinary, Retention::SessionEnded])
        {
            let request = Request {
                keys: row,
                tokens,
                reserve: 0,
                load: u32::MAX,
                filling: Filling::Stop,
            };
            let Ok(Answer::Begun(begun)) = own.begin(&request) else {
                unreachable!("there is room")
            };
            let found = begun.hits[0];
            let sealed = own.seal(&[Sealing {
                lease: begun.lease,
                computed: tokens,
                first: found,
                keys: &row[found as usize..],
                spoken: None,
            }]);
            assert_eq!(sealed, Ok(u64::from(3 - found)));
            own.finish(&[begun.lease], says, None).expect("it runs");
        }
        learn(&own, &ROWS[1]);
    }

    #[test]
    fn nor_is_it_where_the_device_is_the_engines() {
        let mut state = state(true);
        for (row, ids) in ROWS.iter().zip([[0, 1, 2], [0, 1, 3]]) {
            let plan = state.offload(row, &ids, 0).expect("the engine's");
            let flight = plan.expect("there is room").flight;
            let blocks = state.flights[flight.at()].moves.len() as u32;
            let ended = state.commit(&[Outcome::failed(flight, blocks)], None);
            assert_eq!(ended, Ok(1));
        }
        let ended = Hints::from(Retention::SessionEnded);
        for row in &ROWS {
            state.used(&[row], Some(ended)).expect("the engine's");
            learn(&state, row);
        }
        // What nobody shares ends whole.
        let row = [key(7), key(8)];
        let plan = state.offload(&row, &[7, 8], 0).expect("the engine's");
        let flight = plan.expect("there is room").flight;
        assert_eq!(state.commit(&[Outcome::failed(flight, 2)], None), Ok(1));
        state.used(&[&row], Some(ended)).expect("the engine's");
        assert_eq!(said(&state, &row), [(Hint::Ended, 1); 2]);
    }
}
