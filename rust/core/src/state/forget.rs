//! Forget: blocks leave all tiers, with all that stands on them, and no restart brings them back.
//!
//! A forgotten block is of an epoch that never comes, so that it is found, told, copied down and
//! published by nobody from the call on. What is idle goes at once, what is in use when its use ends
//! (`leaves` in `evict.rs`). A keyed tier knows more than the yard, as it has records of blocks that were
//! evicted from it: so it is given keys, by a flight without copies, and voids what stands on them.

use super::State;
use super::record::{Holding, Keep, Running};
use crate::base::{
    Class, Error, HoldingIx, Id, Ix, Key, LeaseId, NodeIx, ParkedId, ParkedIx, Result, SlotIx,
    Tier, memory,
};
use crate::copies::Plan;
use crate::tiers::{FORGOTTEN, Hold};
use std::num::NonZeroU32;

/// What is to be forgotten.
#[derive(Clone, Copy, Debug)]
pub enum Condemned<'a> {
    /// The blocks of these keys, and all that stands on any of them.
    Keys(&'a [Key]),
    /// All sequences of this root, as [`crate::Chain::root`] gives it.
    Root(Key),
}

/// What a forget has done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forgotten {
    /// Blocks that are found no more, whatever tiers they were on.
    pub blocks: u64,
    /// Parked sequences that keep some of what was named, in the order in which they were parked. What
    /// they keep stays; by force, their keeps were broken.
    pub kept: Vec<ParkedId>,
    /// A plan for each keyed tier: when its flight has ended, no restart brings anything back.
    pub plans: Vec<Plan>,
}

/// What running sequences begin with, where that was said: beside their records, as a begin moves these.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    of: Vec<(Option<LeaseId>, Key)>,
    /// Whether the engine has made the keys of a sequence, which tell no root.
    pub(super) ready: bool,
}

/// Epochs of blocks while a call looks at them: those that were named, those that may stand on them, and
/// those of which nobody can say on what they stand.
const NAMED: u32 = FORGOTTEN - 3;
const BEHIND: u32 = FORGOTTEN - 2;
const ORPHAN: u32 = FORGOTTEN - 1;

/// What stood on what when it was looked at, by place.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    /// The generation of the block in each place, 0 where there is none, and what it stands on.
    rows: Vec<(u32, Option<Id<NodeIx>>)>,
    named: Vec<Id<NodeIx>>,
    tops: Vec<(Tier, Key)>,
}

/// Blocks that may stand on one that is named, and blocks of which nobody can say on what they stand, as
/// no tier has the one before them any more.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    known: Vec<Id<NodeIx>>,
    orphans: Vec<Id<NodeIx>>,
    /// Blocks of a keyed tier that stand there on nothing, as another tier has what is before them: by
    /// this they differ from records of which nobody knows any more.
    tops: Vec<(Tier, Key)>,
}

/// What is forgotten by a call.
#[derive(Default)]
pub(super) struct Family {
    /// All of it, each block behind the one that it stands on.
    pub(super) all: Vec<NodeIx>,
    /// What of it has a key and was not named.
    pub(super) unnamed: Vec<NodeIx>,
    /// How many are known to stand on what was named.
    known: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unknown,
    Spared,
    Condemned,
    Orphan,
}

