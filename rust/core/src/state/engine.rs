//! Engine: a yard whose device belongs to an engine that gives out its blocks itself. They are numbers
//! in plans, and null slots here: none is given out, resident or evicted. This file finds what lies
//! below and brings it up; `offload.rs` copies down; `save.rs` keeps.

use super::probe::AHEAD;
use super::{Probe, State, Stop};
use crate::base::{
    Error, FlightId, Ix, Key, NodeIx, ParkedId, ParkedIx, Result, SlotIx, Tier, memory,
};
use crate::collections::{Tag, mix};
use crate::copies::{Move, Plan, Purpose};
use crate::evict::{Ending, Hints};
use crate::tiers::Hold;
use std::ops::Range;

/// What a fetch brings up.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// The blocks of these keys.
    Keys(&'a [Key]),
    /// The blocks of a kept request, with its partial one.
    Kept(ParkedId),
}

/// A fetch's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fetch {
    /// Copies to make, of as many blocks as are there, in their order.
    Plans(Vec<Plan>),
    /// Its first block, or one of its ids, is in the air: ask again when this flight has ended.
    Soon(FlightId),
}

/// Where the block of a key is below an engine's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Presence {
    /// On no tier.
    Missing,
    /// A fetch brings it up, unless a promise would lose its backing.
    Ready,
    /// In flight: on its way down, or up for another request.
    Filling,
}

impl State {
    /// How much of a prefix, from block `after` on, lies below the engine's device and pays to load.
    /// The blocks before it are the engine's; nothing is asked of them. A block that a fetch reads is
    /// in the air, too: the engine will have it when that has landed. Of a set all that lies below pays:
    /// what it saves is known of the linked group alone.
    ///
    /// # Errors
    /// `State` where the device is the yard's own; `Argument` for an `after` beyond the keys.
    pub fn find(&mut self, keys: &[Key], after: u32) -> Result<Probe> {
        self.of_an_engine("find")?;
        let Some(keys) = keys.get(after as usize..) else {
            let help = "blocks that the engine has are no more than the keys";
            return Err(Error::argument("after", after, help));
        };
        let mut stop = self.look_below(keys);
        let found = self.scratch.runs.blocks();
        if found > 0 && self.config.linked {
            let pays = self.pays(self.scratch.runs, u32::MAX, after);
            if pays < found {
                self.scratch.runs.cut(pays);
                stop = Stop::Slow;
            }
        }
        Ok(Probe {
            hits: self.scratch.runs.by_tier(),
            stop,
            evicted: None,
        })
    }

