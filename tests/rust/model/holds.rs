//! Holds: what is held stays where it is, and its slots' generations change when it is held no more.

use crate::act::pick;
use crate::ops::{Op, Prompt};
use crate::world::World;
use crate::yard::{Block, DEVICE, Yard};
use blockyard_core::{HeldPath, Hints, HoldId, Key, Tier};
use std::collections::BTreeMap;

impl Yard {
    fn hold(&mut self, keys: &[Key], told: Option<&HeldPath>) {
        let (mut path, probe) = self.walk(keys);
        path.truncate(probe.hits[DEVICE] as usize);
        let (first, slot) = (self.first_size, |yard: &Self, block| {
            yard.ready(block, DEVICE).expect("it is found there")
        });
        let new = path.iter().position(|&block| slot(self, block) >= first);
        path.truncate(new.unwrap_or(path.len()));
        let mut table: Vec<u32> = path.iter().map(|&block| slot(self, block)).collect();
        while !table.is_empty() {
            self.held.push((u64::MAX, table.clone(), Hints::default()));
            let lacks = self.unbacked(DEVICE);
            self.held.pop();
            if !lacks {
                break;
            }
            table.pop();
        }
        path.truncate(table.len());
        let Some(told) = told else {
            return assert_eq!(table, [0; 0], "nothing is held");
        };
        assert!(!table.is_empty(), "a hold of nothing");
        assert_eq!(told.slots, table);
        let generations: Vec<u64> = table.iter().map(|&slot| self.generation(slot)).collect();
        assert_eq!(told.generations, generations);
        assert_eq!(told.keys, keys[..table.len()]);
        let parents = std::iter::once(&Key::NO_PARENT).chain(keys);
        assert!(told.parents.iter().eq(parents.take(table.len())));
        self.link(&path);
        assert_eq!(self.holds.insert(told.id, table), None);
        self.settle();
    }

    /// Of the first boot.
    fn generation(&self, slot: u32) -> u64 {
        1 << 32 | (1 + self.raised.get(&slot).copied().unwrap_or(0))
    }

    pub(crate) fn end_hold(&mut self, id: HoldId) {
        let Some(table) = self.holds.remove(&id) else {
            return;
        };
        for slot in table {
            if !self.holds.values().flatten().any(|&held| held == slot) {
                *self.raised.entry(slot).or_default() += 1;
            }
        }
        self.settle();
    }

    pub(crate) fn end_holds(&mut self) {
        for id in self.holds.keys().copied().collect::<Vec<HoldId>>() {
            self.end_hold(id);
        }
    }

    /// Ends the holds that have any of these blocks.
    pub(crate) fn end_holds_of(&mut self, blocks: &[Block]) {
        let has = |slot: &u32| {
            let block = self.block_in(DEVICE, *slot);
            block.is_some_and(|block| blocks.contains(&block))
        };
        let ending = self.holds.iter().filter(|(_, table)| table.iter().any(has));
        let ending: Vec<HoldId> = ending.map(|(&id, _)| id).collect();
        for id in ending {
            self.end_hold(id);
        }
    }

    /// Slots that are held, each once.
    pub(crate) fn held_blocks(&self) -> u64 {
        let mut held: Vec<u32> = self.holds.values().flatten().copied().collect();
        held.sort_unstable();
        held.dedup();
        held.len() as u64
    }
}

impl World {
    pub(crate) fn act_on_hold(&mut self, op: &Op) -> Option<bool> {
        match *op {
            Op::Hold(prompt, most) => self.hold(prompt, usize::from(most)),
            Op::EndHold(hold) => {
                let hold = &self.holds[pick(&self.holds, hold)?];
                assert_eq!(hold.release(), Ok(()));
                assert!(!hold.is_held());
                // Twice is once.
                assert_eq!(hold.release(), Ok(()));
                self.yard.end_hold(hold.id());
            }
            Op::DropHold(hold) => {
                let hold = self.holds.swap_remove(pick(&self.holds, hold)?);
                let leaks = hold.is_held();
                let before = self.cache.lock().stats().counters.leaked;
                self.yard.end_hold(hold.id());
                drop(hold);
                let leaked = self.cache.lock().stats().counters.leaked - before;
                assert_eq!(leaked, u64::from(leaks));
            }
            _ => return None,
        }
        Some(false)
    }

    fn hold(&mut self, prompt: Prompt, most: usize) {
        let chain = self.chain(prompt);
        let keys = &chain.keys()[..most.min(chain.keys().len())];
        let answer = self.cache.lock().hold_blocks(keys);
        let path = answer.expect("there is memory");
        self.yard.hold(keys, path.as_ref());
        let held = path.map(|path| self.cache.handle_held(path));
        self.holds.extend(held);
    }

    /// What is held has its blocks where it had them, and what has ended says so; no generation is again
    /// what it was.
    pub(crate) fn compare_holds(&self) {
        if self.holds.is_empty() {
            return;
        }
        let blocks = self.cache.lock().blocks_on(Tier::DEVICE);
        let blocks: BTreeMap<u32, Key> = blocks
            .into_iter()
            .map(|(slot, _, key)| (slot, key))
            .collect();
        for hold in &self.holds {
            let lives = self.yard.holds.contains_key(&hold.id());
            assert_eq!(hold.is_held(), lives, "{:?}", hold.id());
            let rows = hold.slots().iter().zip(hold.keys()).zip(hold.generations());
            for (at, ((slot, key), &told)) in rows.enumerate() {
                let now = self.yard.generation(*slot);
                assert_eq!(hold.generation_now(at), Some(now), "slot {slot}");
                if now == told {
                    assert_eq!(blocks.get(slot), Some(key), "slot {slot} was held");
                }
            }
        }
    }
}