impl Lineage {
    /// What is to be forgotten beside what was named.
    pub(crate) fn behind(mut self) -> Behind {
        let mut fates = vec![Fate::Unknown; self.rows.len()];
        for named in &self.named {
            fates[named.index.at()] = Fate::Condemned;
        }
        let (mut behind, mut path) = (Behind::default(), Vec::new());
        behind.tops = std::mem::take(&mut self.tops);
        for (place, &(generation, _)) in self.rows.iter().enumerate() {
            let mut next = NonZeroU32::new(generation).map(|generation| Id {
                index: NodeIx::new(place as u32),
                generation,
            });
            let fate = loop {
                let Some(id) = next else { break Fate::Spared };
                let (now, above) = self.rows.get(id.index.at()).copied().unwrap_or_default();
                if now != id.generation.get() {
                    break Fate::Orphan;
                }
                match fates[id.index.at()] {
                    Fate::Unknown => {}
                    fate => break fate,
                }
                // Where parents lead in a circle, it ends here.
                fates[id.index.at()] = Fate::Spared;
                path.push(id);
                next = above;
            };
            for id in path.drain(..).rev() {
                fates[id.index.at()] = fate;
                match fate {
                    Fate::Condemned => behind.known.push(id),
                    Fate::Orphan => behind.orphans.push(id),
                    Fate::Unknown | Fate::Spared => {}
                }
            }
        }
        behind
    }
}

impl State {
    /// Forgets blocks on all tiers, with all that stands on any of them; and what stands on blocks that no
    /// tier has any more, as nobody can say on what these stood. Running sequences that use some of it go
    /// on with it, and publish nothing from now on. Holds that have some of it end. What parked sequences keep stays, unless `force` breaks
    /// their keeps, so that they are computed again.
    ///
    /// It takes time in proportion to what is forgotten where all that stands on the named blocks is named
    /// too, and to the trie otherwise; [`crate::Cache::forget`] looks through that in slices.
    ///
    /// # Errors
    /// `State` for a root where the engine makes the keys; `Memory`.
    pub fn forget(&mut self, what: Condemned<'_>, force: bool) -> Result<Forgotten> {
        self.check_forget(what)?;
        if let Some(done) = self.forget_family(what, None, force) {
            return Ok(done);
        }
        let mut lineage = Lineage::default();
        while !self.look_at(what, usize::MAX, &mut lineage)? {}
        let done = self.forget_family(what, Some(&lineage.behind()), force);
        debug_assert!(done.is_some(), "nothing has changed meanwhile");
        Ok(done.unwrap_or_default())
    }

    /// # Errors
    /// `State` for a root where the engine makes the keys.
    pub(crate) fn check_forget(&self, what: Condemned<'_>) -> Result<()> {
        match what {
            Condemned::Root(_) if self.config.engine || self.roots.ready => {
                let what = "forgetting by salt where the engine makes the keys".to_owned();
                let help = "its keys do not tell their salt: name the blocks by keys";
                Err(Error::state(what, help))
            }
            _ => Ok(()),
        }
    }

    /// What a sequence that has begun stands on: [`crate::Chain::root`], `None` where the engine makes its
    /// keys. Without it, [`Self::forget`] does not find its blocks by their root.
    pub fn name_root(&mut self, lease: LeaseId, root: Option<Key>) {
        match root {
            None => self.roots.ready = true,
            Some(Key::NO_PARENT) => {}
            Some(root) => {
                let at = lease.at().at();
                let roots = &mut self.roots.of;
                if roots.len() <= at {
                    roots.resize(at + 1, Default::default());
                }
                roots[at] = (Some(lease), root);
            }
        }
    }

    /// What a sequence begins with, where that was said.
    pub(super) fn root_of(&self, lease: LeaseId) -> Option<Key> {
        let (named, root) = *self.roots.of.get(lease.at().at())?;
        (named == Some(lease)).then_some(root)
    }

    /// Looks at the next places of the trie, so many at most. Returns whether it has seen all.
    ///
    /// # Errors
    /// `Memory`.
    pub(crate) fn look_at(
        &self,
        what: Condemned<'_>,
        slice: usize,
        lineage: &mut Lineage,
    ) -> Result<bool> {
        let (first, places) = (lineage.rows.len(), self.trie.places());
        if first == 0 {
            memory::reserve(&mut lineage.rows, places, "what stands on what")?;
            lineage.named = self.named(what);
        }
        let last = first.saturating_add(slice).min(places);
        for place in (first..last).map(|place| NodeIx::new(place as u32)) {
            let row = || {
                (
                    self.trie.id(place).generation.get(),
                    self.trie[place].parent,
                )
            };
            let alive = self.trie.alive(place);
            lineage.rows.push(alive.then(row).unwrap_or_default());
            if alive && self.has_keyed() {
                self.list_tops(place, &mut lineage.tops);
            }
        }
        Ok(last == places)
    }

