//! The structure under an order of several lists, by seed, beside plain lists: all of both is compared
//! after each step.

use crate::base::{Class, Ix, NodeIx, Result, SlotIx};
use crate::evict::hint::Hints;
use crate::evict::order::Order;
use crate::evict::queues::{FIRST, PASSED, Queues, WAITS};
use crate::evict::usage::{Asks, Ending, Hint, Usage, UsageTable};
use crate::evict::{Children, CopyAhead, Evict, EvictAudit, Evictability, InsertAt, Opens, Stamps};
use std::cmp::Reverse;

const SLOTS: usize = 24;
const CLASSES: usize = 4;
const HEADS: usize = Class::COUNT + CLASSES;
const WAITING: usize = HEADS - 1;

/// Lists by the length of the last request. Those of the first fall with age, of the second as well but
/// from less, of the third by steps; what the last are worth the test says.
#[derive(Hash, Debug)]
struct Lengths {
    last: u32,
}

impl Order for Lengths {
    const CLASSES: usize = CLASSES;

    fn new(_room: usize) -> Result<Self> {
        Ok(Self { last: 0 })
    }

    fn used(&mut self, key: u64, _life: Usage, _now: u32) {
        self.last = key as u32;
    }

    fn class(&self, usage: Usage) -> u8 {
        usage.length().min(CLASSES as u8 - 1)
    }

    fn value(&self, class: u8, age: u32) -> u32 {
        match class {
            0 => 1000_u32.saturating_sub(age),
            1 => 980_u32.saturating_sub(age),
            2 => 1000 - age.min(999) / 16 * 16,
            _ => self.last,
        }
    }
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, most: usize) -> usize {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % most as u64) as usize
    }

    fn one_in(&mut self, most: usize) -> bool {
        self.below(most) == 0
    }
}

/// What a slot has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    Free,
    Pinned,
    Idle,
}

/// The same by lists, marks that are looked up, and scans.
#[derive(Clone, Default)]
struct Plain {
    lists: Vec<Vec<usize>>,
    /// Where each slot of the last list comes back to.
    homes: [usize; SLOTS],
    may: Vec<Evictability>,
    stamps: [u32; SLOTS],
    now: u32,
    last: u32,
}

impl Plain {
    fn list_of(&self, slot: usize) -> usize {
        let mut lists = self.lists.iter();
        let list = lists.position(|list| list.contains(&slot));
        list.expect("it is idle")
    }

    fn leave(&mut self, slot: usize) -> usize {
        let list = self.list_of(slot);
        self.lists[list].retain(|&other| other != slot);
        list
    }

    fn remove(&mut self, slot: usize) {
        self.leave(slot);
    }

    fn refresh(&mut self, slot: usize, may: Evictability) {
        self.may[slot] = may;
        if may == Evictability::Leaf && self.list_of(slot) == WAITING {
            self.leave(slot);
            self.lists[self.homes[slot]].insert(0, slot);
        }
    }

    fn set_aside(&mut self, slot: usize) {
        self.homes[slot] = self.leave(slot);
        self.lists[WAITING].push(slot);
    }

    fn worth(&self, slot: usize, own: usize) -> (u32, Reverse<u32>, usize) {
        let age = self.now - self.stamps[slot];
        let order = Lengths { last: self.last };
        (order.value(own as u8, age), Reverse(age), own)
    }

    fn open(&self, list: usize) -> Option<usize> {
        let mut slots = self.lists[list].iter().copied();
        slots.find(|&slot| self.may[slot] != Evictability::Blocked)
    }

    /// The front of the lists that go first: it may have a child.
    fn front(&self) -> Option<usize> {
        let first = (0..FIRST).find_map(|list| self.open(list));
        let own = || {
            let fronts = (0..CLASSES).filter_map(|own| Some((self.open(FIRST + own)?, own)));
            let least = fronts.min_by_key(|&(slot, own)| self.worth(slot, own));
            least.map(|(slot, _)| slot)
        };
        let behind = || (FIRST + CLASSES..WAITING).find_map(|list| self.open(list));
        first.or_else(own).or_else(behind)
    }

    fn victim(&mut self) -> Option<usize> {
        loop {
            let slot = self.front()?;
            if self.may[slot] == Evictability::Leaf {
                return Some(slot);
            }
            self.set_aside(slot);
        }
    }

    fn clear(&mut self) {
        let all = self.lists.concat();
        self.lists = vec![Vec::new(); HEADS];
        self.lists[Class::Cleared as usize] = all;
    }
}

