//! Demote: copies the next victims of a tier down, ahead of need, so that evicting them is free.

use super::State;
use super::copy_down::Draft;
use super::paths::Descent;
use crate::base::{Class, Id, LeaseId, NodeIx, Result, SlotIx, Tier};
use crate::copies::{Plan, Purpose};
use crate::evict::Passed;
use crate::tiers::{Hold, Uses};
use std::cell::OnceCell;

/// What [`State::demote`] copies down from a tier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WritePolicy {
    /// The tier's next victims.
    #[default]
    OnEvict,
    /// What was published on the device, or has landed on a tier below it, in that order; then the
    /// next victims.
    Through,
    /// Of the next victims those that were used more than once. A sequence uses a block by beginning
    /// over it or publishing it; a block that had been dropped before counts as used once more.
    SecondTouch,
}

/// How far copies ahead go.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// How many are made at most.
    pub(super) blocks: u32,
    /// How many of the next victims are looked at.
    pub(super) look: u32,
    /// Whether what lacks a copy of a victim's path is copied first.
    pub(super) paths: bool,
}

impl State {
    /// Copies down those of a tier's next `blocks` victims that have no copy below, or what else
    /// [`WritePolicy`] says, to the next lower tier that has slots: as far as its promises allow and
    /// no nearer victim loses its own copy by it. It copies no more than `blocks` blocks, and passes
    /// over what it has looked at before. `None`: there is nothing to copy, or nowhere to copy it to.
    pub fn demote(&mut self, from: Tier, blocks: u32) -> Option<Plan> {
        let size = Ahead {
            blocks,
            look: blocks,
            paths: false,
        };
        self.descend(from, size)
    }

    /// The same, so far ahead.
    pub(super) fn descend(&mut self, from: Tier, size: Ahead) -> Option<Plan> {
        let to = self.tiers.next_below(from)?;
        let mut draft = self.draft(from, to, Purpose::Below { parked: None });
        let victims = self.unseen_victims(from, size.look);
        self.spare_copies(from, &victims);
        let waits = self.copy_fresh(size, &mut draft);
        self.copy_victims(&victims, size, &mut draft);
        self.scratch.victims = victims;
        if let Some(id) = waits {
            self.tiers[from].descent.put_back(id);
        }
        while let Some(id) = self.tiers[from].descent.first_fresh()
            && !self
                .trie
                .live(id)
                .is_some_and(|node| self.wants_copy(node, from))
        {
            self.tiers[from].descent.take_fresh();
        }
        if size.paths {
            self.launch_if_any(draft)
        } else {
            self.launch_named(draft)
        }
    }

    /// Copies what came to the tier, until a block finds no room; returns that block.
    fn copy_fresh(&mut self, size: Ahead, draft: &mut Draft) -> Option<Id<NodeIx>> {
        let most = size.blocks as usize;
        let (from, to) = (
            self.flights[draft.flight].from,
            self.flights[draft.flight].to,
        );
        // No block loses its last copy for it, and no next victim the copy that it needs soon.
        let copied = Hold::Idle {
            class: Class::Copied,
        };
        let spare = |state: &Self, other| {
            let below = state.trie.slot(other, to);
            state.trie.slot(other, from).is_none()
                || below.is_some_and(|slot| state.hold(to, slot) == copied)
        };
        while draft.moves.len() < most
            && let Some(id) = self.tiers[from].descent.take_fresh()
        {
            let node = self
                .trie
                .live(id)
                .filter(|&node| self.wants_copy(node, from));
            let Some(node) = node else { continue };
            let done = if size.paths {
                self.copy_path(node, draft, most, spare) != Descent::Waits
            } else {
                self.copy_one(node, draft, spare)
            };
            if !done {
                return Some(id);
            }
        }
        None
    }

    /// Those of the next victims that were not looked at.
    fn unseen_victims(&mut self, tier: Tier, blocks: u32) -> Vec<SlotIx> {
        let mut ahead = std::mem::take(&mut self.scratch.victims);
        ahead.clear();
        let (trie, usages) = (&self.trie, &self.usages);
        self.tiers[tier].unseen(blocks as usize, trie, usages, &mut ahead);
        ahead
    }