    fn has_keyed(&self) -> bool {
        self.config.keyed.contains(&true)
    }

    fn list_tops(&self, node: NodeIx, tops: &mut Vec<(Tier, Key)>) {
        let block = &self.trie[node];
        let above = self.trie.parent(node);
        for tier in self.tiers.below(Tier::DEVICE) {
            let stands = above.is_some_and(|above| self.trie.slot(above, tier).is_some());
            let is_top = self.config.keyed[tier.at()] && block.parent.is_some() && !stands;
            if is_top && !block.is_anonymous() && self.trie.slot(node, tier).is_some() {
                tops.push((tier, block.key));
            }
        }
    }

    /// The blocks that are named, and are there.
    fn named(&self, what: Condemned<'_>) -> Vec<Id<NodeIx>> {
        let id = |node| self.trie.id(node);
        match what {
            Condemned::Keys(keys) => {
                let found = keys.iter().filter_map(|key| self.trie.find(key));
                found.map(id).collect()
            }
            Condemned::Root(root) => self.trie.rooted(root).map(id).collect(),
        }
    }

    /// Forgets what is named, and these blocks. `None`, and nothing is changed, where they are not all that
    /// stands on what is named, or more than that.
    pub(crate) fn forget_family(
        &mut self,
        what: Condemned<'_>,
        behind: Option<&Behind>,
        force: bool,
    ) -> Option<Forgotten> {
        let now = self.trie.epoch();
        let orphans = self.orphans.torn || self.orphans.known || self.config.engine;
        if behind.is_none() && (orphans || self.has_keyed()) {
            return None;
        }
        let nodes = self.mark_all(what, behind, now);
        if !self.is_family(&nodes) {
            self.unmark_family(&nodes, now);
            return None;
        }
        let mut nodes = nodes;
        let holds = self.holds_of_marked();
        if !holds.is_empty() {
            self.unmark_family(&nodes, now);
            for own in holds {
                self.end_hold(own);
            }
            nodes = self.mark_all(what, behind, now);
        }
        let mut keepers = self.keepers_of_marked();
        let kept = keepers
            .iter()
            .map(|&parked| ParkedId(self.parked.id(parked)));
        let kept = kept.collect();
        if force && !keepers.is_empty() {
            // As if they had never kept it: what a break takes away is told as ever.
            self.unmark_family(&nodes, now);
            for parked in keepers.drain(..).rev() {
                self.break_keep(parked);
            }
            nodes = self.mark_all(what, behind, now);
        }
        let spared = self.spare_kept(&keepers, now);
        let family = self.root_first(&nodes);
        self.detach_users(what);
        let tops = behind.map_or(&[][..], |behind| &behind.tops);
        let plans = self.void_records(what, &family, &spared, tops);
        self.counters.forgotten += family.all.len() as u64;
        self.drop_forgotten(&family.all);
        self.ease_headroom();
        Some(Forgotten {
            blocks: family.known,
            kept,
            plans,
        })
    }

    /// Marks what is named, and these; only blocks that are there, and found.
    fn mark_all(&mut self, what: Condemned<'_>, behind: Option<&Behind>, now: u32) -> Vec<NodeIx> {
        let named = self.named(what);
        let (known, orphans) = behind.map_or((&[][..], &[][..]), |own| (&own.known, &own.orphans));
        let mut nodes = Vec::with_capacity(named.len() + known.len() + orphans.len());
        for (ids, mark) in [(&*named, NAMED), (known, BEHIND), (orphans, ORPHAN)] {
            for &id in ids {
                let node = self.trie.live(id);
                if let Some(node) = node.filter(|&node| self.trie[node].epoch == now) {
                    self.trie[node].epoch = mark;
                    nodes.push(node);
                }
            }
        }
        nodes
    }

