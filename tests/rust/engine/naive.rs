//! What lies below an engine, as plain lists: nothing is counted, all is looked up. Which slot a copy
//! fills is the core's business; the model checks that what was there might go.

use blockyard_core::{FlightId, Key, MAX_RUNS, ParkedId, Plan, Tier};
use std::collections::BTreeMap;

type Block = usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copied {
    Ready,
    Filling(FlightId),
}

#[derive(Clone, Debug, Default)]
struct Node {
    key: Option<Key>,
    parent: Option<Block>,
    at: [Option<(u32, Copied)>; 2],
    keeps: u32,
    home: usize,
    gone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    Offload,
    Fetch,
    /// Between the tiers below; for a kept request whose blocks move, if one.
    Below(Option<ParkedId>),
}

#[derive(Clone, Debug)]
struct Flight {
    from: usize,
    to: usize,
    why: Why,
    blocks: Vec<Block>,
    slots: Vec<u32>,
    overdue: bool,
}

#[derive(Clone, Debug)]
struct Stay {
    path: Vec<Block>,
    computed: usize,
}

/// What a block stands behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Above {
    Root,
    /// A block that has no copy.
    Unknown,
    Known(Block),
}

impl Above {
    fn of(block: Option<Block>) -> Self {
        block.map_or(Self::Unknown, Self::Known)
    }

    fn block(self) -> Option<Block> {
        match self {
            Self::Known(block) => Some(block),
            Self::Root | Self::Unknown => None,
        }
    }
}

/// Where a lookup ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Whole,
    Missing,
    Filling(FlightId),
    Scattered,
}

#[derive(Clone, Debug)]
pub(crate) struct Naive {
    size: usize,
    /// Whether a block stands on the one before it.
    linked: bool,
    limits: [usize; 2],
    nodes: Vec<Node>,
    flights: BTreeMap<FlightId, Flight>,
    kept: BTreeMap<ParkedId, Stay>,
    quarantined: [Vec<u32>; 2],
}

impl Naive {
    pub(crate) fn new(size: usize, limits: [usize; 2], linked: bool) -> Self {
        Self {
            size,
            linked,
            limits,
            nodes: Vec::new(),
            flights: BTreeMap::new(),
            kept: BTreeMap::new(),
            quarantined: Default::default(),
        }
    }

    fn find(&self, key: &Key) -> Option<Block> {
        let own = |node: &Node| !node.gone && node.key == Some(*key);
        self.nodes.iter().position(own)
    }

    fn ready(&self, block: Block, tier: usize) -> bool {
        matches!(self.nodes[block].at[tier], Some((_, Copied::Ready)))
    }

    fn alive(&self, block: Option<Block>) -> Option<Block> {
        block.filter(|&block| !self.nodes[block].gone)
    }

    fn readers(&self, block: Block, tier: usize) -> usize {
        let Some((slot, _)) = self.nodes[block].at[tier] else {
            return 0;
        };
        let reads = |flight: &&Flight| {
            flight.why != Why::Offload && flight.from == tier + 1 && !flight.overdue
        };
        let flights = self.flights.values().filter(reads);
        let own = |flight: &Flight| {
            let steps = flight.blocks.iter().zip(&flight.slots);
            steps
                .filter(|&(&own, &from)| own == block && from == slot)
                .count()
        };
        flights.map(own).sum()
    }

