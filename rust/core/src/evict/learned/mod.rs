//! What promises the fewest hits for its slot goes first, as learned from when blocks like it were
//! used again; or by another order, while that finds more: see `reuse` and `duel`.
//!
//! Both learn from a sample of the blocks. All is a function of the uses, so that it is the same
//! wherever the uses are: there is no clock, no chance, and no floating point.

mod duel;
mod gittins;
mod history;
mod reuse;

use crate::base::Result;
use crate::evict::learned::duel::Duel;
use crate::evict::learned::history::History;
use crate::evict::learned::reuse::Reuse;
use crate::evict::order::Order;
use crate::evict::usage::{Asks, Usage};

/// Uses after which some values are made anew.
const STEP: usize = 512;

#[derive(Hash, Debug)]
pub(crate) struct Learned {
    history: History,
    reuse: Reuse,
    duel: Duel,
    /// Sampled uses until some of what was learned fades.
    until_fade: usize,
    /// Sampled uses until some values are made anew.
    until_step: usize,
}

impl Learned {
    /// Memory that it has asked for, and its own.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.history.bytes() + self.reuse.bytes() + self.duel.bytes()
    }

    /// A block of the sample was used.
    #[inline(never)]
    fn sample(&mut self, key: u32, usage: Usage, now: u32) {
        if self.history.is_full() {
            self.duel.compact(&mut self.history, self.reuse.cursors());
        }
        self.reuse.advance(&self.history, now);
        let before = self.history.last(key).map_or(0, |last| {
            let last = self.history.end(last);
            self.reuse
                .used_again(last.class, now.wrapping_sub(last.stamp));
            last.marks
        });
        let marks = self.duel.used(before);
        self.history.push(key, now, Reuse::class(usage), marks);
        self.duel.settle(&mut self.history, &self.reuse, now);

        self.until_fade -= 1;
        if self.until_fade == 0 {
            self.until_fade = self.history.shadow();
            self.reuse.fade();
        }
        self.until_step -= 1;
        if self.until_step == 0 {
            self.until_step = Self::step(&self.history);
            self.reuse.learn();
        }
    }

    fn step(history: &History) -> usize {
        (STEP >> history.rate().min(STEP.ilog2())).max(1)
    }
}

impl Order for Learned {
    const CLASSES: usize = Duel::PASSES as usize + 1;
    const ASKS: Asks = Asks::Uses;

    fn new(slots: usize) -> Result<Self> {
        let history = History::new(slots)?;
        Ok(Self {
            duel: Duel::new(slots, history.shadow()),
            until_fade: history.shadow(),
            until_step: Self::step(&history),
            history,
            reuse: Reuse::new(),
        })
    }

    /// What was learned stays; the duel begins again, with a sample for the new size.
    fn resize(&mut self, slots: usize) {
        if let Ok(new) = Self::new(slots) {
            let reuse = std::mem::replace(self, new).reuse;
            self.reuse = reuse;
            self.reuse.cursors().fill(0);
        }
    }

    #[inline]
    fn used(&mut self, key: u64, usage: Usage, now: u32) {
        if let Some(key) = self.history.sampled(key) {
            self.sample(key, usage, now);
        }
    }

    fn class(&self, usage: Usage) -> u8 {
        self.duel.class(usage)
    }

    fn value(&self, class: u8, age: u32) -> u32 {
        self.duel.value(&self.reuse, class, age)
    }

    fn evicted(&mut self, _class: u8) {
        self.duel.evicted();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};
    use std::hash::{DefaultHasher, Hash, Hasher};

    use super::Learned;
    use crate::evict::hint::NextUse;
    use crate::evict::order::Order;
    use crate::evict::recency::Recency;
    use crate::evict::usage::{Hint, Usage};

    /// A cache of blocks without parents.
    struct Cache<O> {
        order: O,
        slots: usize,
        now: u32,
        /// By class: keys and stamps; those whose stamp is not the last are stale.
        lists: Vec<VecDeque<(u64, u32)>>,
        held: HashMap<u64, u32>,
        uses: HashMap<u64, u8>,
    }

    impl<O: Order> Cache<O> {
        fn new(slots: usize) -> Self {
            let lists = vec![VecDeque::new(); O::CLASSES];
            let (held, uses) = (HashMap::new(), HashMap::new());
            Self {
                order: O::new(slots).expect("there is memory"),
                slots,
                now: 0,
                lists,
                held,
                uses,
            }
        }

        fn evict(&mut self) {
            for list in &mut self.lists {
                while list
                    .front()
                    .is_some_and(|(key, stamp)| self.held.get(key) != Some(stamp))
                {
                    list.pop_front();
                }
            }
            let fronts = self.lists.iter().enumerate();
            let values = fronts.filter_map(|(class, list)| {
                let &(key, stamp) = list.front()?;
                Some((
                    self.order.value(class as u8, self.now - stamp),
                    stamp,
                    class,
                    key,
                ))
            });
            if let Some((.., class, key)) = values.min() {
                self.held.remove(&key);
                self.order.evicted(class as u8);
            }
        }

