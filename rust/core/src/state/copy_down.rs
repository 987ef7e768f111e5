//! How one block joins a flight to a tier below the device: its source is marked, and it gets
//! a slot to fill there, a free one or a victim's. Demote, promote and parked sequences share it.

use super::State;
use crate::base::{FlightIx, NodeIx, SlotIx, Tier};
use crate::copies::{Flight, Move, Plan, Purpose};

/// A flight that is not launched yet, and the copies that have joined it.
pub(super) struct Draft {
    pub(super) flight: FlightIx,
    pub(super) moves: Vec<Move>,
}

impl State {
    pub(super) fn draft(&mut self, from: Tier, to: Tier, purpose: Purpose) -> Draft {
        Draft {
            flight: self.open_flight(from, to, purpose),
            moves: Vec::new(),
        }
    }

    pub(super) fn launch_if_any(&mut self, Draft { flight, moves }: Draft) -> Option<Plan> {
        if moves.is_empty() {
            self.flights.remove(flight);
            return None;
        }
        Some(self.launch(flight, moves))
    }

    /// The same for blocks that were not copied by whole paths: what stands on one of them may have been
    /// passed over because that had no copy, and is looked at again.
    pub(super) fn launch_named(&mut self, draft: Draft) -> Option<Plan> {
        let to = self.flights[draft.flight].to;
        for tier in (0..to.at()).map(Tier) {
            let stood_on = |copy: &Move| {
                let node = copy.node.and_then(|id| self.trie.live(id));
                node.is_some_and(|node| self.trie.residency(node, tier).children > 0)
            };
            if self.tiers[tier].descent.is_cut() && draft.moves.iter().any(stood_on) {
                self.tiers[tier].look_at_ends();
            }
        }
        self.launch_if_any(draft)
    }

    /// The flight of the next block of several tiers' that go to one: the open one where that comes from
    /// the same tier; else a new one, and the open one is launched.
    pub(super) fn of_run<'open>(
        &mut self,
        (from, to): (Tier, Tier),
        open: &'open mut Option<Draft>,
        plans: &mut Vec<Plan>,
    ) -> &'open mut Draft {
        let done = open.take_if(|draft| self.flights[draft.flight].from != from);
        plans.extend(done.and_then(|draft| self.launch_named(draft)));
        open.get_or_insert_with(|| self.draft(from, to, Purpose::Below { parked: None }))
    }

    /// Adds a block to a flight; `false` where it finds no room. `may_go` says whether a block's copy
    /// on the flight's tier may be evicted for it.
    pub(super) fn copy_one(
        &mut self,
        node: NodeIx,
        draft: &mut Draft,
        may_go: impl Fn(&Self, NodeIx) -> bool,
    ) -> bool {
        match self.ready(node, self.flights[draft.flight].from) {
            Some(from) => self.copy_from(node, from, draft, may_go),
            None => false,
        }
    }

    /// The same from this slot of the flight's tier, where the block is ready.
    pub(super) fn copy_from(
        &mut self,
        node: NodeIx,
        from: SlotIx,
        draft: &mut Draft,
        may_go: impl Fn(&Self, NodeIx) -> bool,
    ) -> bool {
        let Some(to) = self.place(node, from, draft.flight, may_go) else {
            return false;
        };
        let node = Some(self.trie.id(node));
        draft.moves.push(Move { node, from, to });
        true
    }

    /// The next victim of a tier, if it may go.
    pub(super) fn victim(
        &mut self,
        tier: Tier,
        may_go: &impl Fn(&Self, NodeIx) -> bool,
    ) -> Option<SlotIx> {
        let victim = self.tiers[tier].victim(&self.usages)?;
        let node = self.node_in(tier, victim);
        node.is_none_or(|node| may_go(self, node)).then_some(victim)
    }

    /// Marks a source as read and gives its block a slot to fill. `None`, with nothing changed, where
    /// that would take the backing of a promise: the slot's, and that of the idle blocks above it,
    /// which must stay while it fills; or where the next victim may not go.
    fn place(
        &mut self,
        node: NodeIx,
        slot: SlotIx,
        flight: FlightIx,
        may_go: impl Fn(&Self, NodeIx) -> bool,
    ) -> Option<SlotIx> {
        let Flight {
            from, to, purpose, ..
        } = self.flights[flight];
        let owed = u32::from(self.is_owed(node, to));
        if owed > 0 && matches!(purpose, Purpose::Below { parked: Some(_) }) {
            self.clear_the_way(node, to);
        }
        let takes = 1 + self.shaded_by(node, to);
        let ledger = self.tiers[to].ledger();
        let full = ledger.free() == 0;
        if ledger.available() + i64::from(owed) < i64::from(takes)
            || (full && self.victim(to, &may_go).is_none())
            || !self.mark_backed(node, from, slot)
        {
            return None;
        }
        if full {
            let Some(victim) = self.victim(to, &may_go) else {
                self.unmark(from, slot);
                return None;
            };
            self.evict_with_parents(to, victim);
        }
        self.tiers[to].release(owed);
        self.attach(node, to, flight)
    }

    /// A tier owes the block a slot. Where that would take the backing of a promise, since idle blocks
    /// above it could not be taken any more, victims go until its parent's copy has gone: all that is
    /// idle there is promised, or nearly so.
    fn clear_the_way(&mut self, node: NodeIx, tier: Tier) {
        let parent = |state: &Self| state.trie.slot(state.trie.parent(node)?, tier);
        while parent(self).is_some()
            && self.tiers[tier].ledger().available() < i64::from(self.shaded_by(node, tier))
            && let Some(victim) = self.tiers[tier].victim(&self.usages)
        {
            self.evict_with_parents(tier, victim);
        }
    }

    /// Idle blocks above that cannot be taken while `node` is busy on the tier, and could before.
    #[inline]
    pub(super) fn shaded_by(&self, node: NodeIx, tier: Tier) -> u32 {
        match self.trie.parent(node) {
            Some(parent) if self.trie.slot(parent, tier).is_some() => self.shaded_at(parent, tier),
            _ => 0,
        }
    }

    /// The same of this block, and those above it.
    #[inline(never)]
    fn shaded_at(&self, node: NodeIx, tier: Tier) -> u32 {
        let (mut shaded, mut next) = (0, Some(node));
        while let Some(node) = next
            && let Some(slot) = self.trie.slot(node, tier)
            && !self.is_busy(node, tier)
        {
            shaded += u32::from(self.takeable(tier, slot));
            next = self.trie.parent(node);
        }
        shaded
    }
}
