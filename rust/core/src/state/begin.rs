//! Begin: matches the longest prefix over all tiers, pins it, claims the slots that are missing,
//! promises the growth, and evicts exactly the deficit. It does all of this or nothing.

use super::admit::Decision;
use super::record::Start;
use super::runs::Runs;
use super::{Answer, Begun, State, Stop};
use crate::base::{Error, FlightId, Key, MAX_TIERS, NodeIx, Result, SlotIx, Tier};
use crate::evict::Ghosts;

/// What a begin does at a block that is in flight. Where the engine cannot recompute, a begin waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Filling {
    /// The prefix ends there.
    #[default]
    Stop,
    /// Nothing is held; the answer is `Soon` with the flight to wait for.
    Soon,
}

/// What a begin asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Keys of its full blocks.
    pub keys: &'a [Key],
    /// Its tokens.
    pub tokens: u64,
    /// Tokens of growth to promise.
    pub reserve: u64,
    /// Most blocks to load from below the device.
    pub load: u32,
    /// What to do at a block in flight.
    pub filling: Filling,
}

/// A prefix as far as a begin will use it.
#[derive(Clone, Copy)]
pub(super) struct Prefix {
    /// Blocks of the path on the device; they are shared.
    pub(super) device: usize,
    /// Blocks of the path behind them that are loaded, from the tiers of `runs`.
    pub(super) lower: usize,
    runs: Runs,
    /// Full blocks that were looked for.
    asked: usize,
    /// Why they end, whatever of them is used.
    ends: Stop,
    /// The last block of a full hit. The model needs the logits of the last token, so that it is
    /// computed again, in a private copy of the block.
    pub(super) last: Option<NodeIx>,
    pub(super) stop: Stop,
    /// Blocks that were found below and are not loaded, as that is not worth it.
    pub(super) slow: u32,
}

pub(super) fn check(request: &Request<'_>) -> Result<()> {
    if request.tokens > 0 {
        return Ok(());
    }
    let help = "must be >= 1: a sequence has a token";
    Err(Error::argument("tokens", 0, help))
}

impl State {
    /// Admits a sequence.
    ///
    /// # Errors
    /// `Argument`, `TooLarge`, or `NoRoom` with the numbers; nothing is held then.
    pub fn begin(&mut self, request: &Request<'_>) -> Result<Answer> {
        check(request)?;
        let (total, limit) = self.size(request.tokens, request.reserve)?;
        let prefix = self.prefix(request);
        if let Some(flight) = self.waits(request, prefix.stop) {
            return Ok(Answer::Soon(flight));
        }
        let path = std::mem::take(&mut self.scratch.path);
        let answer = self.admit(&path, &prefix, total, limit, request.tokens);
        if let Ok(begun) = &answer {
            self.count_begin(request, &path, &prefix, begun);
        }
        self.scratch.path = path;
        answer.map(Answer::Begun)
    }

    /// Counts what a begin has found, and the full blocks that it did not find, or found and did not use, by
    /// the reason: with its hits they are all that it looked for.
    fn count_begin(
        &mut self,
        request: &Request<'_>,
        path: &[NodeIx],
        prefix: &Prefix,
        begun: &Begun,
    ) {
        let found = path.len();
        let used: u64 = begun.hits.iter().map(|&hit| u64::from(hit)).sum();
        let counters = &mut self.counters;
        counters.begun += 1;
        counters.slow += u64::from(prefix.slow);
        counters.tokens += request.tokens;
        counters.cached += begun.cached;
        for (sum, hit) in counters.hits.iter_mut().zip(begun.hits) {
            *sum += u64::from(hit);
        }
        counters.withheld += found as u64 - used - u64::from(prefix.slow);
        self.count_unproven(&begun.plans);
        let counters = &mut self.counters;
        let count = match prefix.ends {
            Stop::Whole => return,
            Stop::Missing => {
                let known = |ghosts: &Ghosts| ghosts.knows(&request.keys[found]);
                if self.ghosts.as_ref().is_some_and(known) {
                    &mut counters.gone
                } else {
                    &mut counters.unseen
                }
            }
            Stop::Filling(_) => &mut counters.filling,
            Stop::Promised => &mut counters.withheld,
            Stop::Slow | Stop::Scattered | Stop::Contradiction => &mut counters.astray,
        };
        *count += (prefix.asked - found) as u64;
    }

