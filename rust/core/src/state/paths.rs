//! Paths: a block goes down only behind its prefix (INV-39). What of its path lacks a copy below is
//! copied with it, the root first, so that where room or time ends it is the end that is not copied.
//! Eviction is leaf first, so that it is the end, too, that is dropped.

use super::copy_down::Draft;
use super::demote::Ahead;
use super::{State, WritePolicy};
use crate::base::{Class, Ix, LeaseIx, NodeIx, Tier};
use crate::copies::{Plan, Purpose};
use crate::tiers::{Hold, Uses};

/// How much of a path that was used once may take the place of what others would lose by it: this part
/// of the tier below, and no fewer than these. So requests that never come back push out little of what
/// does, and a path that comes back is copied further each time.
const SHARE: u32 = 128;
const FEWEST: u32 = 32;

/// What became of a path that should go down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Descent {
    /// All of it has a copy below, or one on its way there.
    Whole,
    /// The rest of it stays without a copy.
    Cut,
    /// The next of its blocks finds no room now, or the plan is full.
    Waits,
}

/// Where an order keeps no account of what was looked at: so many of the next victims are, at least.
const LOOK: u32 = 4096;

/// More than `least` blocks go down at once only as far as they land within so many looks: a begin that is
/// larger than any before waits for them.
const LOOKS: u32 = 4;

/// How many running sequences are looked at in one call.
const LEASES: u32 = 16;

impl State {
    /// Copies down what a tier may lose soon, whole paths and the root first, if that is due now: while
    /// fewer than `least` slots are free, so many of the next victims have a copy below.
    ///
    /// Where it `grows`, as many have one as the largest begin has taken, if that is more: a begin takes
    /// them all at once. What is behind them is copied too, the oldest first, `least` blocks at a time.
    /// Both begin only after a look with nothing on its way down, so that a begin larger than any before
    /// finds its room between two plans.
    pub fn copy_ahead(&mut self, from: Tier, least: u32, grows: bool) -> Option<Plan> {
        self.tiers.next_below(from)?;
        let below = self.tiers.below(from);
        let flying: u32 = below.map(|to| self.in_flight[from.at()][to.at()]).sum();
        let rested = self.tiers[from].descent.speed.look(flying);
        // Where the largest begin finds no room beside `least` blocks in the air, only so many are there of
        // those that are behind the next victims.
        let spare = self.spare_of(from);
        let widely = grows && rested && spare >= least;
        let (ahead, most) = if grows {
            self.pace(from, least)
        } else {
            (least, least)
        };
        let next = if widely { ahead } else { least };
        let bound = if widely { most.max(least) } else { least };
        let mut plan = self.copy_next(from, next, bound, flying);
        if plan.is_none() && widely {
            plan = self.copy_behind(from, ahead, most.min(least));
        } else if plan.is_none() && grows && spare < least {
            plan = self.look_down(from, spare.saturating_sub(flying), self.largest);
        }
        let more = plan.as_ref().map_or(0, Plan::len) as u32;
        self.tiers[from].descent.speed.flying = flying + more;
        plan
    }

    /// The next victims, or what came to the tier where all of it is to go down; at most so many in the air.
    fn copy_next(&mut self, from: Tier, ahead: u32, most: u32, flying: u32) -> Option<Plan> {
        let through = self.config.write_of(from) == WritePolicy::Through;
        // What is free ahead of need does not count: it is made of victims that have a copy.
        let spare = if from == Tier::DEVICE {
            self.spare()
        } else {
            0
        };
        if !through && self.tiers[from].ledger().free().saturating_sub(spare) >= ahead {
            return None;
        }
        // Where a place says which goes first, what is being copied counts among the next victims.
        let passed = through || self.tiers[from].order().looked().is_none();
        let look = ahead.saturating_sub(if passed { flying } else { 0 });
        self.look_down(from, most.saturating_sub(flying), look)
    }

