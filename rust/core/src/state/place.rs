//! Place: how one block joins a flight to a tier below the device: its source is marked, and it gets
//! a slot to fill there, a free one or a victim's. Demote, promote and parked sequences share it.

use super::State;
use crate::base::{FlightIx, NodeIx, SlotIx, Tier};
use crate::copies::{Move, Plan, Purpose};

impl State {
    pub(super) fn launch_if_any(&mut self, flight: FlightIx, moves: Vec<Move>) -> Option<Plan> {
        if moves.is_empty() {
            self.flights.remove(flight);
            return None;
        }
        Some(self.launch(flight, moves))
    }

    /// The same for blocks that were not copied by whole paths: what stands on one of them may have been
    /// passed over because that had no copy, and is looked at again.
    pub(super) fn launch_named(&mut self, flight: FlightIx, moves: Vec<Move>) -> Option<Plan> {
        let to = self.flights[flight].to;
        for tier in (0..to.at()).map(Tier) {
            let ends_short = |copy: &Move| {
                let node = copy.node.and_then(|id| self.trie.live(id));
                let children = |node, tier| self.trie.residency(node, tier).children;
                node.is_some_and(|node| children(node, tier) > children(node, to))
            };
            if self.tiers[tier].descent.is_cut() && moves.iter().any(ends_short) {
                self.tiers[tier].look_at_ends();
            }
        }
        self.launch_if_any(flight, moves)
    }

    /// The flight of the next block of several tiers' that go to one: the open one where that comes from
    /// the same tier; else a new one, and the open one is launched.
    pub(super) fn of_run(
        &mut self,
        (from, to): (Tier, Tier),
        open: &mut Option<FlightIx>,
        moves: &mut Vec<Move>,
        plans: &mut Vec<Plan>,
    ) -> FlightIx {
        if let Some(flight) = open.filter(|&flight| self.flights[flight].from == from) {
            return flight;
        }
        let done = open.take();
        plans.extend(done.and_then(|flight| self.launch_named(flight, std::mem::take(moves))));
        *open.insert(self.open_flight(from, to, Purpose::Below { parked: None }))
    }

    /// Adds a block to a flight; `false` where it finds no room. `may_go` says whether a block's copy
    /// on the flight's tier may be evicted for it.
    pub(super) fn copy_one(
        &mut self,
        node: NodeIx,
        flight: FlightIx,
        moves: &mut Vec<Move>,
        may_go: impl Fn(&Self, NodeIx) -> bool,
    ) -> bool {
        match self.ready(node, self.flights[flight].from) {
            Some(from) => self.copy_from(node, from, flight, moves, may_go),
            None => false,
        }
    }

    /// The same from this slot of the flight's tier, where the block is ready.
    pub(super) fn copy_from(
        &mut self,
        node: NodeIx,
        from: SlotIx,
        flight: FlightIx,
        moves: &mut Vec<Move>,
        may_go: impl Fn(&Self, NodeIx) -> bool,
    ) -> bool {
        let Some(to) = self.place(node, from, flight, may_go) else {
            return false;
        };
        let node = Some(self.trie.id(node));
        moves.push(Move { node, from, to });
        true
    }

    /// The next victim of a tier, if it may go.
    pub(super) fn victim(
        &mut self,
        tier: Tier,
        may_go: &impl Fn(&Self, NodeIx) -> bool,
    ) -> Option<SlotIx> {
        let victim = self.tiers[tier].victim(&self.lives)?;
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
        let (from, to) = (self.flights[flight].from, self.flights[flight].to);
        let owed = u32::from(self.is_owed(node, to));
        let parked = matches!(
            self.flights[flight].purpose,
            Purpose::Below { parked: Some(_) }
        );
        if owed > 0 && parked {
            self.clear_the_way(node, to);
        }
        let takes = 1 + self.shaded_by(node, to);
        if self.tiers[to].ledger().available() + i64::from(owed) < i64::from(takes)
            || (self.tiers[to].ledger().free() == 0 && self.victim(to, &may_go).is_none())
            || !self.mark_backed(from, slot)
        {
            return None;
        }
        if self.tiers[to].ledger().free() == 0 {
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
            && let Some(victim) = self.tiers[tier].victim(&self.lives)
        {
            self.evict_with_parents(tier, victim);
        }
    }

    /// Idle blocks above that cannot be taken while `node` is busy on the tier, and could before.
    pub(super) fn shaded_by(&self, node: NodeIx, tier: Tier) -> u32 {
        let parent = self.trie.parent(node);
        parent.map_or(0, |parent| self.shaded_at(parent, tier))
    }

    /// The same of this block, and those above it.
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
