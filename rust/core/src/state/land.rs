//! Outcomes of flights. A copy that fails shortens a prefix, never a request. A copy whose end is
//! unknown keeps its slots out of use until it is known (table 2.3).

use super::State;
use super::record::{Keep, Phase};
use crate::base::{
    Error, FlightId, FlightIx, LeaseId, NodeIx, ParkedId, ParkedIx, Result, SlotIx, Tier,
};
use crate::collections::Found;
use crate::copies::{End, Flight, Move, Outcome, Purpose};
use crate::evict::{Evictability, Hints};
use crate::tiers::Hold;
use std::borrow::Cow;

/// What became of the kept blocks of a flight down.
#[derive(Default)]
struct Kept {
    /// Some are ready below now.
    landed: bool,
    /// Some of these are kept by more than one.
    shared: bool,
    failed: Vec<NodeIx>,
}

impl State {
    /// The copies of a flight have ended. After [`Self::mark_unknown`] this is the fence, and `good`
    /// no longer matters. `false`: the outcome is late or a duplicate, and changes nothing.
    fn land(&mut self, outcome: &Outcome) -> Result<bool> {
        if !self.check_outcome(outcome)? {
            self.counters.late += 1;
            return Ok(false);
        }
        let flight = outcome.flight.at();
        let record = &self.flights[flight];
        if !record.overdue {
            self.in_flight[record.from.at()][record.to.at()] -= record.moves.len() as u32;
            if self.waits_for_earlier(flight) {
                let record = &mut self.flights[flight];
                (record.ended, record.waits) = (Some((outcome.good, outcome.end)), None);
                return Ok(true);
            }
        }
        self.end_flight(flight, outcome.good, outcome.end);
        Ok(true)
    }

    /// Ends a flight, whose slots are given back or published; then those that have waited for it.
    pub(super) fn end_flight(&mut self, flight: FlightIx, good: u32, end: End) {
        let mut next = Some((flight, good, end));
        while let Some((flight, good, end)) = next {
            next = self.end_one(flight, good, end);
        }
    }

    /// Returns the flight that waits for nothing now, and how it has ended.
    fn end_one(&mut self, flight: FlightIx, good: u32, end: End) -> Option<(FlightIx, u32, End)> {
        let flight = self.flights.remove(flight);
        // Sources before any lease: what is released later stands behind them.
        if flight.reads {
            self.unmark_all(flight.from, &flight.moves);
        }
        self.land_all(&flight, good as usize, end);
        // Not before the copies stand as shadows of their sources.
        if flight.reads {
            self.retire_all(flight.from, &flight.moves);
        }
        match flight.purpose {
            Purpose::Up { lease, .. } => self.next_ended(lease),
            _ => None,
        }
    }

    /// Commits or releases the destination slots, drops a source that failed its checksum, and wakes what was
    /// waiting for them.
    fn land_all(&mut self, flight: &Flight, good: usize, end: End) {
        let (from, to) = (flight.from, flight.to);
        if flight.purpose == Purpose::Void {
            return self.end_void(to, &flight.keys, &flight.parents, good);
        }
        if flight.overdue {
            for step in &flight.moves {
                self.give_back(to, step.to);
            }
            return;
        }
        self.counters.failed += (flight.moves.len() - good.min(flight.moves.len())) as u64;
        if from.max(to) == Tier::REMOTE {
            self.prove(flight, good);
        }
        let kept = self.land_blocks(flight, good);
        // A store may have lost it, and says so in many ways.
        let is_bad = end == End::Corrupt || from == Tier::REMOTE;
        if let Some(&bad) = flight.moves.get(good)
            && is_bad
            && from > Tier::DEVICE
            && !flight.is_given_up()
        {
            let dropped = self.drop_bad(from, bad);
            self.counters.corrupt += u64::from(dropped && end == End::Corrupt);
        }
        match flight.purpose {
            Purpose::Nothing | Purpose::Void | Purpose::Fetch => {}
            Purpose::Offload => self.break_unbacked(to),
            Purpose::Below { parked } => self.settle_keeps(to, parked, &kept),
            Purpose::Up { lease, .. } => self.landed(lease),
            Purpose::Private { lease, .. } => {
                let Some(lease) = lease else { return };
                self.landed(lease);
                if good == 0 {
                    self.undo_fork(lease, &flight.moves);
                }
            }
        }
    }

