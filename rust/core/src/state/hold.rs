//! Hold: blocks of the device stay where they are, for a reader that does not ask the yard. No slot is
//! taken for that, and nothing is copied.

use super::State;
use super::record::Holding;
use crate::base::sync::Arc;
use crate::base::{HoldId, HoldingIx, Ix, Key, NodeIx, Result, SlotIx, Tier};
use crate::tiers::{Generations, HeldSlots};

/// Blocks that are held, as their reader must know them; all lists are as long.
#[derive(Debug)]
pub struct HeldPath {
    /// Which hold.
    pub id: HoldId,
    /// Slots of the device.
    pub slots: Vec<u32>,
    /// The generation of each slot.
    pub generations: Vec<u64>,
    /// The key of each block.
    pub keys: Vec<Key>,
    /// The key of the block before each, as [`crate::Plan::parents`] has them.
    pub parents: Vec<Key>,
    pub(crate) numbers: Arc<Generations>,
}

impl State {
    /// Holds the leading blocks of a path that are published on the device: until the hold ends they keep
    /// their slots, their bytes and the slots' generations (law INV-36a). The hold stops before a block that
    /// backs a promise, and before one in a slot above the first size of the device, which has no
    /// generation. `None` where it would hold nothing. It takes time in proportion to the keys.
    ///
    /// # Errors
    /// `State` where the device is an engine's; `Memory` for the generations, by the first hold. Nothing is
    /// changed then.
    pub fn hold_blocks(&mut self, keys: &[Key]) -> Result<Option<HeldPath>> {
        self.of_its_own("holding blocks")?;
        let found = self.walk(keys).hits[0] as usize;
        let mut path = std::mem::take(&mut self.scratch.path);
        path.truncate(found);
        let held = self.hold_path(&mut path);
        self.scratch.path = path;
        held
    }

    fn hold_path(&mut self, path: &mut Vec<NodeIx>) -> Result<Option<HeldPath>> {
        if path.is_empty() {
            return Ok(None);
        }
        let mut slots = match self.held_slots.take() {
            Some(slots) => slots,
            None => HeldSlots::new(self.config.boot, self.config.slots[0])?,
        };
        path.truncate(self.holdable(path, &slots));
        if path.is_empty() {
            self.held_slots = Some(slots);
            return Ok(None);
        }
        self.link_path(path);
        let mut table = Vec::with_capacity(path.len());
        self.pin_path(path, &mut table);
        slots.hold(&table);
        let numbers = Arc::clone(slots.numbers());
        self.held_slots = Some(slots);
        let generation = |slot: &SlotIx| numbers.of(slot.get()).unwrap_or_default();
        let own = self.holdings.insert(Holding::of(table.clone()));
        Ok(Some(HeldPath {
            id: HoldId(self.holdings.id(own)),
            slots: table.iter().map(|slot| slot.get()).collect(),
            generations: table.iter().map(generation).collect(),
            keys: path
                .iter()
                .map(|&node| self.trie.carried_key(node))
                .collect(),
            parents: path
                .iter()
                .map(|&node| self.trie.carried_parent(node))
                .collect(),
            numbers,
        }))
    }

    /// How many leading blocks of a path on the device may be held.
    fn holdable(&self, path: &[NodeIx], slots: &HeldSlots) -> usize {
        let mut spare = self.tiers[Tier::DEVICE].ledger().available();
        let may_not = |&node: &NodeIx| {
            let Some(slot) = self
                .ready(node, Tier::DEVICE)
                .filter(|&slot| slots.may_hold(slot))
            else {
                return true;
            };
            spare -= i64::from(self.takeable(Tier::DEVICE, slot));
            spare < 0
        };
        path.iter().position(may_not).unwrap_or(path.len())
    }

    /// Ends a hold: its slots have another generation from now on, and may be given out.
    ///
    /// # Errors
    /// `Spent` where it has ended; `Foreign`.
    pub fn release_hold(&mut self, id: HoldId) -> Result<()> {
        self.holdings.place_of(id.0, "hold", |_| true)?;
        self.end_hold(id.at());
        Ok(())
    }

    /// The generations first (law INV-36b); then the pins, the deepest first.
    pub(super) fn end_hold(&mut self, own: HoldingIx) {
        let table = self.holdings.remove(own).table;
        if let Some(slots) = &mut self.held_slots {
            slots.let_go(&table);
        }
        for &slot in table.iter().rev() {
            self.unpin(Tier::DEVICE, slot);
        }
    }

    /// Ends all holds, as by a clear.
    pub fn end_holds(&mut self) {
        let all: Vec<HoldingIx> = self.holdings.iter().map(|(own, _)| own).collect();
        for own in all {
            self.end_hold(own);
        }
    }

    /// Device blocks that are held, each once.
    pub(super) fn held_blocks(&self) -> u64 {
        self.held_slots
            .as_ref()
            .map_or(0, |slots| u64::from(slots.held()))
    }

    /// Ends a hold whose handle was dropped; counted.
    pub(crate) fn leak_hold(&mut self, id: HoldId) {
        if self.release_hold(id).is_ok() {
            self.counters.leaked += 1;
        }
    }
}
