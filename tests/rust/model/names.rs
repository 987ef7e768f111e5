//! Names of stores: what is said to be there, what of it was true, and what is deleted there.

use crate::ops::Prompt;
use crate::world::World;
use crate::yard::{Block, Class, DEVICE, InFlight, Purpose, What, Yard};
use blockyard_core::{Error, FlightId, Key, Plan, Result, State, Tier};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const REMOTE: usize = Tier::REMOTE.0;

/// What a block of a path stands behind.
#[derive(Clone, Copy)]
enum Above {
    Nothing,
    New,
    Known(Block),
}

/// Slots of names, each with the number of its block and its key.
type Names = Vec<(u32, u64, Key)>;

impl World {
    /// The first blocks of a prompt. By a twist one key is that of another prompt, which stands elsewhere.
    pub(crate) fn adopt(&mut self, prompt: Prompt, blocks: u8, twist: u8) -> bool {
        let other = Prompt {
            path: !prompt.path,
            ..prompt
        };
        let other = self.chain(other);
        let chain = self.chain(prompt);
        let mut keys = chain.keys()[..chain.keys().len().min(usize::from(blocks))].to_vec();
        let at = usize::from(twist);
        let known = other.keys().get(at).and_then(|key| self.yard.find(key));
        // Of an orphan nobody knows that it stands elsewhere.
        let stands = |block| at == 0 || self.yard.parent(block).is_some();
        if at < keys.len() && known.is_some_and(stands) {
            keys[at] = other.keys()[at];
            // What follows would be adopted behind it: the caller's mistake.
            keys.truncate(at + 1);
        }
        let mut state = self.cache.lock();
        let lists = |state: &State| {
            let has_names = state.stats().tiers.len() > REMOTE;
            let names = has_names.then(|| state.blocks_on(Tier::REMOTE));
            names.unwrap_or_default()
        };
        let before = lists(&state);
        let answer = state.adopt(&keys, Some(Key::NO_PARENT), Tier::REMOTE);
        let after = lists(&state);
        drop(state);
        let leading = self.yard.adopt_names(&keys, (&before, &after), &answer);
        self.cache.emit_found(&chain, leading);
        answer.is_err()
    }

    pub(crate) fn drop_names(&mut self, prompt: Prompt, first: u8) -> bool {
        let chain = self.chain(prompt);
        let first = usize::from(first) % (chain.keys().len() + 1);
        let mut keys = chain.keys()[first..].to_vec();
        if !first.is_multiple_of(2) {
            keys.reverse();
        }
        let answer = self.cache.lock().forget_names(&keys, Tier::REMOTE);
        self.yard.drop_names(&keys, &answer);
        answer.is_err()
    }
}

impl Yard {
    fn has_names(&self) -> bool {
        self.tiers > REMOTE && self.keyed[REMOTE]
    }

    fn adopt_names(
        &mut self,
        keys: &[Key],
        names: (&Names, &Names),
        answer: &Result<u32>,
    ) -> usize {
        if !self.has_names() {
            assert!(matches!(answer, Err(Error::Argument { name: "tier", .. })));
            return 0;
        }
        // What leads as far as it is known, each on the one before it.
        let mut path: Vec<Option<Block>> = Vec::new();
        let mut above = Above::Nothing;
        for key in keys {
            let deletes = || self.deletes.values().flatten().any(|other| other == key);
            let known = self.find(key);
            match (known, above) {
                (None, _) if deletes() => break,
                (Some(block), _) if !self.may_lead(block, above) => break,
                (Some(block), Above::Known(above)) => self.link(&[above, block]),
                _ => {}
            }
            path.push(known);
            above = known.map_or(Above::New, Above::Known);
        }
        let new = path.iter().filter(|known| known.is_none()).count();
        let most = new.min(self.room_beside(path.iter().flatten()));
        self.used |= most > 0;
        self.see_names_go(names, most);
        // Of what has gone something may come again at once.
        self.haunt();
        let mut leading: Vec<Block> = Vec::new();
        let mut left = most;
        for (key, known) in keys.iter().zip(path) {
            let last = leading.last().copied();
            let above = last.map_or(Above::Nothing, Above::Known);
            let block = match known.or_else(|| self.find(key)) {
                Some(block) if known.is_none() || !self.may_lead(block, above) => break,
                Some(block) => {
                    self.link(&last.into_iter().chain([block]).collect::<Vec<Block>>());
                    block
                }
                None if left == 0 => break,
                None => {
                    left -= 1;
                    self.name(*key, last, names.1)
                }
            };
            leading.push(block);
        }
        assert_eq!(left, 0, "room was made for {most}, in vain");
        assert_eq!(answer, &Ok(leading.len() as u32), "how many lead");
        self.settle();
        leading.len()
    }

