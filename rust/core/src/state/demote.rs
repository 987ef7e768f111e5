//! Demote: copies down, ahead of need, so that evicting is free; and promote: copies up, ahead
//! of a request.

use super::State;
use super::keep::HOST;
use crate::error::Result;
use crate::evict::{Evict, Evictability};
use crate::flight::{Move, Purpose};
use crate::id::{Id, Key, LeaseId, ParkedId, Retention};
use crate::plan::Plan;
use crate::pool::Hold;
use crate::record::Running;
use crate::trie::Uses;
use std::collections::BTreeMap;

/// What [`State::demote`] copies down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WritePolicy {
    /// The device's next victims.
    #[default]
    OnEvict,
    /// What was published, in that order; then the next victims.
    Through,
    /// Of the next victims those that were used more than once. A sequence uses a block by beginning
    /// over it or publishing it; a block that had been dropped before counts as used once more.
    SecondTouch,
}

impl State {
    /// Sees that the next `blocks` victims of the device have a copy below, or what else
    /// [`Write`] says, as far as the host's promises allow and no nearer victim loses its own copy
    /// by it; `None` when there is nothing to copy. No more than `blocks` are copied, and what was
    /// looked at before is passed over.
    pub fn demote(&mut self, blocks: u32) -> Option<Plan> {
        if self.tiers.len() <= HOST {
            return None;
        }
        let flight = self.open_flight(0, HOST, Purpose::Down { parked: None });
        let mut moves = Vec::new();
        let victims = self.unseen_victims(blocks);
        let waits = self.copy_fresh(blocks, flight, &mut moves);
        self.copy_victims(&victims, blocks, flight, &mut moves);
        self.ahead = victims;
        if let Some(id) = waits {
            self.fresh.push_front(id);
        }
        while let Some(&id) = self.fresh.front()
            && !self.trie.live(id).is_some_and(|node| self.wants_copy(node))
        {
            self.fresh.pop_front();
        }
        self.launch_if_any(flight, moves)
    }

    /// Copies what was published, until one finds no room: that one.
    fn copy_fresh(&mut self, most: u32, flight: u32, moves: &mut Vec<Move>) -> Option<Id> {
        while moves.len() < most as usize
            && let Some(id) = self.fresh.pop_front()
        {
            let node = self.trie.live(id).filter(|&node| self.wants_copy(node));
            if let Some(node) = node
                && !self.copy_one(node, flight, moves, |_, _| false)
            {
                return Some(id);
            }
        }
        None
    }

    /// Those of the next victims that were not looked at.
    fn unseen_victims(&mut self, blocks: u32) -> Vec<u32> {
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.clear();
        let mut gone = BTreeMap::new();
        let mut opens = |slot| self.opened_by(slot, &mut gone);
        let order = &self.tiers[0].order;
        order.unseen(blocks as usize, &mut opens, &mut ahead);
        ahead
    }

    /// Copies what of the next victims wants a copy, until one finds no room.
    fn copy_victims(&mut self, ahead: &[u32], blocks: u32, flight: u32, moves: &mut Vec<Move>) {
        let most = blocks as usize;
        let whole = ahead.iter().all(|&slot| {
            let node = self.node_in(0, slot);
            let done = node
                .filter(|&node| self.wants_copy(node))
                .is_none_or(|node| {
                    let later = |state: &Self, other| state.goes_before(slot, other);
                    moves.len() < most && self.copy_one(node, flight, moves, later)
                });
            done && self.tiers[0].order.see(slot)
        });
        if whole && moves.is_empty() {
            self.tiers[0].order.settle(most);
        }
    }

    /// Whether the idle block in `slot`, the next to be looked at, leaves the device before `other`.
    fn goes_before(&self, slot: u32, other: u32) -> bool {
        match (self.hold(0, slot), self.hold(0, other)) {
            (Hold::Idle { class: own }, Hold::Idle { class }) if own == class => {
                !self.tiers[0].order.precedes(other, slot)
            }
            (Hold::Idle { class: own }, Hold::Idle { class }) => own < class,
            _ => true,
        }
    }

    /// Whether a block on the device should have a copy below before it is evicted, and has none.
    pub(super) fn wants_copy(&self, node: u32) -> bool {
        let block = &self.trie[node];
        let once = self.config.write == WritePolicy::SecondTouch && block.uses == Uses::Once;
        block.epoch == self.trie.epoch()
            && !once
            && self.tiers.len() > HOST
            && self.trie.slot(node, HOST).is_none()
            && self.ready(node, 0).is_some()
            && !self.is_hopeless(node)
    }

