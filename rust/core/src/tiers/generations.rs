//! Generations: a number for each slot of the device, by which a thread that reads the slot without the
//! yard's lock learns whether the slot still had the block that it was told of (law INV-36b).

use crate::base::sync::{Arc, AtomicU64, Ordering};
use crate::base::{Boot, Ix, Result, SlotIx, memory};
use std::hash::{Hash, Hasher};
use std::sync::atomic::fence;

/// The numbers: the boot in the upper 32 bits, and a count in the lower, from 1 on.
#[derive(Debug)]
pub(crate) struct Generations(Vec<AtomicU64>);

impl Generations {
    /// What is read before this call was written before the number is raised that it returns. `None` for a
    /// slot that has no number.
    pub(crate) fn of(&self, slot: u32) -> Option<u64> {
        let number = self.0.get(slot as usize)?;
        fence(Ordering::Acquire);
        Some(number.load(Ordering::Acquire))
    }

    pub(crate) fn address(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    pub(crate) fn slots(&self) -> usize {
        self.0.len()
    }
}

/// Which slots of the device are held, how often, and their generations. It is made by the first hold.
#[derive(Debug)]
pub(crate) struct HeldSlots {
    numbers: Arc<Generations>,
    holds: Vec<u32>,
    /// Slots that are held, each once.
    held: u32,
}

impl HeldSlots {
    /// For a device of so many slots; it never has more.
    pub(crate) fn new(boot: Boot, slots: u32) -> Result<Self> {
        let mut numbers = Vec::new();
        memory::reserve(&mut numbers, slots as usize, "the slots' generations")?;
        let first = u64::from(boot.0.get()) << 32 | 1;
        numbers.extend((0..slots).map(|_| AtomicU64::new(first)));
        Ok(Self {
            holds: memory::filled(slots as usize, 0, "the slots' holds")?,
            numbers: Arc::new(Generations(numbers)),
            held: 0,
        })
    }

    pub(crate) fn numbers(&self) -> &Arc<Generations> {
        &self.numbers
    }

    /// Slots that are held, each once.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// How often each slot is held.
    pub(crate) fn holds(&self) -> &[u32] {
        &self.holds
    }

    /// Whether a slot has a generation, and another for its end: one that has used up its count does not
    /// begin again.
    pub(crate) fn may_hold(&self, slot: SlotIx) -> bool {
        let number = self.numbers.of(slot.get());
        number.is_some_and(|number| number as u32 != u32::MAX)
    }

    /// One more hold of these slots.
    pub(crate) fn hold(&mut self, table: &[SlotIx]) {
        for slot in table {
            let holds = &mut self.holds[slot.at()];
            *holds += 1;
            self.held += u32::from(*holds == 1);
        }
    }

    /// A hold of these slots ends. Where it is the last one, the generation is raised: so this comes before
    /// the slots are unpinned. Law INV-36b
    pub(crate) fn let_go(&mut self, table: &[SlotIx]) {
        for slot in table {
            let holds = &mut self.holds[slot.at()];
            *holds -= 1;
            if *holds == 0 {
                self.held -= 1;
                self.numbers.0[slot.at()].fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

/// The boot is another one on each replica, and decides nothing.
impl Hash for HeldSlots {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.holds.hash(state);
        for number in &self.numbers.0 {
            (number.load(Ordering::Relaxed) as u32).hash(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    /// Law: INV-36b
    #[test]
    fn a_slot_whose_count_is_used_up_is_not_held_again() {
        let boot = Boot(NonZeroU32::MIN);
        let mut slots = HeldSlots::new(boot, 2).expect("two slots");
        let table = [SlotIx::new(0)];
        slots.numbers.0[0].store(2 << 32 | (u64::from(u32::MAX) - 1), Ordering::Relaxed);
        assert!(slots.may_hold(table[0]));
        slots.hold(&table);
        slots.let_go(&table);
        assert!(!slots.may_hold(table[0]));
        assert_eq!(slots.numbers.of(0), Some(2 << 32 | u64::from(u32::MAX)));
        assert!(slots.may_hold(SlotIx::new(1)), "the other goes on");
        assert!(!slots.may_hold(SlotIx::new(2)), "there is none");
    }
}