    /// Whether a known block may stand behind this one of a path.
    fn may_lead(&self, block: Block, above: Above) -> bool {
        match (self.blocks[block].parent, above) {
            (None, Above::Nothing) => true,
            (None, _) | (Some(_), Above::Nothing) => false,
            (Some(parent), _) if !self.alive(parent) => !self.waits_for_a_fence(block),
            (Some(parent), Above::Known(above)) => parent == above,
            (Some(_), Above::New) => false,
        }
    }

    /// How many names find room where those of these blocks, and all above them, stay.
    fn room_beside<'a>(&self, own: impl Iterator<Item = &'a Block>) -> usize {
        let ready = |block: &Block| Some((Some(*block), self.ready(*block, REMOTE)?, u32::MAX));
        let mut then = self.clone();
        let marks = InFlight {
            from: REMOTE,
            to: DEVICE,
            purpose: Purpose::Lift,
            moves: own.filter_map(ready).collect(),
            overdue: false,
            reads: true,
            hearsay: Vec::new(),
            ended: None,
        };
        let unborn = FlightId::from_number(u64::MAX).expect("a number");
        then.flights.insert(unborn, marks);
        then.spare(REMOTE)
    }

    /// What has gone for new names: as many as lacked a slot, and each of them might.
    fn see_names_go(&mut self, (before, after): (&Names, &Names), most: usize) {
        let stays: BTreeSet<(u32, u64)> = after.iter().map(|name| (name.0, name.1)).collect();
        let gone = before
            .iter()
            .filter(|name| !stays.contains(&(name.0, name.1)));
        let gone: Vec<u32> = gone.map(|name| name.0).collect();
        let may = self.may_go(REMOTE);
        let lacked = (most as u64).saturating_sub(self.free(REMOTE));
        let made = gone
            .iter()
            .filter(|&&slot| self.stays(REMOTE, slot))
            .count() as u64;
        assert_eq!(made, lacked, "names evicted for {most}");
        for &slot in &gone {
            assert!(may.contains(&slot), "name {slot} had to stay");
            let block = self.block_in(REMOTE, slot).expect("it was there");
            for child in self.children(REMOTE, block) {
                let child = self.blocks[child].slots[REMOTE].expect("it is there");
                assert!(gone.contains(&child), "name {slot} is no leaf");
            }
        }
        for slot in gone {
            self.evict(REMOTE, slot);
            self.evicted[REMOTE] += 1;
        }
    }

    fn name(&mut self, key: Key, above: Option<Block>, after: &Names) -> Block {
        let block = self.add(Some(key), above);
        if let Some(above) = above {
            self.blocks[block].class = self.blocks[above].class.min(Class::Ordinary);
        }
        if self.ghosts.remove(&key) {
            self.again.insert(block);
        }
        // Of an earlier epoch there may be one of the same key.
        let free = |slot: &u32| !self.slots[REMOTE].contains_key(slot);
        let mut own = after.iter().filter(|name| name.2 == key).map(|name| name.0);
        let slot = own.find(free);
        let slot = slot.expect("the core has it, in a slot that was free");
        self.blocks[block].slots[REMOTE] = Some(slot);
        self.take(REMOTE, slot, What::Ready(block));
        self.hearsay.insert(block);
        block
    }

    fn drop_names(&mut self, keys: &[Key], answer: &Result<u32>) {
        if !self.has_names() {
            return assert!(matches!(answer, Err(Error::Argument { name: "tier", .. })));
        }
        let named: BTreeSet<Block> = keys.iter().filter_map(|key| self.find(key)).collect();
        let mut dropped = 0;
        let leaf = |yard: &Self, block: Block| {
            let slot = yard.ready(block, REMOTE)?;
            let idle = yard.idle(REMOTE, slot) && !yard.read(REMOTE, slot);
            (idle && yard.children(REMOTE, block).is_empty()).then_some(slot)
        };
        while let Some(slot) = named.iter().find_map(|&block| leaf(self, block)) {
            self.evict(REMOTE, slot);
            dropped += 1;
            self.retire();
        }
        assert_eq!(answer, &Ok(dropped), "names dropped");
        self.settle();
    }

    /// Whether a store is only said to have a block.
    pub(crate) fn is_hearsay(&self, block: Block, tier: usize) -> bool {
        tier == REMOTE && self.hearsay.contains(&block) && self.ready(block, tier).is_some()
    }

    /// A prompt has found blocks that these plans load: what a store is said to have is no hit yet.
    pub(crate) fn count_found(&mut self, plans: &[Plan]) {
        for plan in plans.iter().filter(|plan| plan.from == Tier::REMOTE) {
            let flight = &self.flights[&plan.flight];
            let blocks = flight.moves.iter().map(|step| step.0.expect("published"));
            let hearsay = blocks.enumerate();
            let hearsay = hearsay.filter(|(_, block)| self.hearsay.contains(block));
            let hearsay: Vec<usize> = hearsay.map(|(at, _)| at).collect();
            self.found += (plan.len() - hearsay.len()) as u64;
            self.flights
                .get_mut(&plan.flight)
                .expect("it flies")
                .hearsay = hearsay;
        }
    }

    /// So many blocks of a flight were there, and what was said of them is true; and what of a prompt was
    /// not is no hit.
    pub(crate) fn prove(&mut self, flight: &InFlight, good: usize) {
        let hits = flight.hearsay.iter().filter(|&&at| at < good).count();
        self.found += hits as u64;
        self.lost += (flight.hearsay.len() - hits) as u64;
        for &(block, from, to) in flight.moves.iter().take(good) {
            let slot = if flight.from == REMOTE { from } else { to };
            let there = |&block: &Block| self.block_in(REMOTE, slot) == Some(block);
            if let Some(block) = block
                .filter(|_| flight.from.max(flight.to) == REMOTE)
                .filter(there)
            {
                self.hearsay.remove(&block);
            }
        }
    }

    /// What a store is asked to delete: what was named, and what this yard forgets with it, but for what is
    /// kept.
    pub(crate) fn check_deletes(
        &mut self,
        keys: &[Key],
        gone: &[Block],
        kept: &[Block],
        plans: &[Plan],
    ) {
        if !self.has_names() {
            return;
        }
        let key = |&block: &Block| self.blocks[block].key;
        let mut asked: BTreeSet<Key> = keys.iter().copied().collect();
        asked.extend(gone.iter().filter_map(key));
        for key in kept.iter().filter_map(key) {
            asked.remove(&key);
        }
        let mut told = BTreeMap::new();
        for plan in plans.iter().filter(|plan| plan.to == Tier::REMOTE) {
            for key in &plan.keys {
                *told.entry(*key).or_insert(0) += 1;
            }
            assert!(plan.parents.is_empty(), "a store deletes by keys alone");
            self.deletes.insert(plan.flight, plan.keys.clone());
        }
        let once: BTreeMap<Key, i32> = asked.into_iter().map(|key| (key, 1)).collect();
        assert_eq!(told, once, "what the store deletes");
    }
}