    /// The destinations hold what has come, or nothing.
    fn land_blocks(&mut self, flight: &Flight, good: usize) -> Kept {
        let (to, moves) = (flight.to, &flight.moves);
        match flight.purpose {
            Purpose::Nothing | Purpose::Void => {}
            Purpose::Below { .. } | Purpose::Offload => {
                self.cut_kept(flight.blocks_from(good), to);
                return self.land_below(flight, good);
            }
            Purpose::Fetch | Purpose::Private { lease: None, .. } => {
                for step in moves {
                    self.give_back(to, step.to);
                }
            }
            Purpose::Up { lease, base } => self.land_on_device(lease, base, moves, good),
            Purpose::Private {
                lease: Some(lease),
                block,
            } => {
                let leases = 1;
                let hold = if good > 0 {
                    Hold::Owned { leases }
                } else {
                    self.shorten(lease, block);
                    Hold::Claimed { leases }
                };
                for step in moves {
                    self.tiers[to].put(step.to, hold);
                }
            }
        }
        Kept::default()
    }

    /// Copies down have landed, of a parked sequence or of none: keeps hold no more than they must.
    fn settle_keeps(&mut self, to: Tier, parked: Option<ParkedId>, kept: &Kept) {
        // A destination that a resize left beyond the limit retires: it backs nothing.
        self.break_unbacked(to);
        let keeper = parked.filter(|id| {
            let lives = !kept.shared && self.parked.lives(id.0);
            lives && self.parked[id.at()].keep == Keep::Whole
        });
        match keeper {
            Some(id) => self.shrink_keep(id.at()),
            None if kept.landed => self.shrink_keeps(),
            None => {}
        }
    }

    /// A fork's partial block did not come, and the engine cannot recompute it: the fork ends.
    pub(super) fn undo_fork(&mut self, lease: LeaseId, moves: &[Move]) {
        let forks = moves.iter().all(|step| step.node.is_none());
        if forks && !self.config.recompute && self.lease(lease).is_ok() {
            self.end(lease.at(), Hints::default(), None);
            self.ease_headroom();
        }
    }

    /// `false`: it has ended before.
    pub(super) fn check_outcome(&self, outcome: &Outcome) -> Result<bool> {
        let Outcome { flight, good, end } = *outcome;
        match self.flights.find(flight.0) {
            Found::Never => Err(Error::UnknownFlight {
                number: flight.number(),
            }),
            Found::Ended => Ok(false),
            Found::Live if self.flights[flight.at()].ended.is_some() => Ok(false),
            Found::Live => {
                let blocks = self.flights[flight.at()].len();
                if good as usize > blocks {
                    let help = "good counts the plan's leading intact blocks: no more than it has";
                    return Err(Error::argument("good", good, help));
                }
                if end == End::Good && (good as usize) < blocks {
                    let help = "a good end has all of the plan's blocks: say how the others ended";
                    return Err(Error::argument("good", good, help));
                }
                Ok(true)
            }
        }
    }

    /// The block a destination is attached to still, if it was not abandoned.
    pub(super) fn arrival(&self, tier: Tier, step: &Move) -> Option<NodeIx> {
        let node = step.node.and_then(|id| self.trie.live(id))?;
        (self.node_in(tier, step.to) == Some(node)).then_some(node)
    }