    /// Where copies of what the device has go first, those of its next victims stay.
    fn spare_copies(&mut self, from: Tier, victims: &[SlotIx]) {
        if self.copies_first && from == Tier::DEVICE {
            for &slot in victims {
                if let Some(node) = self.node_in(from, slot) {
                    self.spare_copy(node);
                }
            }
        }
    }

    /// Copies those of the next victims that want a copy, until one finds no room.
    fn copy_victims(&mut self, ahead: &[SlotIx], size: Ahead, draft: &mut Draft) {
        let from = self.flights[draft.flight].from;
        let most = size.blocks as usize;
        draft.moves.reserve(most.min(ahead.len()));
        let mut cut = None;
        // Asked for only where the tier below is full.
        let places = OnceCell::new();
        let whole = (0..ahead.len()).all(|at| {
            let slot = ahead[at];
            let passed = |slot: SlotIx| {
                let places = places.get_or_init(|| places_of(ahead));
                let place = places.binary_search_by_key(&slot, |&(slot, _)| slot);
                place.is_ok_and(|place| places[place].1 < at)
            };
            let Hold::Idle { class } = self.hold(from, slot) else {
                return false;
            };
            let node = self
                .node_in(from, slot)
                .filter(|_| !matches!(class, Class::Copied | Class::Shadow));
            let done = node
                .filter(|&node| self.lacks_copy(node, from))
                .is_none_or(|node| {
                    // Above the end of a path that is not copied there is more of it.
                    if cut.is_some_and(|below| self.trie.parent(below) == Some(node)) {
                        cut = Some(node);
                        return true;
                    }
                    let later = |state: &Self, other| {
                        let other = state.trie.slot(other, from);
                        other.is_none_or(|other| state.goes_before(from, slot, other, &passed))
                    };
                    if !size.paths {
                        return draft.moves.len() < most
                            && self.copy_from(node, slot, draft, later);
                    }
                    let descent = self.copy_path(node, draft, most, later);
                    cut = Some(node).filter(|_| descent == Descent::Cut);
                    if cut.is_some() {
                        self.tiers[from].descent.cut();
                    }
                    descent != Descent::Waits
                });
            done && self.tiers[from].copies_ahead().see(slot, class)
        });
        if whole && draft.moves.is_empty() {
            self.tiers[from].copies_ahead().settle(size.look as usize);
        }
    }

    /// Whether the idle block in `slot`, the next to be looked at after those that were `passed`, leaves
    /// the tier before `other`.
    fn goes_before(&self, tier: Tier, slot: SlotIx, other: SlotIx, passed: Passed<'_>) -> bool {
        match (self.hold(tier, slot), self.hold(tier, other)) {
            (Hold::Idle { class: own }, Hold::Idle { class }) => {
                let order = self.tiers[tier].order();
                !order.precedes((other, class), (slot, own), passed)
            }
            _ => true,
        }
    }

    /// Whether a block on the tier should have a copy below before it is evicted, and has none.
    pub(super) fn wants_copy(&self, node: NodeIx, tier: Tier) -> bool {
        self.ready(node, tier).is_some() && self.lacks_copy(node, tier)
    }

    /// The same of a block that is ready there.
    #[inline]
    pub(super) fn lacks_copy(&self, node: NodeIx, tier: Tier) -> bool {
        let block = &self.trie[node];
        let once =
            self.config.write_of(tier) == WritePolicy::SecondTouch && block.uses != Uses::Repeated;
        block.epoch == self.trie.epoch()
            && !once
            && tier < self.tiers.last()
            && !self.is_below(node, tier)
            && (tier == Tier::DEVICE || !self.comes_up(node, tier))
            && !self.is_hopeless(tier, node)
    }

