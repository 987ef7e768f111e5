//! Demote: copies down, ahead of need, so that evicting is free; and promote: copies up, ahead
//! of a request.

use super::State;
use crate::error::Result;
use crate::evict::{Evict, Evictability};
use crate::flight::{Move, Purpose};
use crate::id::{FlightIx, Id, Key, LeaseId, NodeIx, ParkedId, Retention, SlotIx, Tier};
use crate::plan::Plan;
use crate::pool::Hold;
use crate::record::{Phase, Running, Start};
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
    /// Copies down those of the device's next `blocks` victims that have no copy below, or what else
    /// [`WritePolicy`] says, as far as the host's promises allow and no nearer victim loses its own
    /// copy by it. It copies no more than `blocks` blocks, and passes over what it has looked at
    /// before. `None`: there is nothing to copy.
    pub fn demote(&mut self, blocks: u32) -> Option<Plan> {
        if !self.tiers.has(Tier::HOST) {
            return None;
        }
        let flight = self.open_flight(Tier::DEVICE, Tier::HOST, Purpose::Down { parked: None });
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

    /// Copies what was published, until a block finds no room; returns that block.
    fn copy_fresh(
        &mut self,
        most: u32,
        flight: FlightIx,
        moves: &mut Vec<Move>,
    ) -> Option<Id<NodeIx>> {
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
    fn unseen_victims(&mut self, blocks: u32) -> Vec<SlotIx> {
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.clear();
        let mut gone = BTreeMap::new();
        let mut opens = |slot: SlotIx| self.opened_by(slot, &mut gone);
        let order = &self.tiers[Tier::DEVICE].order;
        order.unseen(blocks as usize, &mut opens, &mut ahead);
        ahead
    }

    /// Copies those of the next victims that want a copy, until one finds no room.
    fn copy_victims(
        &mut self,
        ahead: &[SlotIx],
        blocks: u32,
        flight: FlightIx,
        moves: &mut Vec<Move>,
    ) {
        let most = blocks as usize;
        let whole = ahead.iter().all(|&slot| {
            let node = self.node_in(Tier::DEVICE, slot);
            let done = node
                .filter(|&node| self.wants_copy(node))
                .is_none_or(|node| {
                    let later = |state: &Self, other| state.goes_before(slot, other);
                    moves.len() < most && self.copy_one(node, flight, moves, later)
                });
            done && self.tiers[Tier::DEVICE].order.see(slot)
        });
        if whole && moves.is_empty() {
            self.tiers[Tier::DEVICE].order.settle(most);
        }
    }

    /// Whether the idle block in `slot`, the next to be looked at, leaves the device before `other`.
    fn goes_before(&self, slot: SlotIx, other: SlotIx) -> bool {
        match (
            self.hold(Tier::DEVICE, slot),
            self.hold(Tier::DEVICE, other),
        ) {
            (Hold::Idle { class: own }, Hold::Idle { class }) if own == class => {
                !self.tiers[Tier::DEVICE].order.precedes(other, slot)
            }
            (Hold::Idle { class: own }, Hold::Idle { class }) => own < class,
            _ => true,
        }
    }

    /// Whether a block on the device should have a copy below before it is evicted, and has none.
    pub(super) fn wants_copy(&self, node: NodeIx) -> bool {
        let block = &self.trie[node];
        let once = self.config.write == WritePolicy::SecondTouch && block.uses == Uses::Once;
        block.epoch == self.trie.epoch()
            && !once
            && self.tiers.has(Tier::HOST)
            && self.trie.slot(node, Tier::HOST).is_none()
            && self.ready(node, Tier::DEVICE).is_some()
            && !self.is_hopeless(node)
    }

    /// A block was published. Where no demote ever comes, the oldest are forgotten.
    pub(super) fn note_fresh(&mut self, node: NodeIx) {
        if self.config.write == WritePolicy::Through {
            if self.fresh.len() >= self.tiers[Tier::DEVICE].pool.len() as usize {
                self.fresh.pop_front();
            }
            self.fresh.push_back(self.trie.id(node));
        }
    }

    /// A copy of this block below has ended, and is good or not. A failed one is tried again up to
    /// `copy_retries` times: under [`WritePolicy::Through`] it goes to the back of the queue.
    pub(super) fn note_copy(&mut self, node: NodeIx, good: bool) {
        let block = &self.trie[node];
        let published = block.epoch == self.trie.epoch() && !block.is_anonymous();
        if !published || self.trie.slot(node, Tier::DEVICE).is_none() {
            return;
        }
        let id = self.trie.id(node);
        if good {
            self.failures.remove(&id);
            return;
        }
        if self.failures.len() > self.tiers[Tier::DEVICE].pool.len() as usize {
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
    fn is_hopeless(&self, node: NodeIx) -> bool {
        let failures = self.failures.get(&self.trie.id(node));
        failures.is_some_and(|&failures| failures > self.config.copy_retries)
    }

    /// The idle parent on the device that is a leaf once this slot, and those before it, are gone.
    fn opened_by(&self, slot: SlotIx, gone: &mut BTreeMap<NodeIx, u32>) -> Option<SlotIx> {
        let parent = self.trie.parent(self.node_in(Tier::DEVICE, slot)?)?;
        let children = gone.entry(parent).or_default();
        *children += 1;
        let above = self.trie.slot(parent, Tier::DEVICE)?;
        let idle = matches!(self.hold(Tier::DEVICE, above), Hold::Idle { .. });
        let last = *children == self.trie.residency(parent, Tier::DEVICE).children;
        (idle && last && self.evictability_of(Tier::DEVICE, above) != Evictability::Blocked)
            .then_some(above)
    }

    /// Copies up to `blocks` sealed blocks of a running sequence down, the root first.
    pub fn demote_lease(&mut self, id: LeaseId, blocks: u32) -> Result<Option<Plan>> {
        let lease = self.lease(id)?;
        if self.detached(lease) || !self.tiers.has(Tier::HOST) {
            return Ok(None);
        }
        let record = &self.leases[lease];
        let path: Vec<NodeIx> = (0..record.sealed)
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
        nodes: impl Iterator<Item = NodeIx>,
        most: u32,
    ) -> Option<Plan> {
        let flight = self.open_flight(Tier::DEVICE, Tier::HOST, purpose);
        let mut moves = Vec::new();
        for node in nodes {
            if moves.len() >= most as usize {
                break;
            }
            let lacks = self.ready(node, Tier::DEVICE).is_some()
                && self.trie.slot(node, Tier::HOST).is_none();
            if lacks && !self.copy_one(node, flight, &mut moves, |_, _| true) {
                break;
            }
        }
        self.launch_if_any(flight, moves)
    }

    fn launch_if_any(&mut self, flight: FlightIx, moves: Vec<Move>) -> Option<Plan> {
        if moves.is_empty() {
            self.flights.remove(flight);
            return None;
        }
        Some(self.launch(flight, moves))
    }

    /// Adds a block to a flight down; `false` where it finds no room. `may_go` says whether the host
    /// copy of the block in this device slot may be evicted for it.
    fn copy_one(
        &mut self,
        node: NodeIx,
        flight: FlightIx,
        moves: &mut Vec<Move>,
        may_go: impl Fn(&Self, SlotIx) -> bool,
    ) -> bool {
        let Some(from) = self.ready(node, Tier::DEVICE) else {
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
    fn host_victim(&mut self, may_go: &impl Fn(&Self, SlotIx) -> bool) -> Option<SlotIx> {
        let victim = self.tiers[Tier::HOST].order.victim()?;
        let node = self.node_in(Tier::HOST, victim);
        let above = node.and_then(|node| self.trie.slot(node, Tier::DEVICE));
        above
            .is_none_or(|slot| may_go(self, slot))
            .then_some(victim)
    }

    /// Marks a device slot as read and gives its block a host slot to fill. `None`, with nothing
    /// changed, where that would take the backing of a promise: the slot's, and that of the idle
    /// blocks above it, which must stay while it fills; or where the next victim may not go.
    fn place_below(
        &mut self,
        node: NodeIx,
        from: SlotIx,
        flight: FlightIx,
        may_go: impl Fn(&Self, SlotIx) -> bool,
    ) -> Option<SlotIx> {
        let owed =
            u32::from(self.trie[node].keeps > 0 && self.trie.slot(node, Tier::HOST).is_none());
        let takes = 1 + self.shaded_by(node, Tier::HOST);
        if self.tiers[Tier::HOST].ledger.available() + i64::from(owed) < i64::from(takes)
            || (self.tiers[Tier::HOST].ledger.free() == 0 && self.host_victim(&may_go).is_none())
            || !self.mark_backed(Tier::DEVICE, from)
        {
            return None;
        }
        if self.tiers[Tier::HOST].ledger.free() == 0 {
            let Some(victim) = self.host_victim(&may_go) else {
                self.unmark(Tier::DEVICE, from);
                return None;
            };
            self.evict_with_parents(Tier::HOST, victim);
        }
        self.tiers[Tier::HOST].ledger.release(owed);
        self.destination(node, Tier::HOST, flight)
    }

    /// Idle blocks above that cannot be taken while `node` is busy on the tier, and could before.
    fn shaded_by(&self, mut node: NodeIx, tier: Tier) -> u32 {
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
        let tier = self
            .tiers
            .below(Tier::DEVICE)
            .find(|tier| probe.hits[tier.at()] > 0)
            .unwrap_or(Tier::HOST);
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

    fn load_path(&mut self, path: &[NodeIx], device: usize, tier: Tier) -> Result<Option<Plan>> {
        let idle_hits = self.idle_hits(path[..device].iter().copied());
        let need = (path.len() - device) as u64;
        self.decide(Tier::DEVICE, need, idle_hits).check()?;
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
        self.make_room(Tier::DEVICE, (end - device) as u32);
        // A lease that has ended already: what pins its path goes when its load lands.
        let tokens = end as u64 * u64::from(self.config.block_size);
        let lease = self.leases.insert(Running::new(Start {
            tokens,
            limit: end as u32,
            sealed: end as u32,
            cached: tokens,
            epoch: self.trie.epoch(),
        }));
        let id = self.lease_id(lease);
        let plan = self.load(id, device as u32, tier, &path[device..end], &mut table);
        let record = &mut self.leases[lease];
        record.table = table;
        record.phase = Phase::Ended {
            flights: 1,
            resumes: None,
            retention: Retention::Ordinary,
        };
        Ok(Some(plan))
    }
}