    /// Looks blocks up, each by its own key, as far as they are ready below and not in the air. Leaves
    /// them in `self.scratch.path`, and the runs of their highest tiers in `self.scratch.runs`.
    pub(super) fn look_below(&mut self, keys: &[Key]) -> Stop {
        let mut path = std::mem::take(&mut self.scratch.path);
        let mut tags = std::mem::take(&mut self.scratch.tags);
        path.clear();
        self.scratch.runs.clear();
        let mut stop = Stop::Whole;
        'walk: for keys in keys.chunks(AHEAD) {
            self.trie.warm(keys.iter(), &mut tags);
            for (key, &tag) in keys.iter().zip(&tags) {
                let found = self.trie.seek(key, tag).map_err(|_| Stop::Missing);
                match found.and_then(|node| Ok((node, self.loadable(node)?))) {
                    Ok((_, tier)) if !self.scratch.runs.push(tier) => {
                        stop = Stop::Scattered;
                        break 'walk;
                    }
                    Ok((node, _)) => path.push(node),
                    Err(none) => {
                        stop = none;
                        break 'walk;
                    }
                }
            }
        }
        (self.scratch.path, self.scratch.tags) = (path, tags);
        stop
    }

    /// Where each of these blocks is below the engine's device, by its own key: none ends the others'
    /// answers, as it does in [`Self::find`]. It changes nothing.
    ///
    /// # Errors
    /// `State` where the device is the yard's own.
    pub fn which(&mut self, keys: &[Key]) -> Result<Vec<Presence>> {
        self.of_an_engine("which")?;
        let mut found = Vec::new();
        memory::reserve(&mut found, keys.len(), "the answers")?;
        self.each_presence(keys, |one| {
            found.push(one);
            true
        });
        Ok(found)
    }

    /// Looks these blocks up, each by its own key, for as long as `go_on` says so.
    #[inline]
    fn each_presence(&mut self, keys: &[Key], mut go_on: impl FnMut(Presence) -> bool) {
        let mut tags = std::mem::take(&mut self.scratch.tags);
        'walk: for keys in keys.chunks(AHEAD) {
            self.trie.warm(keys.iter(), &mut tags);
            for (key, &tag) in keys.iter().zip(&tags) {
                if !go_on(self.presence(key, tag)) {
                    break 'walk;
                }
            }
        }
        self.scratch.tags = tags;
    }

    fn presence(&self, key: &Key, tag: Tag) -> Presence {
        let node = self.trie.seek(key, tag).map_err(|_| Stop::Missing);
        match node.and_then(|node| self.loadable(node)) {
            Ok(_) => Presence::Ready,
            Err(Stop::Filling(_)) => Presence::Filling,
            Err(_) => Presence::Missing,
        }
    }

    /// The first of these blocks that is missing below the engine's device, and whether one before it is
    /// in flight. It changes nothing.
    ///
    /// # Errors
    /// `State` where the device is the yard's own.
    pub fn lacking(&mut self, keys: &[Key]) -> Result<(Option<usize>, bool)> {
        self.of_an_engine("lacking")?;
        let (mut there, mut fills) = (0, false);
        self.each_presence(keys, |one| {
            fills |= one == Presence::Filling;
            there += usize::from(one != Presence::Missing);
            one != Presence::Missing
        });
        Ok(((there < keys.len()).then_some(there), fills))
    }

    /// How many of these blocks there are up to the last one that is not missing. It changes nothing.
    ///
    /// # Errors
    /// `State` where the device is the yard's own.
    pub fn last_known(&self, keys: &[Key]) -> Result<usize> {
        self.of_an_engine("last_known")?;
        let is_there = |key: &Key| self.presence(key, Tag::of(key)) != Presence::Missing;
        Ok(keys.iter().rposition(is_there).map_or(0, |at| at + 1))
    }

    /// The keys of all blocks below the engine's device that may be found, in no particular order. It takes
    /// time in proportion to the blocks.
    ///
    /// # Errors
    /// `State` where the device is the yard's own; `Memory`.
    pub fn known_keys(&self) -> Result<Vec<Key>> {
        self.of_an_engine("known_keys")?;
        let places = || (0..self.trie.places() as u32).map(NodeIx::new);
        let is_found = |&node: &NodeIx| {
            self.trie.alive(node) && self.trie.find(&self.trie[node].key) == Some(node)
        };
        let mut keys = Vec::new();
        memory::reserve(&mut keys, places().filter(is_found).count(), "the keys")?;
        keys.extend(places().filter(is_found).map(|node| self.trie[node].key));
        Ok(keys)
    }

    /// The highest tier that has a block ready which is not on its way up already.
    fn loadable(&self, node: NodeIx) -> Result<Tier, Stop> {
        let tier = self.source(node)?;
        match self.fetched_by(node) {
            Some(flight) => Err(Stop::Filling(flight)),
            None => Ok(tier),
        }
    }

    /// The fetch that brings a block up, unless its end is unknown.
    fn fetched_by(&self, node: NodeIx) -> Option<FlightId> {
        let read = |tier| {
            let slot = self.trie.slot(node, tier);
            slot.is_some_and(|slot| self.tiers[tier].pool().cell(slot).readers > 0)
        };
        if !self.tiers.below(Tier::DEVICE).any(read) {
            return None;
        }
        let own = Some(self.trie.id(node));
        let mut fetches = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.purpose == Purpose::Fetch && !flight.overdue);
        let (flight, _) =
            fetches.find(|(_, flight)| flight.moves.iter().any(|step| step.node == own))?;
        Some(FlightId(self.flights.id(flight)))
    }

    /// Brings blocks `first..first + ids.len()` up to the engine's `ids`, as many of the leading ones
    /// as are ready below, by a flight for each run of one tier. Its sources stay until it has landed.
    /// No plans: the first block is not there, or a promise would lose its backing.
    ///
    /// # Errors
    /// `State` where the device is the yard's own; `Argument` for ids that the engine does not have, that
    /// come twice, or are more than the blocks; `Spent` or `Foreign` for a kept request.
    pub fn fetch(&mut self, what: Wanted<'_>, ids: &[u32], first: u32) -> Result<Fetch> {
        self.of_an_engine("fetch")?;
        self.check_ids(ids)?;
        let kept = match what {
            Wanted::Keys(_) => None,
            Wanted::Kept(id) => Some(self.parked(id)?),
        };
        let range = first as usize..first as usize + ids.len();
        let blocks = match (what, kept) {
            (Wanted::Keys(keys), _) => keys.len(),
            (_, kept) => kept.map_or(0, |kept| self.parked[kept].path.len()),
        };
        check_range(ids, &range, blocks)?;
        if let Some(flight) = self.touching(ids) {
            return Ok(Fetch::Soon(flight));
        }
        let stop = match (what, kept) {
            (Wanted::Keys(keys), _) => self.look_below(&keys[range]),
            (_, kept) => self.look_kept(kept, range),
        };
        let path = std::mem::take(&mut self.scratch.path);
        let answer = match stop {
            Stop::Filling(flight) if path.is_empty() => Fetch::Soon(flight),
            _ => Fetch::Plans(self.bring_up(&path, ids)),
        };
        self.scratch.path = path;
        Ok(answer)
    }

    /// As [`Self::look_below`], of blocks that are known; the tier of each is chosen when it is read.
    fn look_kept(&mut self, kept: Option<ParkedIx>, range: Range<usize>) -> Stop {
        let mut path = std::mem::take(&mut self.scratch.path);
        path.clear();
        let mut stop = Stop::Whole;
        let nodes = kept.map_or(&[][..], |kept| &self.parked[kept].path[range]);
        for &node in nodes {
            if let Err(none) = self.loadable(node) {
                stop = none;
                break;
            }
            path.push(node);
        }
        self.scratch.path = path;
        stop
    }

    /// Puts the loads of these blocks in flight, on the highest tier of each where that takes no
    /// backing from a promise, as far as there is one and by as many flights as a load may have.
    fn bring_up(&mut self, path: &[NodeIx], ids: &[u32]) -> Vec<Plan> {
        let mut plans: Vec<Plan> = Vec::new();
        let mut moves: Vec<Move> = Vec::new();
        let mut from = None;
        for (&node, &id) in path.iter().zip(ids) {
            let Some((tier, slot)) = self.mark_below(node) else {
                break;
            };
            if from != Some(tier) {
                if plans.len() + 2 > super::MAX_RUNS && from.is_some() {
                    self.unmark(tier, slot);
                    break;
                }
                plans.extend(from.map(|from| self.fetch_from(from, std::mem::take(&mut moves))));
                from = Some(tier);
            }
            if !self.trie[node].is_anonymous() {
                self.note_use(node);
            }
            moves.push(Move {
                node: Some(self.trie.id(node)),
                from: slot,
                to: SlotIx::new(id),
            });
        }
        plans.extend(from.map(|from| self.fetch_from(from, moves)));
        plans
    }

    /// Marks a block as read on the highest tier where that takes no backing from a promise.
    fn mark_below(&mut self, node: NodeIx) -> Option<(Tier, SlotIx)> {
        self.tiers.below(Tier::DEVICE).find_map(|tier| {
            let slot = self.ready(node, tier)?;
            self.mark_backed(node, tier, slot).then_some((tier, slot))
        })
    }

    fn fetch_from(&mut self, from: Tier, moves: Vec<Move>) -> Plan {
        let flight = self.open_flight(from, Tier::DEVICE, Purpose::Fetch);
        for step in &moves {
            self.tiers[Tier::DEVICE].put(step.to, Hold::Filling { flight });
        }
        self.counters.hits[from.at()] += moves.len() as u64;
        let plan = self.launch(flight, moves);
        self.count_unproven(std::slice::from_ref(&plan));
        plan
    }

    /// The newest flight that reads or writes one of the engine's `ids`, if any does still: they may be
    /// written when it has ended, and all that were launched before it. A flight whose end is unknown
    /// has not ended.
    ///
    /// # Errors
    /// `State` where the device is the yard's own; `Argument` for an id that the engine does not have.
    pub fn must_finish(&self, ids: &[u32]) -> Result<Option<FlightId>> {
        self.of_an_engine("must_finish")?;
        self.check_range_of_ids(ids)?;
        Ok(self.touching(ids))
    }

    fn touching(&self, ids: &[u32]) -> Option<FlightId> {
        let pool = self.tiers[Tier::DEVICE].pool();
        let busy = |&id: &SlotIx| {
            let cell = pool.cell(id);
            cell.readers > 0 || cell.hold != Hold::Null
        };
        let mut busy: Vec<SlotIx> = ids.iter().copied().map(SlotIx::new).filter(busy).collect();
        if busy.is_empty() {
            return None;
        }
        busy.sort_unstable();
        let is_busy = |id: &SlotIx| busy.binary_search(id).is_ok();
        let flights = self.flights.iter().filter(|(_, flight)| {
            let mut moves = flight.moves.iter();
            match flight.purpose {
                Purpose::Offload => flight.reads && moves.any(|step| is_busy(&step.from)),
                Purpose::Fetch => moves.any(|step| is_busy(&step.to)),
                _ => false,
            }
        });
        let (newest, _) = flights.max_by_key(|(_, flight)| flight.launched)?;
        Some(FlightId(self.flights.id(newest)))
    }

    /// The engine uses these paths, whatever lies below of them: each block goes to the back of its
    /// class on every tier where it rests, the deepest first. `ended`: their requests have ended, and
    /// said this of their future; that counts as a use.
    ///
    /// # Errors
    /// `State` where the device is the yard's own.
    pub fn used(&mut self, rows: &[&[Key]], ended: Option<Hints>) -> Result<()> {
        self.of_an_engine("used")?;
        let learns = self.usages.learns();
        let mut path = std::mem::take(&mut self.scratch.path);
        let mut tags = std::mem::take(&mut self.scratch.tags);
        for row in rows {
            if let Some(hints) = ended.filter(|_| self.usages.asked()) {
                self.end_row(row, hints);
            }
            path.clear();
            for keys in row.chunks(AHEAD) {
                self.trie.warm(keys.iter(), &mut tags);
                let found = keys.iter().zip(&tags);
                path.extend(found.filter_map(|(key, &tag)| self.trie.seek(key, tag).ok()));
            }
            for &node in path.iter().rev() {
                if learns {
                    self.usages.touch(node);
                }
                for tier in self.tiers.below(Tier::DEVICE) {
                    if let Some(slot) = self.trie.slot(node, tier)
                        && matches!(self.hold(tier, slot), Hold::Idle { .. })
                    {
                        if self.copies_first {
                            let class = self.used_class(node, tier);
                            self.enter(node, tier, slot, class);
                        } else {
                            self.reorder(node, tier, slot);
                        }
                    }
                }
            }
        }
        (self.scratch.path, self.scratch.tags) = (path, tags);
        Ok(())
    }

    /// A request of an engine has ended that used these blocks, whether they lie below or not.
    fn end_row(&mut self, row: &[Key], hints: Hints) {
        let tokens = row.len() as u64 * u64::from(self.config.block_size);
        let (mut alone, mut child) = (true, None);
        let endings = Ending::own_and_shared(tokens, hints);
        let mut uses = std::mem::take(&mut self.scratch.uses);
        for key in row.iter().rev() {
            let usage = if let Some(node) = self.trie.find(key) {
                alone = alone && self.has_no_other(node, child);
                child = Some(node);
                self.usages.find_again(node);
                self.usages.end(node, endings[usize::from(!alone)], hints)
            } else {
                let known = self.ghosts.as_ref().and_then(|ghosts| ghosts.uses(key));
                self.usages.end_of_none(known.unwrap_or(0), endings[0])
            };
            uses.push((mix(key), usage));
        }
        self.tell_orders(uses);
    }

    /// Gives a destination back whose copy did not come: to the engine, where it is its own.
    pub(super) fn give_back(&mut self, tier: Tier, slot: SlotIx) {
        if tier == Tier::DEVICE && self.config.engine {
            self.tiers[tier].put(slot, Hold::Null);
        } else {
            self.tiers[tier].free(slot);
        }
    }

    pub(super) fn of_an_engine(&self, verb: &str) -> Result<()> {
        if self.config.engine {
            return Ok(());
        }
        let what = format!("{verb} on a cache that owns its device");
        Err(Error::state(
            what,
            "make the cache with engine=, the blocks of an engine that gives them out itself",
        ))
    }

    pub(super) fn of_its_own(&self, verb: &str) -> Result<()> {
        if !self.config.engine {
            return Ok(());
        }
        let what = format!("{verb} on a cache whose device is the engine's");
        Err(Error::state(
            what,
            "use find, fetch, offload and save_request; or make the cache with device=",
        ))
    }

    fn check_range_of_ids(&self, ids: &[u32]) -> Result<()> {
        let blocks = self.tiers[Tier::DEVICE].pool().len();
        match ids.iter().find(|&&id| id >= blocks) {
            Some(&id) => Err(Error::argument("ids", id, "the engine has no such block")),
            None => Ok(()),
        }
    }

    pub(super) fn check_ids(&self, ids: &[u32]) -> Result<()> {
        self.check_range_of_ids(ids)?;
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                let help = "it comes twice: an id has one block";
                Err(Error::argument("ids", pair[0], help))
            }
            None => Ok(()),
        }
    }
}

pub(super) fn check_range(ids: &[u32], range: &Range<usize>, blocks: usize) -> Result<()> {
    if range.end <= blocks {
        return Ok(());
    }
    let help = "give no more ids than there are blocks from first on";
    Err(Error::argument("ids", ids.len(), help))
}