#[derive(Clone)]
struct Forest {
    holds: [Hold; SLOTS],
    /// A parent has a lower number, and is there as long as its children.
    parents: [Option<usize>; SLOTS],
    read: [bool; SLOTS],
}

struct World {
    chance: Chance,
    queues: Queues<Lengths>,
    plain: Plain,
    usages: UsageTable,
    forest: Forest,
    /// What copies ahead found, if it holds still.
    settled: Vec<usize>,
}

impl Forest {
    fn children(&self, slot: usize) -> impl Iterator<Item = usize> + '_ {
        let there =
            move |&at: &usize| self.holds[at] != Hold::Free && self.parents[at] == Some(slot);
        (0..SLOTS).filter(there)
    }

    fn busy(&self, slot: usize) -> bool {
        self.read[slot]
            || self.holds[slot] == Hold::Pinned
            || self.children(slot).any(|child| self.busy(child))
    }

    fn may(&self, slot: usize) -> Evictability {
        if self.read[slot] || self.children(slot).any(|child| self.busy(child)) {
            Evictability::Blocked
        } else if self.children(slot).next().is_some() {
            Evictability::Branch
        } else {
            Evictability::Leaf
        }
    }
}

fn slots(slots: &[usize]) -> Vec<SlotIx> {
    let slots = slots.iter();
    slots.map(|&slot| SlotIx::new(slot as u32)).collect()
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            chance: Chance(seed),
            queues: Queues::new(SLOTS, SLOTS, Children::InOrder).expect("there is memory"),
            plain: Plain {
                lists: vec![Vec::new(); HEADS],
                may: vec![Evictability::Leaf; SLOTS],
                ..Plain::default()
            },
            usages: UsageTable::new(SLOTS, Asks::Uses).expect("there is memory"),
            forest: Forest {
                holds: [Hold::Free; SLOTS],
                parents: [None; SLOTS],
                read: [false; SLOTS],
            },
            settled: Vec::new(),
        }
    }

    /// The policy is told of all that has changed.
    fn refresh(&mut self) {
        for slot in (0..SLOTS).rev() {
            let may = self.forest.may(slot);
            if self.forest.holds[slot] == Hold::Idle && self.plain.may[slot] != may {
                self.queues.refresh(SlotIx::new(slot as u32), may);
                self.plain.refresh(slot, may);
            }
        }
    }

    fn insert(&mut self, slot: usize) {
        let class = [
            Class::Ended,
            Class::Copied,
            Class::Retained,
            Class::Shadow,
            Class::Cleared,
        ];
        let class = if self.chance.one_in(3) {
            class[self.chance.below(5)]
        } else {
            Class::Ordinary
        };
        let own = self.chance.below(CLASSES);
        let tokens = [0, 512, 4 << 10, 16 << 10][own];
        let node = NodeIx::new(slot as u32);
        self.usages.born(node, 0);
        self.usages
            .end(node, Ending::new(tokens, Hint::None), Hints::default());
        self.plain.stamps[slot] = self.plain.now;
        let may = self.forest.may(slot);
        let view = self.usages.of(node);
        let at = SlotIx::new(slot as u32);
        self.queues.insert(at, class, view, InsertAt::Back, may);
        self.forest.holds[slot] = Hold::Idle;
        let list = match class {
            Class::Ordinary => FIRST + own,
            class if class < Class::Ordinary => class as usize,
            class => class as usize + CLASSES - 1,
        };
        self.plain.lists[list].push(slot);
        self.plain.may[slot] = may;
    }

    fn victim(&mut self) -> Option<usize> {
        let stamps = self.plain.stamps;
        let victim = self.queues.victim(&|slot| stamps[slot.at()]);
        let wanted = self.plain.victim();
        assert_eq!(victim.map(Ix::at), wanted, "the victim");
        wanted
    }

    fn step(&mut self) {
        let slot = self.chance.below(SLOTS);
        let at = SlotIx::new(slot as u32);
        let hold = self.forest.holds[slot];
        match (self.chance.below(16), hold) {
            (0..6, Hold::Free) => {
                let parent = self.chance.below(slot + 2).checked_sub(2);
                self.forest.parents[slot] =
                    parent.filter(|&parent| self.forest.holds[parent] != Hold::Free);
                if self.chance.one_in(4) {
                    self.forest.holds[slot] = Hold::Pinned;
                } else {
                    self.insert(slot);
                }
            }
            (0..4, Hold::Pinned) => self.insert(slot),
            (0 | 1, Hold::Idle) => {
                self.queues.remove(at);
                self.plain.remove(slot);
                self.forest.holds[slot] = Hold::Pinned;
            }
            (2, _) if hold != Hold::Free => self.forest.read[slot] ^= true,
            (5, Hold::Idle) => self.queues.unsee(at),
            (6, _) => {
                let ticks = 1 + self.chance.below(20) as u32;
                self.plain.now += ticks;
                self.plain.last = 900 + self.chance.below(100) as u32;
                let (last, now) = (u64::from(self.plain.last), u64::from(self.plain.now));
                self.queues.used(&[(last, Usage::default())], now);
            }
            (7..11, _) => {
                if let Some(victim) = self.victim() {
                    self.queues.evict(SlotIx::new(victim as u32));
                    self.plain.remove(victim);
                    self.forest.holds[victim] = Hold::Free;
                    self.forest.read[victim] = false;
                }
            }
            (11..14, _) => {
                let limit = self.chance.below(9);
                self.settled = self.ahead(limit);
                self.queues.settle(limit);
            }
            (14, _) if self.chance.one_in(30) => {
                self.queues.clear();
                self.plain.clear();
            }
            _ => {
                self.victim();
            }
        }
        self.refresh();
    }

    /// All of both is the same, and nothing is lost.
    fn compare(&self) {
        for (head, list) in self.plain.lists.iter().enumerate() {
            let own: Vec<SlotIx> = self.queues.from(self.queues.lists.front(head)).collect();
            assert_eq!(own, slots(list), "list {head}");
        }
        for (slot, &hold) in self.forest.holds.iter().enumerate() {
            let at = SlotIx::new(slot as u32);
            assert_eq!(self.queues.holds(at), hold == Hold::Idle);
            if hold == Hold::Idle {
                let may = self.plain.may[slot];
                assert!(
                    self.queues.agrees(at, may),
                    "{slot}: {may:?}, {}",
                    self.queues.marks[slot]
                );
            }
        }
        for limit in [0, 1, 2, 3, 5, 8, SLOTS] {
            let ahead = slots(&self.ahead(limit));
            let seen = limit <= self.queues.settled;
            let unseen = if seen { &[][..] } else { &ahead };
            assert_eq!(self.told(limit, Queues::ahead), ahead, "{limit} ahead");
            assert_eq!(self.told(limit, Queues::unseen), unseen, "{limit} unseen");
        }
        if self.queues.settled > 0 {
            assert_eq!(self.settled, self.ahead(self.queues.settled));
        }
    }

    /// What would go next, by taking it.
    fn ahead(&self, limit: usize) -> Vec<usize> {
        let (mut plain, mut forest) = (self.plain.clone(), self.forest.clone());
        let next = || {
            let victim = plain.victim()?;
            plain.remove(victim);
            forest.holds[victim] = Hold::Free;
            for slot in (0..SLOTS).filter(|&slot| forest.holds[slot] == Hold::Idle) {
                plain.refresh(slot, forest.may(slot));
            }
            Some(victim)
        };
        std::iter::from_fn(next).take(limit).collect()
    }

    fn told(
        &self,
        limit: usize,
        ask: fn(&Queues<Lengths>, usize, Stamps<'_>, Opens<'_>, &mut Vec<SlotIx>),
    ) -> Vec<SlotIx> {
        let stamps = self.plain.stamps;
        let (mut forest, mut told) = (self.forest.clone(), Vec::new());
        let mut opens = |slot: SlotIx| {
            forest.holds[slot.at()] = Hold::Free;
            let parent = forest.parents[slot.at()]?;
            let idle = forest.holds[parent] == Hold::Idle;
            (idle && forest.may(parent) == Evictability::Leaf).then(|| SlotIx::new(parent as u32))
        };
        let stamps = &|slot: SlotIx| stamps[slot.at()];
        ask(&self.queues, limit, stamps, &mut opens, &mut told);
        told
    }
}

#[test]
fn several_lists_do_what_plain_ones_would() {
    let (mut waited, mut passed) = (0, 0);
    for seed in 0..40 {
        let mut world = World::new(seed);
        for step in 0..1500 {
            let same = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                world.step();
                world.compare();
            }));
            if let Err(why) = same {
                eprintln!("seed {seed}, step {step}");
                std::panic::resume_unwind(why);
            }
            let marks = world.queues.marks.iter();
            waited += marks
                .clone()
                .map(|&mark| usize::from(mark == WAITS))
                .sum::<usize>();
            passed += marks.filter(|&&mark| mark >= PASSED).count();
        }
    }
    assert!(waited.min(passed) > 1000, "{waited} {passed}");
}