    /// What is behind the next victims, and what runs. Where the tier below is full, each of these copies
    /// takes the place of another: then they are of half of this tier at most, for several begins at once.
    fn copy_behind(&mut self, from: Tier, ahead: u32, most: u32) -> Option<Plan> {
        let to = self.tiers.next_below(from)?;
        let looked = self.tiers[from].order().looked();
        let look = looked.map_or(LOOK, |looked| (looked as u32).saturating_add(4 * most));
        let full = self.tiers[to].ledger().free() == 0;
        let bound = if full {
            self.tiers[from].pool().room() / 2
        } else {
            u32::MAX
        };
        let plan = self.look_down(from, most, look.min(bound).max(ahead));
        if plan.is_some() || from > Tier::DEVICE {
            return plan;
        }
        self.descend_running(most)
    }

    fn look_down(&mut self, from: Tier, blocks: u32, look: u32) -> Option<Plan> {
        let size = Ahead {
            blocks,
            look,
            paths: true,
        };
        (blocks > 0).then(|| self.descend(from, size)).flatten()
    }

    /// Blocks of the device that the largest begin leaves; all of another tier.
    fn spare_of(&self, tier: Tier) -> u32 {
        let room = self.tiers[tier].pool().room();
        if tier > Tier::DEVICE {
            return room;
        }
        room.saturating_sub(self.config.null_slots + self.largest)
    }

    /// Copies what running sequences have published, some of them in turn: where they hold nearly all of
    /// the device, what they leave is taken as soon as they end. Where the tier below is full, of those
    /// only paths of which no less has been used again than once, as sessions have that go on.
    fn descend_running(&mut self, most: u32) -> Option<Plan> {
        let to = self.tiers.next_below(Tier::DEVICE)?;
        let mut draft = self.draft(Tier::DEVICE, to, Purpose::Below { parked: None });
        let most = most as usize;
        let places = self.leases.places() as u32;
        for _ in 0..LEASES.min(places) {
            self.turn = (self.turn + 1) % places;
            let lease = LeaseIx::new(self.turn);
            if draft.moves.len() < most && self.leases.occupied(lease) && !self.detached(lease) {
                self.copy_running(lease, &mut draft, most);
            }
        }
        self.launch_if_any(draft)
    }

    fn copy_running(&mut self, lease: LeaseIx, draft: &mut Draft, most: usize) {
        let record = &self.leases[lease];
        // What has a copy stands before what has none.
        let (mut first, mut end) = (0, record.sealed);
        while first < end {
            let middle = first.midpoint(end);
            match self.published(record, middle) {
                Some(node) if self.is_below(node, Tier::DEVICE) => first = middle + 1,
                _ => end = middle,
            }
        }
        let alone = |state: &Self, other| state.trie.slot(other, Tier::DEVICE).is_none();
        for block in first..record.sealed {
            let node = self.published(&self.leases[lease], block);
            let Some(node) = node.filter(|&node| self.wants_copy(node, Tier::DEVICE)) else {
                return;
            };
            let full = self.tiers[self.flights[draft.flight].to].ledger().free() == 0;
            if full && self.standing(node) > 0 {
                return;
            }
            if self.copy_path(node, draft, most, alone) != Descent::Whole {
                return;
            }
        }
    }

    /// How many of a tier's next victims should have a copy, and how many blocks may begin their way
    /// down at once: those cannot be taken until they have landed. The largest begin must find room
    /// beside them, and one that is larger than any before waits for what lands within [`LOOKS`].
    fn pace(&self, tier: Tier, least: u32) -> (u32, u32) {
        let room = self.tiers[tier].pool().room();
        let largest = self.largest.min(room);
        let soon = LOOKS * self.tiers[tier].descent.speed.blocks;
        let (ahead, most) = if tier == Tier::DEVICE {
            (largest, (room / 4).min((room - largest) / 2))
        } else {
            let ahead = largest.min(room / 4);
            (ahead, ahead / 2)
        };
        (
            least.max(ahead),
            soon.min(least.max(most)).max(least.div_ceil(LOOKS)),
        )
    }