        /// Returns whether it was found.
        fn touch(&mut self, key: u64, length: u8) -> bool {
            let found = self.held.contains_key(&key);
            if !found && self.held.len() == self.slots {
                self.evict();
            }
            self.now += 1;
            let uses = self.uses.entry(key).or_default();
            *uses = (*uses + 1).min(15);
            let usage = Usage::told(*uses, length, found, Hint::None);
            self.order.used(key, usage, self.now);
            self.lists[usize::from(self.order.class(usage))].push_back((key, self.now));
            self.held.insert(key, self.now);
            found
        }

        fn hits(&mut self, uses: impl Iterator<Item = (u64, u8)>) -> usize {
            uses.map(|(key, length)| usize::from(self.touch(key, length)))
                .sum()
        }
    }

    fn digest(order: &Learned) -> u64 {
        let mut hasher = DefaultHasher::new();
        order.hash(&mut hasher);
        hasher.finish()
    }

    /// Long requests are never repeated; short ones are, after longer than recency keeps them.
    fn mixed(count: u64) -> impl Iterator<Item = (u64, u8)> {
        (0..count).map(|at| {
            if at % 4 == 0 {
                (at / 4 % 300, 0)
            } else {
                (1000 + at, 3)
            }
        })
    }

    #[test]
    fn it_learns_which_class_comes_back() {
        let recency = Cache::<Recency>::new(600).hits(mixed(40_000));
        let learned = Cache::<Learned>::new(600).hits(mixed(40_000));
        assert_eq!(recency, 0);
        assert!(learned > 8000, "{learned} of 10,000");
    }

    #[test]
    fn of_a_loop_it_keeps_a_part_in_caches_of_any_size() {
        for slots in [30_u64, 300, 3000] {
            let hits = Cache::<Learned>::new(slots as usize)
                .hits((0..40 * slots).map(|at| (at % (3 * slots + slots / 3), 1)));
            assert!(hits as u64 > 40 * slots / 5, "{slots}: {hits}");
        }
    }

    #[test]
    fn the_same_uses_make_the_same_order() {
        let [mut one, mut other] = [(); 2].map(|()| Cache::<Learned>::new(200));
        one.hits(mixed(5000));
        other.hits(mixed(5000));
        assert_eq!(digest(&one.order), digest(&other.order));
        other.hits(mixed(9));
        assert_ne!(digest(&one.order), digest(&other.order));
    }

    #[test]
    fn growth_keeps_what_was_learned() {
        let mut cache = Cache::<Learned>::new(600);
        cache.hits(mixed(40_000));
        let [short, long] = [0, 3].map(|length| Usage::told(1, length, false, Hint::None));
        cache.order.resize(700);
        cache.slots = 700;
        let values = [short, long].map(|usage| {
            let class = cache
                .order
                .class(Usage::told(4, usage.length(), true, usage.hint()));
            cache.order.reuse.value(class, 100)
        });
        assert!(values[0] > values[1]);
        assert!(cache.hits(mixed(20_000)) > 4000);
    }

    #[test]
    fn a_slot_costs_less_than_a_byte() {
        for (slots, most) in [
            (0, 24 << 10),
            (100, 64 << 10),
            (60_000, 144 << 10),
            (1 << 20, 1 << 20),
        ] {
            let bytes = Learned::new(slots).expect("there is memory").bytes();
            assert!(bytes <= most, "{slots}: {bytes}");
        }
    }

    #[test]
    fn a_cache_of_any_size_may_grow_at_any_time() {
        let mut order = Learned::new(0).expect("there is memory");
        for (at, slots) in (0..).zip([0, 1, 2, 7, 100, 5000, 70_000, 3, 0]) {
            order.resize(slots);
            for now in at * 3000..(at + 1) * 3000 {
                let uses = (now % 7) as u8;
                let hint = Hint::Soon(NextUse::of_step((now % 9) as u8));
                let usage = Usage::told(uses, uses, uses > 1, hint);
                order.used(u64::from(now * now % 1999), usage, now);
                assert!(usize::from(order.class(usage)) < Learned::CLASSES);
                order.evicted(order.class(usage));
            }
        }
    }

    #[test]
    fn the_clock_may_wrap() {
        let mut order = Learned::new(100).expect("there is memory");
        for at in 0..4000_u32 {
            let usage = Usage::told(1, 0, false, Hint::None);
            order.used(
                u64::from(at % 500),
                usage,
                (u32::MAX - 2000).wrapping_add(at),
            );
        }
        assert!(order.value(0, 10) >= order.value(0, 1000));
    }
}