    /// The flight that a begin waits for.
    pub(super) fn waits(&self, request: &Request<'_>, stop: Stop) -> Option<FlightId> {
        let waits = request.filling == Filling::Soon || !self.config.recompute;
        match stop {
            Stop::Filling(flight) if waits => Some(flight),
            _ => None,
        }
    }

    /// Walks the request's keys, leaves the path in `self.scratch.path`, and says what of it a begin would use.
    pub(super) fn prefix(&mut self, request: &Request<'_>) -> Prefix {
        let block_size = u64::from(self.config.block_size);
        let shared = ((request.tokens - 1) / block_size) as usize;
        let asked = request.keys.len().min(shared + 1);
        let probe = self.walk(&request.keys[..asked]);
        let device = (probe.hits[0] as usize).min(shared);
        let lower = self.scratch.path.len().min(shared) - device;
        let prefix = Prefix {
            device,
            lower,
            runs: self.scratch.runs,
            last: self.scratch.path.get(shared).copied(),
            asked,
            ends: probe.stop,
            stop: probe.stop,
            slow: 0,
        };
        // The last block of a full hit is loaded too, where it is below.
        let loads = self.scratch.path.len() - probe.hits[0] as usize;
        if loads == 0 {
            return prefix;
        }
        let most = self.pays(prefix.runs, request.load, device as u32) as usize;
        let (lower, mut runs) = (lower.min(most), prefix.runs);
        runs.cut(lower as u32);
        if loads <= most {
            return Prefix { runs, ..prefix };
        }
        Prefix {
            lower,
            runs,
            last: None,
            stop: Stop::Slow,
            slow: (loads - lower) as u32,
            ..prefix
        }
    }

    /// How many of these loads behind `device` blocks to take, `most` at most: all of them, but for
    /// those that an engine which can compute them does faster.
    pub(super) fn pays(&self, mut runs: Runs, most: u32, device: u32) -> u32 {
        runs.cut(most);
        match self.config.block_costs.filter(|_| self.config.recompute) {
            Some(block_costs) => block_costs.best(runs.iter(), device, self.rising()),
            None => runs.blocks(),
        }
    }

    /// Whether there is room for what a begin needs, and what of the prefix it uses then. Where there is none
    /// for the private copy of a full hit beside its source, the last block is computed again in place of
    /// one. An engine that cannot recompute waits for that room, unless the device never has both: it would
    /// wait without end (INV-25).
    pub(super) fn settle(&self, path: &[NodeIx], prefix: &Prefix, need: u64) -> (Prefix, Decision) {
        let found = path[..prefix.device].iter().copied();
        let idle_hits = self.idle_hits(found.clone().chain(prefix.last));
        let decision = self.decide(Tier::DEVICE, need, idle_hits);
        let here = |node| self.ready(node, Tier::DEVICE).is_some();
        let both = (prefix.device as u64)
            .saturating_add(need)
            .saturating_add(1);
        let yields = self.config.recompute || self.fits(Tier::DEVICE, both).is_err();
        let copies = yields && prefix.last.is_some_and(here);
        if !copies || decision.fits() {
            return (*prefix, decision);
        }
        let prefix = Prefix {
            last: None,
            stop: Stop::Promised,
            ..*prefix
        };
        let decision = self.decide(Tier::DEVICE, need, self.idle_hits(found));
        (prefix, decision)
    }

    fn admit(
        &mut self,
        path: &[NodeIx],
        found: &Prefix,
        total: u32,
        limit: u32,
        tokens: u64,
    ) -> Result<Begun> {
        let settled;
        let mut prefix = found;
        let need = u64::from(limit) - prefix.device as u64;
        let most = (prefix.device + usize::from(prefix.last.is_some())) as u64;
        if !self.tiers[Tier::DEVICE].ledger().affords(most + need) {
            let decision;
            (settled, decision) = self.settle(path, prefix, need);
            self.afford(decision)?;
            prefix = &settled;
        }
        let mut table = Vec::with_capacity(limit as usize);
        let (lower, last, stop) = self.hold_prefix(path, prefix, &mut table);
        let found = (prefix.device + lower) as u32;
        let cached = match last {
            Some(_) => tokens - 1,
            None => u64::from(found) * u64::from(self.config.block_size),
        };
        let start = Start {
            tokens,
            limit,
            sealed: found,
            cached,
            epoch: self.trie.epoch(),
        };
        let id = self.open_lease(start, total, prefix.device as u32);
        let (mut plans, mut hits) = (Vec::new(), [0; MAX_TIERS]);
        if lower > 0 {
            let mut runs = prefix.runs;
            runs.cut(lower as u32);
            plans = self.load_runs(id, path, runs.iter(), &mut table);
            hits = runs.by_tier();
        }
        hits[0] = prefix.device as u32;
        if let Some((tier, slot, node)) = last {
            plans.push(self.private_copy(id, (tier, slot, Some(node)), &mut table));
            hits[tier.at()] += 1;
        }
        self.tiers[Tier::DEVICE].claim(total, &mut table);
        self.leases[id.at()].start(table, plans.len(), None);
        self.largest = self.largest.max(total);
        Ok(Begun {
            lease: id,
            cached,
            hits,
            stop,
            plans,
        })
    }