    fn children(&self, block: Block, tier: usize) -> impl Iterator<Item = Block> + '_ {
        let child = move |&other: &Block| {
            let node = &self.nodes[other];
            !node.gone && node.parent == Some(block) && node.at[tier].is_some()
        };
        (0..self.nodes.len()).filter(child)
    }

    fn busy(&self, block: Block, tier: usize) -> bool {
        let node = &self.nodes[block];
        match node.at[tier] {
            None => false,
            Some((_, Copied::Filling(_))) => true,
            Some(_) => {
                (node.keeps > 0 && node.home == tier)
                    || self.readers(block, tier) > 0
                    || self
                        .children(block, tier)
                        .any(|child| self.busy(child, tier))
            }
        }
    }

    /// Slots that can be had: free ones, and those of blocks that may go; below 0 where none are left
    /// for what was put there.
    fn room(&self, tier: usize, held: &[Block]) -> isize {
        let there =
            |&block: &Block| !self.nodes[block].gone && self.nodes[block].at[tier].is_some();
        let all: Vec<Block> = (0..self.nodes.len()).filter(there).collect();
        let mut stays: Vec<Block> = Vec::new();
        for &block in held {
            let mut next = Some(block).filter(there);
            while let Some(block) = next {
                stays.push(block);
                next = self.alive(self.nodes[block].parent).filter(there);
            }
        }
        let idle = |block: &&Block| !self.busy(**block, tier) && !stays.contains(block);
        let takeable = all.iter().filter(idle).count().cast_signed();
        self.limits[tier].cast_signed() - self.used(tier).cast_signed() + takeable
    }

    fn used(&self, tier: usize) -> usize {
        let there = |node: &&Node| !node.gone && node.at[tier].is_some();
        let blocks = self.nodes.iter().filter(there).count();
        blocks + self.quarantined[tier].len() + self.read_still(tier)
    }

    /// Slots without a block that some copy reads still.
    fn read_still(&self, tier: usize) -> usize {
        let reads = |flight: &&Flight| {
            flight.why != Why::Offload && flight.from == tier + 1 && !flight.overdue
        };
        let slots = self
            .flights
            .values()
            .filter(reads)
            .flat_map(|flight| &flight.slots);
        let mut slots: Vec<u32> = slots
            .copied()
            .filter(|&slot| self.vacant(tier, slot))
            .collect();
        slots.sort_unstable();
        slots.dedup();
        slots.len()
    }

    fn vacant(&self, tier: usize, slot: u32) -> bool {
        let there = |node: &Node| !node.gone && node.at[tier].is_some_and(|(own, _)| own == slot);
        !self.nodes.iter().any(there) && !self.quarantined[tier].contains(&slot)
    }

    fn fetching(&self, block: Block) -> Option<FlightId> {
        let up = |flight: &Flight| {
            flight.why == Why::Fetch && !flight.overdue && flight.blocks.contains(&block)
        };
        let found = self.flights.iter().find(|(_, flight)| up(flight));
        found.map(|(&id, _)| id)
    }

    fn source(&self, block: Block) -> Result<usize, End> {
        let tiers = 0..2;
        if let Some(tier) = tiers.clone().find(|&tier| self.ready(block, tier)) {
            return self
                .fetching(block)
                .map_or(Ok(tier), |flight| Err(End::Filling(flight)));
        }
        let filling = tiers.filter_map(|tier| match self.nodes[block].at[tier] {
            Some((_, Copied::Filling(flight))) => Some(flight),
            _ => None,
        });
        Err(filling.min_by_key(|_| 0).map_or(End::Missing, End::Filling))
    }

    fn look(&self, blocks: impl Iterator<Item = Option<Block>>) -> (Vec<(Block, usize)>, End) {
        let mut found: Vec<(Block, usize)> = Vec::new();
        let mut runs = 0;
        for block in blocks {
            match block
                .ok_or(End::Missing)
                .and_then(|block| self.source(block))
            {
                Err(end) => return (found, end),
                Ok(tier) => {
                    runs += usize::from(found.last().is_none_or(|&(_, last)| last != tier));
                    if runs > MAX_RUNS {
                        return (found, End::Scattered);
                    }
                    found.push((block.expect("it has a source"), tier));
                }
            }
        }
        (found, End::Whole)
    }

    /// Tiers of the blocks that a find counts, in order, and why it ends.
    pub(crate) fn found(&self, keys: &[Key]) -> (Vec<usize>, End) {
        let (found, end) = self.look(keys.iter().map(|key| self.find(key)));
        (found.into_iter().map(|(_, tier)| tier).collect(), end)
    }

    /// Where the block of a key is, by itself: `Whole` where it may be brought up.
    pub(crate) fn which(&self, key: &Key) -> End {
        let block = self.find(key).ok_or(End::Missing);
        block
            .and_then(|block| self.source(block))
            .map_or_else(|end| end, |_| End::Whole)
    }

    /// The same of a kept request.
    pub(crate) fn found_kept(&self, id: ParkedId, blocks: usize) -> (Vec<usize>, End) {
        let path = &self.kept[&id].path[..blocks];
        let (found, end) = self.look(path.iter().map(|&block| Some(block)));
        (found.into_iter().map(|(_, tier)| tier).collect(), end)
    }

    /// Tokens and blocks of a kept request; none where it is broken.
    pub(crate) fn view(&self, id: ParkedId) -> (usize, usize) {
        let stay = &self.kept[&id];
        (
            if stay.path.is_empty() {
                0
            } else {
                stay.computed
            },
            stay.path.len(),
        )
    }

    fn stands_on(&self, block: Block, above: Above) -> bool {
        match (self.nodes[block].parent, above) {
            (None, above) => above == Above::Root,
            (Some(_), Above::Root) => false,
            (Some(parent), above) => self.nodes[parent].gone || above == Above::Known(parent),
        }
    }

    fn join(&mut self, block: Block, above: Above) {
        let orphan = self.nodes[block]
            .parent
            .is_some_and(|parent| self.nodes[parent].gone);
        if let Some(above) = above.block().filter(|_| orphan)
            && !(0..2).any(|tier| self.busy(block, tier))
        {
            self.nodes[block].parent = Some(above);
        }
    }

    /// The nearest lower tier that has slots.
    fn next(&self) -> Option<usize> {
        (0..2).find(|&tier| self.limits[tier] > 0)
    }

    /// Which of these blocks an offload copies: their places among `ids`.
    pub(crate) fn offload(&mut self, keys: &[Key], first: usize, count: usize) -> Vec<usize> {
        let Some(to) = self.next() else {
            return Vec::new();
        };
        let mut above = self.above(keys, first);
        let mut held: Vec<Block> = above.block().into_iter().collect();
        let mut new = Vec::new();
        for (at, key) in keys[first..first + count].iter().enumerate() {
            let block = self.find(key);
            match block {
                Some(block) if !self.stands_on(block, above) => break,
                Some(block) => {
                    self.join(block, above);
                    held.push(block);
                }
                None => new.push(at),
            }
            above = self.behind(block);
        }
        held.retain(|&block| self.ready(block, to));
        new.truncate(self.room(to, &held).max(0).cast_unsigned());
        new
    }

    /// Makes the blocks of an offload: those at these places are on their way, the others are there.
    pub(crate) fn offloaded(
        &mut self,
        keys: &[Key],
        (first, count): (usize, usize),
        new: &[usize],
        plan: &Plan,
    ) {
        let mut above = self.above(keys, first);
        let mut blocks = Vec::new();
        let Some(&last) = new.last() else { return };
        for (at, key) in keys[first..=first + last].iter().enumerate() {
            let block = if new.contains(&at) {
                let block = self.add(Some(*key), above);
                blocks.push(block);
                block
            } else {
                self.find(key).expect("known")
            };
            above = self.behind(Some(block));
        }
        self.launch(plan, Why::Offload, blocks);
        let walked = &keys[..first + count];
        self.relink(walked, new.iter().map(|at| first + at));
    }

    /// What stands behind a new block is linked to it.
    fn relink(&mut self, keys: &[Key], new: impl Iterator<Item = usize>) {
        for at in new {
            let next = keys.get(at + 1).and_then(|key| self.find(key));
            if let (Some(above), Some(block)) = (self.find(&keys[at]), next) {
                let orphan = self.nodes[block]
                    .parent
                    .is_some_and(|own| self.nodes[own].gone);
                if orphan {
                    self.nodes[block].parent = Some(above);
                }
            }
        }
    }

    /// What the block at this place of a path stands behind.
    fn above(&self, keys: &[Key], at: usize) -> Above {
        let last = at.checked_sub(1);
        last.map_or(Above::Root, |last| self.behind(self.find(&keys[last])))
    }

    /// What stands behind this block: in a set, nothing.
    fn behind(&self, block: Option<Block>) -> Above {
        if self.linked {
            Above::of(block)
        } else {
            Above::Root
        }
    }

    fn add(&mut self, key: Option<Key>, above: Above) -> Block {
        let parent = match above {
            Above::Root => None,
            Above::Known(block) => Some(block),
            Above::Unknown => {
                self.nodes.push(Node {
                    gone: true,
                    ..Node::default()
                });
                Some(self.nodes.len() - 1)
            }
        };
        self.nodes.push(Node {
            key,
            parent,
            ..Node::default()
        });
        self.nodes.len() - 1
    }

    /// Where a request is kept: the nearest tier where all that is new fits; `None` where none is.
    pub(crate) fn home(&self, keys: &[Key], blocks: usize) -> Option<usize> {
        let known: Vec<Option<Block>> = keys.iter().map(|key| self.find(key)).collect();
        (0..2).filter(|&to| self.limits[to] > 0).find(|&to| {
            let mut then = self.clone();
            let mut above = Above::Root;
            for at in 0..blocks {
                let block = known.get(at).copied().flatten().unwrap_or_else(|| {
                    let block = then.add(keys.get(at).copied(), above);
                    let filling =
                        Copied::Filling(FlightId::from_number(1 << 32).expect("a number"));
                    then.nodes[block].at[to] = Some((u32::MAX - at as u32, filling));
                    block
                });
                if at > 0 {
                    // As it will be linked.
                    let orphan = then.nodes[block].parent;
                    if orphan.is_some_and(|parent| then.nodes[parent].gone) {
                        then.nodes[block].parent = above.block();
                    }
                }
                then.keep(block, to);
                above = self.behind(Some(block));
            }
            (0..2).all(|tier| then.room(tier, &[]) >= 0)
        })
    }

    fn keep(&mut self, block: Block, to: usize) {
        if self.nodes[block].keeps == 0 {
            let lowest = (0..2).rev().find(|&tier| self.ready(block, tier));
            let coming = (0..2).find(|&tier| self.nodes[block].at[tier].is_some());
            self.nodes[block].home = lowest.or(coming).unwrap_or(to);
        }
        self.nodes[block].keeps += 1;
    }

    /// A request is kept, with this plan for what was new of it, at these places.
    pub(crate) fn kept(
        &mut self,
        id: ParkedId,
        keys: &[Key],
        tokens: usize,
        plan: Option<&Plan>,
    ) -> Vec<usize> {
        let blocks = tokens.div_ceil(self.size);
        let known: Vec<Option<Block>> = keys.iter().map(|key| self.find(key)).collect();
        for at in 1..known.len() {
            if let (Some(above), Some(block)) = (known[at - 1], known[at]) {
                self.join(block, Above::Known(above));
            }
        }
        let (mut above, mut path, mut new, mut places) =
            (Above::Root, Vec::new(), Vec::new(), Vec::new());
        for at in 0..blocks {
            let block = known.get(at).copied().flatten().unwrap_or_else(|| {
                let block = self.add(keys.get(at).copied(), above);
                new.push(block);
                places.push(at);
                block
            });
            let behind_new = at > 0 && known.get(at - 1).copied().flatten().is_none();
            let orphan = self.nodes[block]
                .parent
                .is_some_and(|parent| self.nodes[parent].gone);
            if behind_new && orphan {
                self.nodes[block].parent = above.block();
            }
            path.push(block);
            above = self.behind(Some(block));
        }
        let to = plan.map_or(0, |plan| plan.to.0 - 1);
        for &block in &path {
            self.keep(block, to);
        }
        if let Some(plan) = plan {
            self.launch(plan, Why::Offload, new);
        }
        self.kept.insert(
            id,
            Stay {
                path,
                computed: tokens,
            },
        );
        places
    }

    /// A plan is in flight. What was in the slots that it fills has gone.
    fn launch(&mut self, plan: &Plan, why: Why, blocks: Vec<Block>) {
        let (from, to) = (plan.from.0, plan.to.0);
        assert_eq!(blocks.len(), plan.len());
        if to > 0 {
            self.vacate(to - 1, &plan.destinations);
            for (&block, &slot) in blocks.iter().zip(&plan.destinations) {
                let filling = Copied::Filling(plan.flight);
                assert_eq!(self.nodes[block].at[to - 1], None, "it has a copy there");
                self.nodes[block].at[to - 1] = Some((slot, filling));
            }
        }
        let slots = plan.sources.clone();
        let overdue = false;
        let flight = Flight {
            from,
            to,
            why,
            blocks,
            slots,
            overdue,
        };
        self.flights.insert(plan.flight, flight);
    }

    /// What was in these slots has gone, and might: all of it before any of them was filled.
    fn vacate(&mut self, tier: usize, slots: &[u32]) {
        let all = || slots.iter();
        assert!(!all().any(|slot| self.quarantined[tier].contains(slot)));
        let there = |node: &Node| {
            let own = node.at[tier].filter(|_| !node.gone);
            own.is_some_and(|(own, _)| slots.contains(&own))
        };
        let gone: Vec<Block> = (0..self.nodes.len())
            .filter(|&block| there(&self.nodes[block]))
            .collect();
        for &block in &gone {
            assert!(
                !self.busy(block, tier),
                "it is kept, read or filling, and was evicted"
            );
            let stays = self
                .children(block, tier)
                .find(|child| !gone.contains(child));
            assert_eq!(stays, None, "it was evicted before its child");
        }
        for block in gone {
            self.drop(block, tier);
        }
    }

    fn drop(&mut self, block: Block, tier: usize) {
        self.nodes[block].at[tier] = None;
        self.nodes[block].gone = self.nodes[block].at == [None; 2];
    }

    /// A plan between the tiers below, or up: its blocks are those in its source slots.
    pub(crate) fn launched(&mut self, plan: &Plan, why: Why) {
        let tier = plan.from.0 - 1;
        let block = |slot: &u32| {
            let own = |node: &Node| !node.gone && node.at[tier] == Some((*slot, Copied::Ready));
            self.nodes
                .iter()
                .position(own)
                .expect("its source is ready")
        };
        let blocks = plan.sources.iter().map(block).collect();
        self.launch(plan, why, blocks);
    }

    pub(crate) fn unknown(&mut self, id: FlightId) {
        let flight = self.flights[&id].clone();
        self.flights.get_mut(&id).expect("in flight").overdue = true;
        if flight.to > 0 {
            self.cut(&flight.blocks, flight.to - 1);
            for &block in &flight.blocks {
                if let Some((slot, Copied::Filling(own))) = self.nodes[block].at[flight.to - 1]
                    && own == id
                {
                    self.quarantined[flight.to - 1].push(slot);
                    self.drop(block, flight.to - 1);
                }
            }
        }
    }

    /// A flight has ended with so many good blocks; the next one's source is bad.
    pub(crate) fn landed(&mut self, plan: &Plan, good: usize, corrupt: bool) {
        let known = self.flights.remove(&plan.flight);
        let flight = known.unwrap_or_else(|| panic!("{plan:?} is in flight"));
        if flight.to == 0 {
            if corrupt && !flight.overdue {
                self.corrupt(flight.from - 1, flight.blocks[good], flight.slots[good]);
            }
            return;
        }
        let to = flight.to - 1;
        if flight.overdue {
            let came = |slot: &u32| !plan.destinations.contains(slot);
            return self.quarantined[to].retain(came);
        }
        self.quarantined[to].retain(|slot| !plan.destinations.contains(slot));
        self.cut(&flight.blocks[good..], to);
        self.quarantined[to].retain(|slot| !plan.destinations.contains(slot));
        for (at, &block) in flight.blocks.iter().enumerate() {
            let own = Copied::Filling(plan.flight);
            let Some((slot, _)) = self.nodes[block].at[to].filter(|&(_, copy)| copy == own) else {
                continue;
            };
            if self.nodes[block].gone || at >= good {
                self.drop(block, to);
                continue;
            }
            self.nodes[block].at[to] = Some((slot, Copied::Ready));
            let node = &mut self.nodes[block];
            if matches!(flight.why, Why::Below(Some(_))) && node.keeps > 0 && node.home < to {
                node.home = to;
            }
        }
        if corrupt && flight.from > 0 {
            self.corrupt(flight.from - 1, flight.blocks[good], flight.slots[good]);
        }
    }

    fn corrupt(&mut self, tier: usize, block: Block, slot: u32) {
        if self.nodes[block].gone || self.nodes[block].at[tier] != Some((slot, Copied::Ready)) {
            return;
        }
        self.cut(&[block], tier);
        if !self.nodes[block].gone {
            // A copy that reads it keeps its slot out of use.
            self.drop(block, tier);
        }
    }

    fn cut(&mut self, lost: &[Block], tier: usize) {
        let at_home = |&&block: &&Block| {
            let node = &self.nodes[block];
            !node.gone && node.keeps > 0 && node.home == tier
        };
        let lost: Vec<Block> = lost.iter().filter(at_home).copied().collect();
        let ids: Vec<ParkedId> = self.kept.keys().copied().collect();
        for id in ids {
            let stay = &self.kept[&id];
            let Some(at) = stay.path.iter().position(|block| lost.contains(block)) else {
                continue;
            };
            let at = if self.linked { at } else { 0 };
            let gone = self.kept.get_mut(&id).expect("kept").path.split_off(at);
            self.kept.get_mut(&id).expect("kept").computed = at * self.size;
            self.let_go(&gone);
        }
    }

    fn let_go(&mut self, path: &[Block]) {
        for &block in path.iter().rev() {
            self.nodes[block].keeps -= 1;
            // A partial block is its request's alone.
            if self.nodes[block].key.is_none() {
                for tier in 0..2 {
                    if let Some((slot, Copied::Filling(_))) = self.nodes[block].at[tier] {
                        self.quarantined[tier].push(slot);
                    }
                }
                self.nodes[block].gone = true;
                self.nodes[block].at = [None; 2];
            }
        }
    }

    pub(crate) fn abandon(&mut self, id: ParkedId) {
        let stay = self.kept.remove(&id).expect("kept");
        self.let_go(&stay.path);
    }

    /// A kept request was asked to move to the lowest tier, at most so many blocks: what has a copy
    /// there is kept there at once, where no promise loses its backing, and the plan copies others.
    pub(crate) fn moved(&mut self, id: ParkedId, most: usize, plan: Option<&Plan>) {
        let mut then = self.clone();
        let mut copies = 0;
        for block in self.kept[&id].path.clone().into_iter().rev() {
            if copies == most {
                break;
            }
            if then.nodes[block].home == 1
                || (!then.ready(block, 1) && then.nodes[block].at[1].is_some())
            {
                continue;
            }
            if then.ready(block, 1) {
                let mut trial = then.clone();
                trial.nodes[block].home = 1;
                if trial.room(1, &[]) >= 0 {
                    then = trial;
                    self.nodes[block].home = 1;
                }
                continue;
            }
            let Some((slot, Copied::Ready)) = then.nodes[block].at[0] else {
                continue;
            };
            let Some(plan) = plan.filter(|plan| plan.sources.get(copies) == Some(&slot)) else {
                break;
            };
            let to = plan.destinations[copies];
            let there = |node: &Node| !node.gone && node.at[1].is_some_and(|(own, _)| own == to);
            if let Some(victim) = then.nodes.iter().position(there) {
                then.drop(victim, 1);
            }
            then.nodes[block].at[1] = Some((to, Copied::Filling(plan.flight)));
            copies += 1;
        }
        assert_eq!(copies, plan.map_or(0, Plan::len), "what a move copies");
    }

    /// Slots in use on a tier, and room: free slots and those that may go.
    pub(crate) fn tier(&self, tier: Tier) -> (usize, isize) {
        (self.used(tier.0 - 1), self.room(tier.0 - 1, &[]))
    }
}