    fn land_below(&mut self, flight: &Flight, good: usize) -> Kept {
        let (tier, moves) = (flight.to, &flight.moves);
        let mut kept = Kept::default();
        let (good, bad) = moves.split_at(good.min(moves.len()));
        // Deepest first: one that has others below it in flight waits for them, so that a path that
        // went down root first is not put in order once for each of its blocks.
        let mut waiting: Vec<Move> = Vec::new();
        let mut run = std::mem::take(&mut self.scratch.run);
        for &step in good {
            waiting.push(step);
            while let Some(&last) = waiting.last() {
                if !self.lands_with(&run, last, tier) {
                    self.land_run(flight, &mut run, &mut kept);
                    if self.has_flights_below(tier, last) {
                        break;
                    }
                }
                waiting.pop();
                run.push(last);
            }
        }
        self.land_run(flight, &mut run, &mut kept);
        self.scratch.run = run;
        for step in waiting.into_iter().rev() {
            self.land_one_below(flight, step, &mut kept);
        }
        for &step in bad {
            self.fail_one_below(flight, step, &mut kept);
        }
        self.emit_landed(tier, good);
        if let Purpose::Below { parked: Some(id) } = flight.purpose {
            self.count_failures(id, &kept.failed);
        }
        kept
    }

    /// Whether something below the block is filling or read on the tier.
    fn has_flights_below(&self, tier: Tier, step: Move) -> bool {
        let node = step.node.and_then(|id| self.trie.live(id));
        node.is_some_and(|node| self.trie.residency(node, tier).busy > 0)
    }

    /// Whether the last block of a run is published and nothing keeps it, and this one is its parent, with
    /// nothing else in flight below: then both land at once.
    fn lands_with(&self, run: &[Move], step: Move, tier: Tier) -> bool {
        let Some((below, child)) = run
            .last()
            .and_then(|last| Some((last.to, last.node?.index)))
        else {
            return false;
        };
        let block = &self.trie[child];
        block.parent == step.node
            && block.epoch == self.trie.epoch()
            && block.keeps.count() == 0
            && self.tiers[tier].pool().is_plain(below)
            && self.node_in(tier, below) == Some(child)
            && self
                .arrival(tier, &step)
                .is_some_and(|node| self.trie.residency(node, tier).busy == 1)
    }

    /// Lands a run, each block on the next: all but the last become idle together, and what is above
    /// hears of it once.
    fn land_run(&mut self, flight: &Flight, run: &mut Vec<Move>, kept: &mut Kept) {
        let Some(last) = run.pop() else {
            return;
        };
        if let Some(node) = last.node.filter(|_| !run.is_empty()) {
            self.land_idle(flight, run);
            self.trie.residency_mut(node.index, flight.to).busy = 0;
            run.clear();
        }
        self.land_one_below(flight, last, kept);
    }

    fn land_idle(&mut self, flight: &Flight, run: &[Move]) {
        let tier = flight.to;
        let mut slots = std::mem::take(&mut self.scratch.victims);
        slots.clear();
        slots.extend(run.iter().rev().map(|step| step.to));
        let (mut stand, mut end) = (None, slots.len());
        for (step, left) in run.iter().zip((0..end).rev()) {
            let Some(node) = step.node.map(|id| id.index) else {
                continue;
            };
            self.note_copied(flight.from, tier, node);
            self.note_fresh(tier, node);
            if self.orphans.known {
                self.note_orphan(node);
            }
            let residency = self.trie.residency_mut(node, tier);
            residency.busy = 0;
            let evictability = if residency.children > 0 {
                Evictability::Branch
            } else {
                Evictability::Leaf
            };
            let own = Some((self.class_on(node, tier), evictability));
            if own != stand {
                let path = &slots[left + 1..end];
                self.tiers[tier].fill_path(path, stand, &self.usages);
                (stand, end) = (own, left + 1);
            }
        }
        self.tiers[tier].fill_path(&slots[..end], stand, &self.usages);
        self.scratch.victims = slots;
    }