    /// A block was published. Where nobody ever demotes, the oldest are forgotten.
    pub(super) fn note_fresh(&mut self, node: u32) {
        if self.config.write == WritePolicy::Through {
            if self.fresh.len() >= self.tiers[0].pool.len() as usize {
                self.fresh.pop_front();
            }
            self.fresh.push_back(self.trie.id(node));
        }
    }

    /// A copy of this block below has ended, and is good or not. One that fails is tried again so
    /// many times, where it goes down when it is published at the end of that line.
    pub(super) fn note_copy(&mut self, node: u32, good: bool) {
        let block = &self.trie[node];
        let published = block.epoch == self.trie.epoch() && !block.is_anonymous();
        if !published || self.trie.slot(node, 0).is_none() {
            return;
        }
        let id = self.trie.id(node);
        if good {
            self.failures.remove(&id);
            return;
        }
        if self.failures.len() > self.tiers[0].pool.len() as usize {
            let trie = &self.trie;
            self.failures.retain(|&id, _| trie.live(id).is_some());
        }
        let failures = self.failures.entry(id).or_default();
        *failures = failures.saturating_add(1);
        if !self.is_hopeless(node) {
            self.note_fresh(node);
        }
    }

    /// Whether its copy down has failed too often to be made ahead of need.
    fn is_hopeless(&self, node: u32) -> bool {
        let failures = self.failures.get(&self.trie.id(node));
        failures.is_some_and(|&failures| failures > self.config.retries)
    }

    /// The idle parent on the device that is a leaf once this slot, and those before it, are gone.
    fn opened_by(&self, slot: u32, gone: &mut BTreeMap<u32, u32>) -> Option<u32> {
        let parent = self.trie.parent(self.node_in(0, slot)?)?;
        let children = gone.entry(parent).or_default();
        *children += 1;
        let above = self.trie.slot(parent, 0)?;
        let idle = matches!(self.hold(0, above), Hold::Idle { .. });
        let last = *children == self.trie.residency(parent, 0).children;
        (idle && last && self.evictability_of(0, above) != Evictability::Blocked).then_some(above)
    }

    /// Copies up to `blocks` sealed blocks of a running sequence down, the root first.
    pub fn demote_lease(&mut self, id: LeaseId, blocks: u32) -> Result<Option<Plan>> {
        let lease = self.lease(id)?;
        if self.detached(lease) || self.tiers.len() <= HOST {
            return Ok(None);
        }
        let record = &self.leases[lease];
        let path: Vec<u32> = (0..record.sealed)
            .map_while(|block| self.published(record, block))
            .collect();
        Ok(self.copy_down(Purpose::Down { parked: None }, path.into_iter(), blocks))
    }

    /// Copies up to `blocks` blocks of a parked sequence down, the deepest first: within the
    /// slots promised when it was parked, so that it always can.
    pub fn demote_parked(&mut self, id: ParkedId, blocks: u32) -> Result<Option<Plan>> {
        let parked = self.parked(id)?;
        let record = &self.parked[parked];
        let path = record.path[..record.on_device as usize].to_vec();
        let purpose = Purpose::Down { parked: Some(id) };
        Ok(self.copy_down(purpose, path.into_iter().rev(), blocks))
    }

    fn copy_down(
        &mut self,
        purpose: Purpose,
        nodes: impl Iterator<Item = u32>,
        most: u32,
    ) -> Option<Plan> {
        let flight = self.open_flight(0, HOST, purpose);
        let mut moves = Vec::new();
        for node in nodes {
            if moves.len() >= most as usize {
                break;
            }
            let lacks = self.ready(node, 0).is_some() && self.trie.slot(node, HOST).is_none();
            if lacks && !self.copy_one(node, flight, &mut moves, |_, _| true) {
                break;
            }
        }
        self.launch_if_any(flight, moves)
    }

    fn launch_if_any(&mut self, flight: u32, moves: Vec<Move>) -> Option<Plan> {
        if moves.is_empty() {
            self.flights.remove(flight);
            return None;
        }
        Some(self.launch(flight, moves))
    }

    /// One block more for a flight down; `false` where it finds no room. `may_go`: whether the copy
    /// of a block that the device has too, in this slot, may make room.
    fn copy_one(
        &mut self,
        node: u32,
        flight: u32,
        moves: &mut Vec<Move>,
        may_go: impl Fn(&Self, u32) -> bool,
    ) -> bool {
        let Some(from) = self.ready(node, 0) else {
            return false;
        };
        let Some(to) = self.place_below(node, from, flight, may_go) else {
            return false;
        };
        let node = Some(self.trie.id(node));
        moves.push(Move { node, from, to });
        true
    }