    fn unmark_family(&mut self, nodes: &[NodeIx], now: u32) {
        for &node in nodes {
            self.trie[node].epoch = now;
        }
    }

    fn is_marked(&self, node: NodeIx) -> bool {
        matches!(self.trie[node].epoch, NAMED | BEHIND | ORPHAN)
    }

    /// Whether all that stands on a marked block is marked or forgotten before, and each was named, stands
    /// on a marked one, or on one that is gone.
    fn is_family(&self, nodes: &[NodeIx]) -> bool {
        let (mut children, mut own) = (0_u64, 0_u64);
        let tiers = self.used_tiers();
        let slots = |node| {
            let tiers = self.tiers.all();
            tiers
                .filter(|&tier| self.trie.slot(node, tier).is_some())
                .count() as u64
        };
        for &node in nodes {
            let above = self.trie[node].parent.map(|id| self.trie.live(id));
            let on_marked = above.flatten().is_some_and(|above| self.is_marked(above));
            let mark = self.trie[node].epoch;
            if mark != NAMED && !on_marked && (mark == BEHIND || above != Some(None)) {
                return false;
            }
            for &tier in &tiers {
                let residency = self.trie.residency(node, tier);
                children += u64::from(residency.children);
                own += u64::from(on_marked && residency.slot.is_some());
            }
        }
        // What was forgotten before and is in use still may stand on what is forgotten now.
        let before = self.trie.forgotten().filter(|&node| {
            let above = self.trie.parent(node);
            above.is_some_and(|above| self.is_marked(above))
        });
        children == own + before.map(slots).sum::<u64>()
    }

    /// Parked sequences that keep something that is marked, in the order in which they were parked. What
    /// stands on a marked block is marked, so that the last block of each tells; of a set any does.
    fn keepers_of_marked(&self) -> Vec<ParkedIx> {
        let mut keepers = self.youngest_first();
        keepers.retain(|&parked| {
            let record = &self.parked[parked];
            let first = if self.config.linked {
                record.path.len().saturating_sub(1)
            } else {
                0
            };
            let mut path = record.path[first..].iter();
            record.keep == Keep::Whole && path.any(|&node| self.is_marked(node))
        });
        keepers.reverse();
        keepers
    }

    /// Holds of something that is marked: the last block of each tells.
    fn holds_of_marked(&self) -> Vec<HoldingIx> {
        let last = |holding: &Holding| self.node_in(self.held_tier(), *holding.table.last()?);
        let marked = |holding| last(holding).is_some_and(|node| self.is_marked(node));
        let holds = self.holdings.iter().filter(|&(_, own)| marked(own));
        holds.map(|(own, _)| own).collect()
    }

    /// What these keep is marked no more. Returns it.
    fn spare_kept(&mut self, keepers: &[ParkedIx], now: u32) -> Vec<NodeIx> {
        let mut spared = Vec::new();
        for &parked in keepers {
            for at in 0..self.parked[parked].path.len() {
                let node = self.parked[parked].path[at];
                if self.is_marked(node) {
                    self.trie[node].epoch = now;
                    spared.push(node);
                }
            }
        }
        spared
    }

    /// Ends what is marked, and lists it.
    fn root_first(&mut self, nodes: &[NodeIx]) -> Family {
        let mut family = Family {
            all: Vec::with_capacity(nodes.len()),
            ..Family::default()
        };
        for &node in nodes {
            let first = family.all.len();
            let mut at = Some(node).filter(|&node| self.trie.alive(node));
            while let Some(node) = at.filter(|&node| self.is_marked(node)) {
                let mark = std::mem::replace(&mut self.trie[node].epoch, FORGOTTEN);
                family.known += u64::from(mark != ORPHAN);
                match mark {
                    NAMED => {}
                    _ if self.trie[node].is_anonymous() => {}
                    _ => family.unnamed.push(node),
                }
                family.all.push(node);
                at = self.trie.parent(node);
            }
            family.all[first..].reverse();
        }
        family
    }