    /// Pins what of a prefix is on the device, which the table gets, and marks what is to be loaded, as far
    /// as promises stay backed. Returns how many blocks those are, where the last block of a full hit is
    /// copied from, and why the prefix ends.
    fn hold_prefix(
        &mut self,
        path: &[NodeIx],
        prefix: &Prefix,
        table: &mut Vec<SlotIx>,
    ) -> (usize, Option<(Tier, SlotIx, NodeIx)>, Stop) {
        self.link_path(&path[..prefix.device + prefix.lower]);
        self.pin_path(&path[..prefix.device], table);
        for &node in path {
            self.note_use(node);
        }
        if self.usages.learns() {
            for &node in path {
                self.usages.find(node);
            }
        }
        if prefix.lower > 0 {
            let lower = self.mark_sources(path, prefix.device, prefix.runs);
            if lower < prefix.lower {
                return (lower, None, Stop::Promised);
            }
        }
        match prefix.last.map(|node| self.mark_last(node, path)) {
            Some(None) => (prefix.lower, None, Stop::Promised),
            last => (prefix.lower, last.flatten(), prefix.stop),
        }
    }

    /// Marks the blocks of these runs, which are behind the first `device` of a path, as far as their tiers'
    /// promises stay backed: a block that is read cannot be taken, nor can what is above it. Returns how
    /// many it has marked.
    pub(super) fn mark_sources(&mut self, path: &[NodeIx], device: usize, runs: Runs) -> usize {
        let mut at = device;
        for (tier, blocks) in runs.iter() {
            let run = &path[at..at + blocks as usize];
            let ready = |node: &NodeIx| self.ready(*node, tier).is_some();
            let backed = self.tiers[tier].ledger().affords((at + run.len()) as u64);
            if backed && run.iter().all(ready) {
                // From the deepest on, so that what is above is walked once.
                for &node in run.iter().rev() {
                    if let Some(slot) = self.trie.slot(node, tier) {
                        self.mark_block(node, tier, slot);
                    }
                }
                at += run.len();
                continue;
            }
            for &node in run {
                let slot = self.ready(node, tier);
                if !slot.is_some_and(|slot| self.mark_backed(node, tier, slot)) {
                    return at - device;
                }
                at += 1;
            }
        }
        at - device
    }

    /// Marks a block's slot as read unless a promise would lose its backing.
    #[inline]
    pub(super) fn mark_backed(&mut self, node: NodeIx, tier: Tier, slot: SlotIx) -> bool {
        self.mark_block(node, tier, slot);
        if self.tiers[tier].ledger().available() < 0 {
            self.unmark(tier, slot);
            return false;
        }
        true
    }

    /// Marks the last block of a full hit, on its highest tier.
    fn mark_last(&mut self, node: NodeIx, path: &[NodeIx]) -> Option<(Tier, SlotIx, NodeIx)> {
        let tier = match self.trie.slot(node, Tier::DEVICE) {
            Some(_) => Tier::DEVICE,
            None => self.source(node).ok()?,
        };
        let slot = self.ready(node, tier)?;
        if !self.link(node, path.len().checked_sub(2).map(|above| path[above])) {
            return None;
        }
        if tier == Tier::DEVICE {
            // The decision has counted it among the idle hits.
            self.mark(tier, slot);
        } else if !self.mark_backed(node, tier, slot) {
            return None;
        }
        Some((tier, slot, node))
    }
}