    /// Whether a load brings the block up from the tier: where that is good, a higher tier has it.
    #[cold]
    #[inline(never)]
    fn comes_up(&self, node: NodeIx, tier: Tier) -> bool {
        let mut above = (0..tier.at()).map(Tier);
        above.any(|above| self.filling(node, above).is_some())
    }

    /// Whether the block has a copy below the tier, or one on its way there.
    #[inline]
    pub(super) fn is_below(&self, node: NodeIx, tier: Tier) -> bool {
        self.tiers
            .below(tier)
            .any(|below| self.trie.slot(node, below).is_some())
    }

    /// A block came to the tier. Where no demote ever comes, the oldest are forgotten.
    #[inline]
    pub(super) fn note_fresh(&mut self, tier: Tier, node: NodeIx) {
        if self.is_written_through(tier) {
            self.tiers[tier].note_fresh(self.trie.id(node));
        }
    }

    /// Whether blocks that come to the tier are to go down.
    #[inline]
    pub(super) fn is_written_through(&self, tier: Tier) -> bool {
        self.config.write_of(tier) == WritePolicy::Through && tier < self.tiers.last()
    }

    /// A copy of this block from the tier to another is good. What has come up may want a copy below again.
    pub(super) fn note_copied(&mut self, tier: Tier, to: Tier, node: NodeIx) {
        if to < tier {
            return self.look_again_below(node, to);
        }
        if self.tells_of_descent(tier, to, node) {
            self.tiers[tier].note_copied(self.trie.id(node));
        }
    }

    /// A copy of this block from the tier to another has failed. One down is tried again up to `copy_retries`
    /// times: under [`WritePolicy::Through`] it goes to the back of the queue.
    pub(super) fn note_failed(&mut self, tier: Tier, to: Tier, node: NodeIx) {
        if self.tells_of_descent(tier, to, node) {
            self.tiers[tier].note_failed(self.trie.id(node), &self.trie);
            if !self.is_hopeless(tier, node) {
                self.note_fresh(tier, node);
            }
        }
    }

    /// Whether a copy says something of the block's way down: one up does not.
    fn tells_of_descent(&self, tier: Tier, to: Tier, node: NodeIx) -> bool {
        let block = &self.trie[node];
        let published = block.epoch == self.trie.epoch() && !block.is_anonymous();
        tier < to && published && self.trie.slot(node, tier).is_some()
    }

    /// Whether its copy down from the tier has failed too often to be made ahead of need.
    #[inline]
    pub(super) fn is_hopeless(&self, tier: Tier, node: NodeIx) -> bool {
        let id = || self.trie.id(node);
        self.tiers[tier]
            .descent
            .exceeds(self.config.copy_retries, id)
    }

    /// Copies up to `blocks` sealed blocks of a running sequence down that have no copy below, the
    /// root first.
    pub fn demote_lease(&mut self, id: LeaseId, blocks: u32) -> Result<Option<Plan>> {
        let lease = self.lease(id)?;
        let Some(to) = self
            .tiers
            .next_below(Tier::DEVICE)
            .filter(|_| !self.detached(lease))
        else {
            return Ok(None);
        };
        let record = &self.leases[lease];
        let path: Vec<NodeIx> = (0..record.sealed)
            .map_while(|block| self.published(record, block))
            .collect();
        let mut draft = self.draft(Tier::DEVICE, to, Purpose::Below { parked: None });
        for node in path {
            if draft.moves.len() >= blocks as usize {
                break;
            }
            let lacks =
                self.ready(node, Tier::DEVICE).is_some() && !self.is_below(node, Tier::DEVICE);
            let parent = self.trie.parent(node);
            let others = |_: &Self, other| Some(other) != parent;
            if lacks && !self.copy_one(node, &mut draft, others) {
                break;
            }
        }
        Ok(self.launch_named(draft))
    }
}

/// Slots with their places, by slot.
fn places_of(slots: &[SlotIx]) -> Vec<(SlotIx, usize)> {
    let mut places: Vec<_> = (0..).zip(slots).map(|(at, &slot)| (slot, at)).collect();
    places.sort_unstable();
    places
}