    /// Sequences that use what was forgotten publish nothing any more: nor do those of a forgotten root,
    /// whose first block may not be full yet.
    fn detach_users(&mut self, what: Condemned<'_>) {
        let all: Vec<_> = self.leases.iter().map(|(lease, _)| lease).collect();
        for lease in all {
            let record = &self.leases[lease];
            let own = self.root_of(self.lease_id(lease));
            let rooted = matches!(what, Condemned::Root(root) if own == Some(root));
            if rooted || self.uses_forgotten(record) {
                self.leases[lease].epoch = FORGOTTEN;
            }
        }
    }

    /// Whether a sequence has a forgotten block: then the last that it has sealed is one, or a fork has
    /// published one behind it.
    fn uses_forgotten(&self, record: &Running) -> bool {
        let last = record.sealed.saturating_sub(1) as usize;
        let rest = record.table.get(last..).unwrap_or_default();
        let mut nodes = rest.iter().filter_map(|&slot| self.node_of(slot));
        nodes.any(|node| self.trie[node].epoch == FORGOTTEN)
    }

    /// Drops what is idle of what was forgotten; what is in use goes when its use ends.
    fn drop_forgotten(&mut self, order: &[NodeIx]) {
        if order.is_empty() {
            return;
        }
        if self.events.is_some() {
            for &node in order.iter().rev() {
                self.emit_forgotten(node);
            }
        }
        for tier in self.tiers.all() {
            self.tiers[tier].set_leaving(true);
        }
        let (tiers, mut left) = (self.used_tiers(), false);
        for &node in order.iter().rev() {
            for &tier in &tiers {
                if let Some(slot) = self.trie.slot(node, tier) {
                    self.drop_if_idle(node, tier, slot);
                }
            }
            left |= !self.remove_if_gone(node);
        }
        if left {
            self.list_left(order);
        }
        self.trim_forgotten();
    }

    /// The tiers that have a slot.
    fn used_tiers(&self) -> Vec<Tier> {
        let all = self.tiers.all();
        all.filter(|&tier| self.tiers[tier].pool().len() > 0)
            .collect()
    }

    /// What of these blocks is in use stands before all others where it is idle, and is remembered.
    fn list_left(&mut self, order: &[NodeIx]) {
        for &node in order.iter().rev() {
            for tier in self.tiers.all() {
                if self.trie.alive(node)
                    && let Some(slot) = self.trie.slot(node, tier)
                    && matches!(self.hold(tier, slot), Hold::Idle { class } if class != Class::Cleared)
                {
                    self.enter(node, tier, slot, Class::Cleared);
                }
            }
        }
        for &node in order {
            if self.trie.alive(node) {
                self.trie.note_forgotten(node);
            }
        }
    }

    /// The same as an eviction of a forgotten block, but for what those above it hear that go next.
    fn drop_if_idle(&mut self, node: NodeIx, tier: Tier, slot: SlotIx) {
        let residency = *self.trie.residency(node, tier);
        if residency.children > 0 || !self.tiers[tier].drop_idle(slot, residency) {
            return;
        }
        self.trie.residency_mut(node, tier).slot = None;
        let Some(above) = self.trie.parent(node) else {
            return;
        };
        if self.trie[above].epoch == FORGOTTEN {
            self.trie.residency_mut(above, tier).children -= 1;
        } else if let Some(above) = self.leave_parent(node, tier) {
            self.retire(tier, above);
        }
    }

    /// Where nothing is left of what was forgotten, nothing is looked for.
    pub(super) fn trim_forgotten(&mut self) {
        if self.trie.trim_forgotten() {
            for tier in self.tiers.all() {
                self.tiers[tier].set_leaving(false);
            }
        }
    }
}