    fn land_one_below(&mut self, flight: &Flight, step: Move, kept: &mut Kept) {
        let tier = flight.to;
        let node = self.arrival(tier, &step);
        let alive = |&node: &NodeIx| self.trie[node].epoch == self.trie.epoch();
        let Some(node) = node.filter(alive) else {
            return self.fail_one_below(flight, step, kept);
        };
        let moves = matches!(flight.purpose, Purpose::Below { parked: Some(_) });
        let all = u32::from(self.trie[node].keeps.count());
        let keeps = if all > 0 && moves && self.trie[node].keeps.home() < tier {
            self.tiers[tier].put(step.to, Hold::Pinned { pins: all });
            self.move_home(node, tier);
            all
        } else {
            let keeps = self.keeps_at(node, tier);
            if keeps > 0 {
                self.tiers[tier].put(step.to, Hold::Pinned { pins: keeps });
            }
            keeps
        };
        self.note_copied(flight.from, tier, node);
        self.note_fresh(tier, node);
        if tier > Tier::DEVICE {
            self.note_orphan(node);
        }
        if keeps == 0 {
            self.rest(tier, step.to);
        }
        kept.landed |= keeps > 0;
        kept.shared |= keeps > 1;
    }

    fn fail_one_below(&mut self, flight: &Flight, step: Move, kept: &mut Kept) {
        if let Some(node) = self.arrival(flight.to, &step) {
            if self.keeps_at(node, flight.to) > 0 {
                kept.failed.push(node);
            }
            self.lose_arrival(flight.from, node, flight.to);
        }
        self.tiers[flight.to].free(step.to);
    }

    /// A failed copy of a kept block is tried again up to `copy_retries` times; then its keep is
    /// broken.
    fn count_failures(&mut self, id: ParkedId, failed: &[NodeIx]) {
        for &node in failed {
            if !self.parked.lives(id.0) {
                return;
            }
            let failures = &mut self.parked[id.at()].failures;
            let at = failures.iter().position(|&(failed, _)| failed == node);
            let at = at.unwrap_or_else(|| {
                failures.push((node, 0));
                failures.len() - 1
            });
            failures[at].1 += 1;
            if failures[at].1 > self.config.copy_retries {
                return self.break_keep(id.at());
            }
        }
    }

    fn land_on_device(&mut self, lease: LeaseId, base: u32, moves: &[Move], good: usize) {
        let detached = self.detached(lease.at());
        // Deepest first, so that copies below line up as shadows child before parent.
        for (at, step) in moves.iter().enumerate().rev() {
            let node = self.arrival(Tier::DEVICE, step);
            match node {
                Some(node) if at < good && !detached => {
                    self.tiers[Tier::DEVICE].put(step.to, Hold::Pinned { pins: 1 });
                    self.reclass_below(node);
                    continue;
                }
                Some(node) => {
                    self.detach(node, Tier::DEVICE);
                    self.remove_if_gone(node);
                }
                None => {}
            }
            let leases = 1;
            let content = at < good;
            let hold = if content {
                Hold::Owned { leases }
            } else {
                Hold::Claimed { leases }
            };
            self.tiers[Tier::DEVICE].put(step.to, hold);
        }
        if !detached {
            self.emit_landed(Tier::DEVICE, &moves[..good.min(moves.len())]);
        }
        if good < moves.len() {
            self.shorten(lease, base + good as u32);
        }
        if good < moves.len() || detached {
            self.cut_off(lease);
        }
        if detached {
            let record = &mut self.leases[lease.at()];
            record.sealed = record.sealed.min(base);
        }
    }

    /// Cuts what counts as cached and sealed of a lease to this block.
    pub(super) fn shorten(&mut self, lease: LeaseId, block: u32) {
        let tokens = u64::from(block) * u64::from(self.config.block_size);
        let record = &mut self.leases[lease.at()];
        record.cached = record.cached.min(tokens);
        record.sealed = record.sealed.min(block);
    }

