//! The structure under an order of several lists, by seed, beside plain lists: all of both is compared
//! after each step.

use crate::error::Result;
use crate::evict::order::Order;
use crate::evict::queues::{FIRST, PASSED, Queues, WAITS};
use crate::evict::{Evict, Evictability, Place};
use crate::hint::Hints;
use crate::id::{Class, Ix, NodeIx, SlotIx};
use crate::life::{Hint, Life, Lives};
use std::cmp::Reverse;

const SLOTS: usize = 24;
const CLASSES: usize = 4;
const HEADS: usize = Class::COUNT + CLASSES;
const WAITING: usize = HEADS - 1;
const SHADOWS: usize = HEADS - 2;

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

    fn used(&mut self, key: u64, _life: Life, _now: u32) {
        self.last = key as u32;
    }

    fn class(&self, life: Life) -> u8 {
        life.length().min(CLASSES as u8 - 1)
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
#[derive(Default)]
struct Plain {
    lists: Vec<Vec<usize>>,
    /// Where each slot of the last list comes back to.
    homes: [usize; SLOTS],
    seen: [bool; SLOTS],
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
        self.seen[slot] = false;
    }

    fn refresh(&mut self, slot: usize, may: Evictability) {
        self.may[slot] = may;
        if may == Evictability::Leaf && self.list_of(slot) == WAITING {
            self.leave(slot);
            let home = self.homes[slot];
            if !self.seen[slot] {
                for &other in &self.lists[home] {
                    self.seen[other] = false;
                }
            }
            self.lists[home].insert(0, slot);
        }
    }

    fn set_aside(&mut self, slot: usize) {
        self.homes[slot] = self.leave(slot);
        self.seen[slot] &= self.lists[WAITING].iter().all(|&other| self.seen[other]);
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

    /// The order's lists together, if no worth changed.
    fn merged(&self) -> Vec<usize> {
        let mut left: Vec<&[usize]> = (0..CLASSES)
            .map(|own| self.lists[FIRST + own].as_slice())
            .collect();
        let mut all = Vec::new();
        while let Some(own) = (0..CLASSES)
            .filter(|&own| !left[own].is_empty())
            .min_by_key(|&own| self.worth(left[own][0], own))
        {
            all.push(left[own][0]);
            left[own] = &left[own][1..];
        }
        all
    }

    fn ahead(&self, last: usize) -> Vec<usize> {
        let before = self.lists[..FIRST].iter().flatten().copied();
        let behind = self.lists[FIRST + CLASSES..last].iter().flatten().copied();
        before.chain(self.merged()).chain(behind).collect()
    }

    fn unseen(&self, limit: usize) -> Vec<usize> {
        let next = self.ahead(SHADOWS).into_iter().take(limit);
        let waiting = self.lists[WAITING].iter().copied();
        next.chain(waiting)
            .filter(|&slot| !self.seen[slot])
            .collect()
    }

    fn see(&mut self, slot: usize) -> bool {
        let list = &self.lists[self.list_of(slot)];
        let first = list.iter().find(|&&other| !self.seen[other]) == Some(&slot);
        self.seen[slot] |= first;
        first
    }

    fn unsee(&mut self, slot: usize) {
        if self.seen[slot] {
            let list = &self.lists[self.list_of(slot)];
            let from = list.iter().skip_while(|&&other| other != slot);
            for &other in from {
                self.seen[other] = false;
            }
        }
    }

    fn clear(&mut self) {
        let all = self.lists.concat();
        self.lists = vec![Vec::new(); HEADS];
        self.lists[Class::Cleared as usize] = all;
        self.seen = [false; SLOTS];
    }
}

struct World {
    chance: Chance,
    queues: Queues<Lengths>,
    plain: Plain,
    lives: Lives,
    holds: [Hold; SLOTS],
    /// A little forest: a parent has a lower number, and is there as long as its children.
    parents: [Option<usize>; SLOTS],
    read: [bool; SLOTS],
}

fn slots(slots: &[usize]) -> Vec<SlotIx> {
    let slots = slots.iter();
    slots.map(|&slot| SlotIx::new(slot as u32)).collect()
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            chance: Chance(seed),
            queues: Queues::new(SLOTS, SLOTS, true).expect("there is memory"),
            plain: Plain {
                lists: vec![Vec::new(); HEADS],
                may: vec![Evictability::Leaf; SLOTS],
                ..Plain::default()
            },
            lives: Lives::new(SLOTS, true, false).expect("there is memory"),
            holds: [Hold::Free; SLOTS],
            parents: [None; SLOTS],
            read: [false; SLOTS],
        }
    }

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

    /// The policy is told of all that has changed.
    fn refresh(&mut self) {
        for slot in (0..SLOTS).rev() {
            let may = self.may(slot);
            if self.holds[slot] == Hold::Idle && self.plain.may[slot] != may {
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
        self.lives.born(node, 0);
        self.lives.end(node, tokens, Hint::None, Hints::default());
        self.plain.stamps[slot] = self.plain.now;
        let may = self.may(slot);
        let past = self.lives.of(node);
        let at = SlotIx::new(slot as u32);
        self.queues.insert(at, class, past, Place::Back, may);
        self.holds[slot] = Hold::Idle;
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
        let hold = self.holds[slot];
        match (self.chance.below(16), hold) {
            (0..6, Hold::Free) => {
                let parent = self.chance.below(slot + 2).checked_sub(2);
                self.parents[slot] = parent.filter(|&parent| self.holds[parent] != Hold::Free);
                if self.chance.one_in(4) {
                    self.holds[slot] = Hold::Pinned;
                } else {
                    self.insert(slot);
                }
            }
            (0..4, Hold::Pinned) => self.insert(slot),
            (0 | 1, Hold::Idle) => {
                self.queues.remove(at);
                self.plain.remove(slot);
                self.holds[slot] = Hold::Pinned;
            }
            (2, _) if hold != Hold::Free => self.read[slot] ^= true,
            (3 | 4, Hold::Idle) => assert_eq!(self.queues.see(at), self.plain.see(slot)),
            (5, Hold::Idle) => {
                self.queues.unsee(at);
                self.plain.unsee(slot);
            }
            (6, _) => {
                let ticks = 1 + self.chance.below(20) as u32;
                self.plain.now += ticks;
                self.plain.last = 900 + self.chance.below(100) as u32;
                let (last, now) = (u64::from(self.plain.last), u64::from(self.plain.now));
                self.queues.used(last, Life::default(), now);
            }
            (7..11, _) => {
                if let Some(victim) = self.victim() {
                    self.queues.evict(SlotIx::new(victim as u32));
                    self.plain.remove(victim);
                    self.holds[victim] = Hold::Free;
                    self.read[victim] = false;
                }
            }
            (11..14, _) => {
                let stamps = self.plain.stamps;
                let mut unseen = Vec::new();
                let limit = self.chance.below(9);
                let stamps = &|slot: SlotIx| stamps[slot.at()];
                self.queues
                    .unseen(limit, stamps, &mut |_| None, &mut unseen);
                for slot in unseen {
                    assert_eq!(self.queues.see(slot), self.plain.see(slot.at()));
                }
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
        let stamps = self.plain.stamps;
        let stamps = &|slot: SlotIx| stamps[slot.at()];
        for (head, list) in self.plain.lists.iter().enumerate() {
            let own: Vec<SlotIx> = self.queues.from(self.queues.lists.front(head)).collect();
            assert_eq!(own, slots(list), "list {head}");
            let seen = list.iter().take_while(|&&slot| self.plain.seen[slot]);
            let seen = seen.count();
            assert_eq!(self.queues.seen.count(head), seen, "seen of list {head}");
            assert!(list[seen..].iter().all(|&slot| !self.plain.seen[slot]));
        }
        for (slot, &hold) in self.holds.iter().enumerate() {
            let at = SlotIx::new(slot as u32);
            assert_eq!(self.queues.holds(at), hold == Hold::Idle);
            if hold == Hold::Idle {
                let may = self.plain.may[slot];
                assert!(
                    self.queues.agrees(at, may),
                    "{slot}: {may:?}, {}",
                    self.queues.marks[slot]
                );
                assert_eq!(self.queues.seen(at), self.plain.seen[slot], "{slot}");
            }
        }
        let mut ahead = Vec::new();
        self.queues
            .ahead(usize::MAX, stamps, &mut |_| None, &mut ahead);
        let waiting = &self.plain.lists[WAITING];
        assert_eq!(
            ahead,
            slots(&[&waiting[..], &self.plain.ahead(WAITING)].concat())
        );
        for limit in [0, 1, 2, 3, 5, 8, SLOTS] {
            let mut unseen = Vec::new();
            self.queues
                .unseen(limit, stamps, &mut |_| None, &mut unseen);
            assert_eq!(unseen, slots(&self.plain.unseen(limit)), "{limit} ahead");
        }
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