    /// Copies a block down with what of its path has no copy there, the root first, as far as the plan
    /// has no more than `most` blocks. `may_go` is [`Self::copy_one`]'s.
    pub(super) fn copy_path(
        &mut self,
        node: NodeIx,
        draft: &mut Draft,
        most: usize,
        may_go: impl Fn(&Self, NodeIx) -> bool,
    ) -> Descent {
        let (from, to) = (
            self.flights[draft.flight].from,
            self.flights[draft.flight].to,
        );
        if draft.moves.len() >= most || !self.finds_room(to, &may_go) {
            return Descent::Waits;
        }
        let mut path = std::mem::take(&mut self.scratch.nodes);
        let mut descent = self.bare_path(node, from, &mut path);
        let mut standing = None;
        while descent == Descent::Whole
            && let Some(next) = path.pop()
        {
            let earns = self.tiers[to].ledger().free() > 0 || {
                let standing = standing.get_or_insert_with(|| self.standing(next));
                *standing <= i64::from(FEWEST.max(self.tiers[to].pool().room() / SHARE))
            };
            standing = standing.map(|standing| standing + 1);
            // Its parent is the one block of its path that may be a leaf there.
            let parent = self.trie.parent(next);
            let goes = |state: &Self, other| {
                Some(other) != parent
                    && may_go(state, other)
                    && (earns || state.is_spare(other, to))
            };
            if draft.moves.len() >= most {
                descent = Descent::Waits;
            } else if !self.copy_one(next, draft, goes) {
                descent = if earns || self.finds_room(to, &goes) {
                    Descent::Waits
                } else {
                    Descent::Cut
                };
            }
        }
        self.scratch.nodes = path;
        descent
    }

    /// The blocks of a path that have no copy below the tier, from this one up to the root: all are
    /// ready there.
    fn bare_path(&self, node: NodeIx, tier: Tier, path: &mut Vec<NodeIx>) -> Descent {
        path.clear();
        let mut at = Some(node);
        while let Some(node) = at.filter(|&node| !self.is_below(node, tier)) {
            if self.filling(node, tier).is_some() {
                return Descent::Waits;
            }
            let alive = self.trie[node].epoch == self.trie.epoch();
            if !alive || self.ready(node, tier).is_none() || self.is_hopeless(tier, node) {
                return Descent::Cut;
            }
            path.push(node);
            at = self.trie.parent(node);
            if at.is_none() && self.trie[node].parent.is_some() {
                return Descent::Cut;
            }
        }
        Descent::Whole
    }

    /// How many blocks of a path have been used once, less those above them that have been used again.
    fn standing(&self, node: NodeIx) -> i64 {
        let (mut standing, mut at) = (0, Some(node));
        while let Some(node) = at {
            standing += if self.trie[node].uses == Uses::Repeated {
                -1
            } else {
                1
            };
            at = self.trie.parent(node);
        }
        standing
    }

    /// Whether no look ahead may have passed a block over that wants a copy: all of its path may be copied
    /// whatever it costs. For the audit.
    pub(super) fn should_be_below(&self, node: NodeIx, tier: Tier) -> bool {
        let path = std::iter::successors(Some(node), |&node| self.trie.parent(node));
        self.wants_copy(node, tier)
            && path.take(FEWEST as usize + 1).count() <= FEWEST as usize
            && self.bare_path(node, tier, &mut Vec::new()) == Descent::Whole
    }

    fn finds_room(&mut self, to: Tier, may_go: &impl Fn(&Self, NodeIx) -> bool) -> bool {
        self.tiers[to].ledger().free() > 0 || self.victim(to, may_go).is_some()
    }

    /// Whether nothing is lost with a block's copy on the tier: it has another, or goes first in any case.
    fn is_spare(&self, node: NodeIx, tier: Tier) -> bool {
        let others = self.tiers.all().filter(|&other| other != tier);
        let mut others = others.filter(|&other| self.ready(node, other).is_some());
        let hold = self.trie.slot(node, tier).map(|slot| self.hold(tier, slot));
        others.next().is_some()
            || matches!(hold, Some(Hold::Idle { class }) if class <= Class::Ended)
    }
}
