//! Reservation accounting of one tier, as facts and not estimates:
//!
//! free + claimed + pinned + idle + quarantined = capacity (INV-1), and
//! promised ≤ free + takeable (INV-22).

use crate::base::Set;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Ledger {
    counts: [u32; 5],
    capacity: u32,
    /// Idle slots that may be evicted now: no reader mark, nothing pinned or read below them.
    takeable: u32,
    /// Slots kept obtainable for later; no slot moves for it.
    promised: u32,
}

impl Ledger {
    pub(crate) fn count(&self, set: Set) -> u32 {
        self.counts[set as usize]
    }

    pub(crate) fn free(&self) -> u32 {
        self.count(Set::Free)
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn takeable(&self) -> u32 {
        self.takeable
    }

    pub(crate) fn promised(&self) -> u32 {
        self.promised
    }

    /// Slots that can be had and are promised to no one. It is below zero only between the two halves
    /// of a transition.
    pub(crate) fn available(&self) -> i64 {
        i64::from(self.free()) + i64::from(self.takeable) - i64::from(self.promised)
    }

    /// Whether `need` slots can be taken or promised without breaking a promise.
    pub(crate) fn affords(&self, need: u64) -> bool {
        i64::try_from(need).is_ok_and(|need| need <= self.available())
    }

    /// A slot goes from one set to another; `None` is outside of the capacity.
    #[inline]
    pub(crate) fn shift(&mut self, from: Option<Set>, to: Option<Set>) {
        if from == to {
            return;
        }
        if let Some(set) = from {
            self.counts[set as usize] -= 1;
        }
        if let Some(set) = to {
            self.counts[set as usize] += 1;
        }
        if from.is_none() || to.is_none() {
            self.capacity = self.capacity + u32::from(to.is_some()) - u32::from(from.is_some());
        }
    }

    /// So many slots of the capacity go from one set to another.
    pub(crate) fn shift_all(&mut self, from: Set, to: Set, slots: u32) {
        self.counts[from as usize] -= slots;
        self.counts[to as usize] += slots;
    }

    /// Free slots that enter or leave the capacity.
    pub(crate) fn enter(&mut self, slots: u32) {
        self.counts[Set::Free as usize] += slots;
        self.capacity += slots;
    }

    pub(crate) fn retire(&mut self, slots: u32) {
        self.counts[Set::Free as usize] -= slots;
        self.capacity -= slots;
    }

    /// So many free slots have a block from before, which may be evicted.
    pub(crate) fn restore(&mut self, slots: u32) {
        self.shift_all(Set::Free, Set::Idle, slots);
        self.takeable += slots;
    }

    /// So many slots are takeable now that were not.
    #[inline]
    pub(crate) fn gain_takeable(&mut self, slots: u32) {
        self.takeable += slots;
    }

    /// A slot that was takeable is not, or is not idle any more.
    #[inline]
    pub(crate) fn lose_takeable(&mut self) {
        self.takeable -= 1;
    }

    /// So many takeable slots were taken.
    pub(crate) fn take(&mut self, slots: u32) {
        self.takeable -= slots;
    }

    /// Sets the count after a resize, which counts them again.
    pub(crate) fn set_takeable(&mut self, takeable: u32) {
        self.takeable = takeable;
    }

    pub(crate) fn promise(&mut self, slots: u32) {
        self.promised += slots;
    }

    pub(crate) fn release(&mut self, slots: u32) {
        self.promised -= slots;
    }

    /// Pinned, claimed, promised and quarantined: what a resize cannot go below.
    pub(crate) fn used(&self) -> u64 {
        [Set::Pinned, Set::Claimed, Set::Quarantined]
            .into_iter()
            .map(|set| u64::from(self.count(set)))
            .sum::<u64>()
            + u64::from(self.promised)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifting_conserves_the_capacity() {
        let mut ledger = Ledger::default();
        ledger.enter(3);
        ledger.shift(Some(Set::Free), Some(Set::Claimed));
        ledger.shift(Some(Set::Claimed), Some(Set::Idle));
        ledger.gain_takeable(1);
        ledger.promise(2);
        assert_eq!(
            (ledger.free(), ledger.capacity(), ledger.available()),
            (2, 3, 1)
        );
        ledger.shift(Some(Set::Idle), None);
        assert_eq!(ledger.capacity(), 2);
    }
}