    /// The next victim of the host, if it may go.
    fn host_victim(&mut self, may_go: &impl Fn(&Self, u32) -> bool) -> Option<u32> {
        let victim = self.tiers[HOST].order.victim()?;
        let node = self.node_in(HOST, victim);
        let above = node.and_then(|node| self.trie.slot(node, 0));
        above
            .is_none_or(|slot| may_go(self, slot))
            .then_some(victim)
    }

    /// Marks a device slot as read and gives its block a host slot to fill. `None`, with nothing
    /// changed, where that would take the backing of a promise: the slot's, and that of the idle
    /// blocks above it, which must stay while it fills; or where the next victim may not go.
    fn place_below(
        &mut self,
        node: u32,
        from: u32,
        flight: u32,
        may_go: impl Fn(&Self, u32) -> bool,
    ) -> Option<u32> {
        let owed = u32::from(self.trie[node].keeps > 0 && self.trie.slot(node, HOST).is_none());
        let takes = 1 + self.shaded_by(node, HOST);
        if self.tiers[HOST].ledger.available() + i64::from(owed) < i64::from(takes)
            || (self.tiers[HOST].ledger.free() == 0 && self.host_victim(&may_go).is_none())
            || !self.mark_backed(0, from)
        {
            return None;
        }
        if self.tiers[HOST].ledger.free() == 0 {
            let Some(victim) = self.host_victim(&may_go) else {
                self.unmark(0, from);
                return None;
            };
            self.evict_with_parents(HOST, victim);
        }
        self.tiers[HOST].ledger.release(owed);
        self.destination(node, HOST, flight)
    }

    /// Idle blocks above that cannot be taken while `node` is busy on the tier, and could before.
    fn shaded_by(&self, mut node: u32, tier: usize) -> u32 {
        let mut shaded = 0;
        while let Some(parent) = self.trie.parent(node)
            && let Some(slot) = self.trie.slot(parent, tier)
            && !self.is_busy(parent, tier)
        {
            shaded += u32::from(self.takeable(tier, slot));
            node = parent;
        }
        shaded
    }

    /// Copies what of this prefix lies below up to the device, at most `blocks` blocks; `None`
    /// when there is nothing to load. Its path stays pinned until it has landed.
    pub fn promote(&mut self, keys: &[Key], blocks: u32) -> Result<Option<Plan>> {
        let probe = self.walk(keys);
        let device = probe.hits[0] as usize;
        let tier = (1..self.tiers.len())
            .find(|&tier| probe.hits[tier] > 0)
            .unwrap_or(HOST);
        let lower = (self.path.len() - device).min(blocks as usize);
        if lower == 0 {
            return Ok(None);
        }
        self.size(
            (device + lower) as u64 * u64::from(self.config.block_size),
            0,
        )?;
        let path = std::mem::take(&mut self.path);
        let plan = self.load_path(&path[..device + lower], device, tier);
        self.path = path;
        plan
    }

    fn load_path(&mut self, path: &[u32], device: usize, tier: usize) -> Result<Option<Plan>> {
        let idle_hits = path[..device]
            .iter()
            .filter_map(|&node| self.ready(node, 0))
            .filter(|&slot| self.takeable(0, slot))
            .count() as u64;
        let need = (path.len() - device) as u64;
        if !self.tiers[0].ledger.affords(need + idle_hits) {
            return Err(self.no_room(0, need, idle_hits));
        }
        self.link_path(path);
        let mut end = device;
        for &node in &path[device..] {
            let Some(slot) = self.ready(node, tier) else {
                break;
            };
            if !self.mark_backed(tier, slot) {
                break;
            }
            end += 1;
        }
        if end == device {
            return Ok(None);
        }
        let mut table = Vec::with_capacity(end);
        self.pin_path(&path[..device], &mut table);
        self.make_room(0, (end - device) as u32);
        // A lease that has ended already: what pins its path goes when its load lands.
        let lease = self.leases.insert(Running::default());
        let id = self.lease_id(lease);
        let plan = self.load(id, device as u32, tier, &path[device..end], &mut table);
        let tokens = table.len() as u64 * u64::from(self.config.block_size);
        let epoch = self.trie.epoch();
        let blocks = table.len() as u32;
        let record = &mut self.leases[lease];
        (record.table, record.tokens, record.cached) = (table, tokens, tokens);
        (record.limit, record.sealed, record.epoch) = (blocks, blocks, epoch);
        (record.loading, record.ended) = (1, Some(Retention::Ordinary));
        Ok(Some(plan))
    }
}