    /// A flight has ended for a lease. After the last one the lease runs, is incomplete, or is released.
    pub(super) fn landed(&mut self, id: LeaseId) {
        let lease = id.at();
        let record = &mut self.leases[lease];
        if record.flight_ends() > 0 {
            return;
        }
        self.loaded += 1;
        let resumes = record.resumes();
        if let Phase::Ended { hints, .. } = record.phase {
            let record = self.leases.remove(lease);
            if let Some(parked) = resumes {
                self.end_keep(parked);
            }
            return self.release(&record.table, 0, record.tokens, hints);
        }
        record.phase = Phase::Running;
        if let Some(resumes) = resumes {
            if record.cached == self.parked[resumes].computed {
                self.end_keep(resumes);
            } else {
                record.phase = Phase::Short { resumes };
            }
        }
    }

    /// A copy below failed its checksum, or a store has not given it: it is dropped, and others stay. Whether
    /// it was there still.
    fn drop_bad(&mut self, tier: Tier, bad: Move) -> bool {
        let node = bad.node.and_then(|id| self.trie.live(id));
        let Some(node) = node.filter(|&node| self.ready(node, tier) == Some(bad.from)) else {
            return false;
        };
        let dropped = self.drop_copy(tier, node, bad.from);
        self.break_unbacked(tier);
        dropped
    }

    /// Drops the ready copy in this slot, which nobody can read any more. Parked sequences that kept
    /// it are computed again. `false`: it has gone with those. Promises may lack backing after it.
    pub(super) fn drop_copy(&mut self, tier: Tier, node: NodeIx, slot: SlotIx) -> bool {
        // So that it is dropped here, wherever it stands when its holds and its keeps have gone.
        self.pin(tier, slot);
        self.end_holds_of(tier, slot);
        let id = self.trie.id(node);
        // Where the device is the engine's; it leaves nothing to break then.
        self.cut_kept(std::iter::once(id), tier);
        if self.keeps_at(node, tier) > 0 {
            let keepers: Vec<ParkedIx> = self
                .parked
                .iter()
                .filter(|(_, parked)| parked.path.contains(&node))
                .map(|(index, _)| index)
                .collect();
            for parked in keepers {
                self.break_keep(parked);
            }
        }
        // An anonymous block dissolved with its keep.
        let lives = self.trie.live(id).is_some() && self.ready(node, tier) == Some(slot);
        if lives {
            self.detach(node, tier);
            self.tiers[tier].free(slot);
            self.remove_if_gone(node);
        }
        lives
    }

    /// When a flight was launched, as its number among all; the last where it has ended.
    pub fn launch_of(&self, flight: FlightId) -> u64 {
        match self.flights.find(flight.0) {
            Found::Live => self.flights[flight.at()].launched,
            Found::Never | Found::Ended => u64::MAX,
        }
    }

    /// As their flights were launched, whatever the order of the caller's ranks: it decides which
    /// slots are given next. Of two outcomes of one flight the worse comes first, and counts.
    fn as_launched<'a>(&self, outcomes: &'a [Outcome]) -> Cow<'a, [Outcome]> {
        let key = |one: &Outcome| {
            let corrupt = one.end == End::Corrupt;
            (self.launch_of(one.flight), one.good, !corrupt)
        };
        if outcomes.is_sorted_by_key(key) {
            return Cow::Borrowed(outcomes);
        }
        let mut sorted = outcomes.to_vec();
        sorted.sort_by_key(key);
        Cow::Owned(sorted)
    }

    /// Lands a batch, checked before the first is applied, then reports step `done` as done. The
    /// order of the batch decides nothing. Returns how many flights ended; the others were late and
    /// are only counted.
    pub fn commit(&mut self, outcomes: &[Outcome], done: Option<u64>) -> Result<u64> {
        for outcome in outcomes {
            self.check_outcome(outcome)?;
        }
        let mut ended = 0;
        for outcome in &*self.as_launched(outcomes) {
            ended += u64::from(self.land(outcome)?);
        }
        if let Some(step) = done {
            self.done(step);
        }
        Ok(ended)
    }
}
