//! Hold: blocks of the device, or of the host below an engine's, stay where they are, for a reader that does not ask the yard. No slot is
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
    /// Slots of the tier.
    pub slots: Vec<u32>,
    /// The generation of each slot.
    pub generations: Vec<u64>,
    /// The key of each block.
    pub keys: Vec<Key>,
    /// The key of the block before each, as [`crate::Plan::parents`] has them.
    pub parents: Vec<Key>,
    pub(crate) numbers: Arc<Generations>,
}

/// The generations of all slots of the tier that is held, which stay in one place for as long as this lives.
#[derive(Debug)]
pub struct SlotGenerations(Arc<Generations>);

impl SlotGenerations {
    /// The address of the number of slot 0; the others follow, 8 bytes each. They are written in one piece.
    pub fn address(&self) -> usize {
        self.0.address()
    }

    /// Slots that have a number.
    pub fn slots(&self) -> usize {
        self.0.slots()
    }
}

impl State {
    /// Holds the leading blocks of a path that are published on the device, or on the host where the device
    /// is an engine's: until the hold ends they keep their slots, their bytes and the slots' generations (law
    /// INV-36a). The hold stops before a block that backs a promise, and before one in a slot above the first
    /// size of the tier, which has no generation. `None` where it would hold nothing. It takes time in
    /// proportion to the keys.
    ///
    /// # Errors
    /// `Memory` for the generations, by the first hold. Nothing is changed then.
    pub fn hold_blocks(&mut self, keys: &[Key]) -> Result<Option<HeldPath>> {
        let found = if self.config.engine {
            self.look_below(keys);
            self.scratch.path.len()
        } else {
            self.walk(keys).hits[0] as usize
        };
        let mut path = std::mem::take(&mut self.scratch.path);
        path.truncate(found);
        let held = self.hold_path(&mut path);
        self.scratch.path = path;
        held
    }

    fn take_held_slots(&mut self) -> Result<HeldSlots> {
        match self.held_slots.take() {
            Some(slots) => Ok(slots),
            None => HeldSlots::new(self.config.boot, self.config.slots[self.held_tier().at()]),
        }
    }

    /// The generations of all slots, for a transport that reads memory by itself. They stay where they are.
    ///
    /// # Errors
    /// As of [`Self::hold_blocks`].
    pub fn slot_generations(&mut self) -> Result<SlotGenerations> {
        let slots = self.take_held_slots()?;
        let numbers = Arc::clone(slots.numbers());
        self.held_slots = Some(slots);
        Ok(SlotGenerations(numbers))
    }

    fn hold_path(&mut self, path: &mut Vec<NodeIx>) -> Result<Option<HeldPath>> {
        if path.is_empty() {
            return Ok(None);
        }
        let mut slots = self.take_held_slots()?;
        path.truncate(self.holdable(path, &slots));
        if path.is_empty() {
            self.held_slots = Some(slots);
            return Ok(None);
        }
        if !self.config.engine {
            self.link_path(path);
        }
        let mut table = Vec::with_capacity(path.len());
        self.pin_held(path, &mut table);
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

    /// The tier whose blocks are held.
    pub(super) fn held_tier(&self) -> Tier {
        if self.config.engine {
            Tier::HOST
        } else {
            Tier::DEVICE
        }
    }

    /// Pins a path that may be held, and adds its slots to a table.
    fn pin_held(&mut self, path: &[NodeIx], table: &mut Vec<SlotIx>) {
        let tier = self.held_tier();
        if tier == Tier::DEVICE {
            return self.pin_path(path, table);
        }
        for &node in path {
            if let Some(slot) = self.ready(node, tier) {
                self.pin(tier, slot);
                table.push(slot);
            }
        }
    }

    /// How many leading blocks of a path may be held.
    fn holdable(&self, path: &[NodeIx], slots: &HeldSlots) -> usize {
        let tier = self.held_tier();
        let mut spare = self.tiers[tier].ledger().available();
        let may_not = |&node: &NodeIx| {
            let Some(slot) = self.ready(node, tier).filter(|&slot| slots.may_hold(slot)) else {
                return true;
            };
            spare -= i64::from(self.takeable(tier, slot));
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
            self.unpin(self.held_tier(), slot);
        }
    }

    /// Ends all holds of a slot whose bytes are no block's any more.
    pub(super) fn end_holds_of(&mut self, tier: Tier, slot: SlotIx) {
        let held = self
            .held_slots
            .as_ref()
            .filter(|_| tier == self.held_tier());
        if held.is_none_or(|held| held.holds().get(slot.at()).is_none_or(|&holds| holds == 0)) {
            return;
        }
        let has =
            |(own, holding): (HoldingIx, &Holding)| holding.table.contains(&slot).then_some(own);
        let holds: Vec<HoldingIx> = self.holdings.iter().filter_map(has).collect();
        for own in holds {
            self.end_hold(own);
        }
    }

    /// Ends all holds, as by a clear.
    pub fn end_holds(&mut self) {
        let all: Vec<HoldingIx> = self.holdings.iter().map(|(own, _)| own).collect();
        for own in all {
            self.end_hold(own);
        }
    }

    /// Blocks that are held, each once.
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
