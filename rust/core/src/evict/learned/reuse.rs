//! When blocks of a class are used again, and what that makes a block worth.
//!
//! A class is what is known of a block: the length of its last request, how often it was used, and
//! what was told about its next use. Per class and age there is a hazard: of the blocks that reach
//! this age, the share that is used at it. It is estimated as by Kaplan & Meier (1958): a block of
//! which is known only that it was not used again *yet* counts for the ages that it has outlived.
//!
//! From the hazards follows the worth: see `gittins`. A class of which nothing is known has the
//! hazard of all blocks at every age, and stands where recency puts it.

use std::array;

use crate::evict::hint::NextUse;
use crate::evict::learned::gittins::{BINS, CERTAIN, bin, indices, start};
use crate::evict::learned::history::{History, Use};
use crate::evict::usage::{Hint, Usage};

/// Once, again, and often: see `Reuse::class`.
const GROUPS: usize = 3;
const PLAIN: usize = Usage::LENGTHS as usize * GROUPS;
const ENDED: usize = PLAIN + NextUse::STEPS as usize * GROUPS;
const RETAIN: usize = ENDED + GROUPS;
/// What one block counts.
const ONE: u32 = 1 << 8;
/// As many blocks with the hazard of all stand in each bin of each class from the beginning.
const PRIOR: u64 = 4 * ONE as u64;
/// The part that `fade` forgets, as a power of 2.
const FADE: u32 = 6;

/// What was counted of the blocks of one class.
#[derive(Clone, Hash, Debug)]
struct Row {
    /// Those used at this age.
    hits: [u32; BINS],
    /// Those used at this age, or that outlived it.
    risk: [u32; BINS],
}

#[derive(Hash, Debug)]
pub(crate) struct Reuse {
    rows: Vec<Row>,
    /// For each bin, the first use in the history that has not outlived it.
    outlived: [u16; BINS],
    values: Vec<[u32; BINS]>,
    /// Whose values `learn` makes next.
    next: usize,
}

impl Reuse {
    /// Classes that have values.
    pub(crate) const CLASSES: usize = RETAIN + 1;
    /// Calls of `learn` after which all values are new.
    const TURNS: usize = RETAIN / GROUPS + 1;

    pub(crate) fn new() -> Self {
        let mut reuse = Self {
            rows: vec![
                Row {
                    hits: [0; BINS],
                    risk: [0; BINS]
                };
                Self::CLASSES
            ],
            outlived: [0; BINS],
            values: vec![[0; BINS]; Self::CLASSES],
            next: 0,
        };
        for _ in 0..Self::TURNS {
            reuse.learn();
        }
        reuse
    }

    pub(crate) fn class(usage: Usage) -> u8 {
        let group = match usage.uses() {
            0 | 1 => 0,
            // Ghosts know uses of long ago: "often" needs one of late, too.
            4.. if usage.found() => 2,
            _ => 1,
        };
        let class = match usage.hint() {
            Hint::None => usize::from(usage.length().min(Usage::LENGTHS - 1)) * GROUPS + group,
            Hint::Soon(time) => PLAIN + usize::from(time.step()) * GROUPS + group,
            Hint::Ended => ENDED + group,
            Hint::Retain => RETAIN,
        };
        class as u8
    }

    /// Whether the blocks of a class were used more than once.
    pub(crate) fn again(class: u8) -> bool {
        usize::from(class) < RETAIN && usize::from(class) % GROUPS > 0
    }

    /// The worth of a block of a class at an age; it never rises with age.
    pub(crate) fn value(&self, class: u8, age: u32) -> u32 {
        self.values
            .get(usize::from(class))
            .map_or(0, |values| values[bin(age)])
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.rows) + size_of_val(&*self.values)
    }

    /// Places in the history.
    pub(crate) fn cursors(&mut self) -> &mut [u16] {
        &mut self.outlived
    }

    /// It is `now`: counts the blocks that have outlived a bin since.
    pub(crate) fn advance(&mut self, history: &History, now: u32) {
        let uses = history.uses();
        for (bin, outlived) in self.outlived.iter_mut().enumerate() {
            let end = start(bin + 1);
            while let Some(used) = uses.get(usize::from(*outlived))
                && now.wrapping_sub(used.stamp) >= end
            {
                if used.is(Use::LIVE) {
                    count(&mut self.rows[usize::from(used.class)].risk[bin]);
                }
                *outlived += 1;
            }
        }
    }

    /// A block of this class was used again at this age.
    pub(crate) fn used_again(&mut self, class: u8, age: u32) {
        let (row, bin) = (&mut self.rows[usize::from(class)], bin(age));
        count(&mut row.hits[bin]);
        count(&mut row.risk[bin]);
    }

    /// Forgets a part of what was counted.
    pub(crate) fn fade(&mut self) {
        for row in &mut self.rows {
            for count in row.hits.iter_mut().chain(&mut row.risk) {
                *count -= *count >> FADE;
            }
        }
    }

    /// Makes values from what was counted, of the classes that differ from each other only in how
    /// often their blocks were used.
    pub(crate) fn learn(&mut self) {
        let first = self.next * GROUPS;
        self.next = (self.next + 1) % Self::TURNS;
        let all = self.hazard_of_all();
        for class in first..(first + GROUPS).min(Self::CLASSES) {
            let row = &self.rows[class];
            let mut values = indices(&array::from_fn(|bin| {
                let hits = u64::from(row.hits[bin]) * CERTAIN + PRIOR * all;
                hits / (u64::from(row.risk[bin]) + PRIOR)
            }));
            // A parent was used no later and no less often than its children: where values do not
            // rise with age, nor fall with uses, the front of a list is nearly always a leaf.
            let mut least = u32::MAX;
            for (bin, value) in values.iter_mut().enumerate() {
                least = least.min(*value);
                let fewer_uses = if class > first {
                    self.values[class - 1][bin]
                } else {
                    0
                };
                *value = least.max(fewer_uses);
            }
            self.values[class] = values;
        }
    }

    /// The hazard of all blocks, whatever their class and age; one in 16 until something is known.
    fn hazard_of_all(&self) -> u64 {
        let (mut hits, mut risk) = (u64::from(ONE), 16 * u64::from(ONE));
        for row in &self.rows {
            hits += row.hits.iter().map(|&count| u64::from(count)).sum::<u64>();
            risk += row.risk.iter().map(|&count| u64::from(count)).sum::<u64>();
        }
        hits * CERTAIN / risk
    }
}

fn count(count: &mut u32) {
    *count = count.saturating_add(ONE);
}

#[cfg(test)]
mod tests {
    use super::{Reuse, bin};
    use crate::evict::hint::NextUse;
    use crate::evict::learned::history::History;
    use crate::evict::usage::{Hint, Usage};

    /// Blocks of two classes in turn: those of the first are used again after 256 uses.
    fn taught() -> Reuse {
        let (mut reuse, mut history) = (
            Reuse::new(),
            History::new(1 << 12).expect("there is memory"),
        );
        for now in 0..3000 {
            reuse.advance(&history, now);
            if now % 2 == 0 {
                if let Some(last) = history.last(now % 256) {
                    let used = history.end(last);
                    reuse.used_again(used.class, now - used.stamp);
                }
                history.push(now % 256, now, 0, 0);
            } else {
                history.push(now + 10_000, now, 3, 0);
            }
        }
        for _ in 0..Reuse::TURNS {
            reuse.learn();
        }
        reuse
    }

    #[test]
    fn what_comes_back_is_worth_more_until_its_time_has_passed() {
        let reuse = taught();
        assert!((0..250).all(|age| reuse.value(0, age) > reuse.value(3, age)));
        assert!(reuse.value(0, 250) > reuse.value(3, 50));
        let rows = [&reuse.rows[0], &reuse.rows[3]];
        assert_eq!(
            rows.map(|row| row.hits.iter().sum::<u32>() > 0),
            [true, false]
        );
        assert!(rows[1].risk[0] >= rows[1].risk[bin(1000)] && rows[1].risk[bin(1000)] > 0);
    }

    #[test]
    fn values_neither_rise_with_age_nor_fall_with_uses() {
        let reuse = taught();
        for values in &reuse.values {
            assert!(values.windows(2).all(|pair| pair[0] >= pair[1]));
        }
        for age in [1, 100, 10_000] {
            let of = |uses, found| {
                let usage = Usage::told(uses, 0, found, Hint::None);
                reuse.value(Reuse::class(usage), age)
            };
            assert!(of(1, false) <= of(2, false) && of(3, false) <= of(4, true));
        }
    }

    #[test]
    fn each_hint_has_classes_of_its_own() {
        let mut classes = Vec::new();
        let soon = (0..NextUse::STEPS).map(|step| Hint::Soon(NextUse::of_step(step)));
        for hint in [Hint::None, Hint::Ended, Hint::Retain]
            .into_iter()
            .chain(soon)
        {
            for uses in [1, 2, 4] {
                let usage = Usage::told(uses, 0, true, hint);
                let class = Reuse::class(usage);
                assert!(Reuse::again(class) == (uses > 1) || hint == Hint::Retain);
                classes.push(class);
            }
        }
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(classes.len(), 3 * 9 + 1);
        assert!(
            classes
                .iter()
                .all(|&class| usize::from(class) < Reuse::CLASSES)
        );
    }

    #[test]
    fn what_was_counted_fades() {
        let mut reuse = taught();
        let before: u32 = reuse.rows[0].hits.iter().sum();
        for _ in 0..45 {
            reuse.fade();
        }
        let after: u32 = reuse.rows[0].hits.iter().sum();
        assert!(
            (before * 9 / 20..before * 11 / 20).contains(&after),
            "{before} {after}"
        );
    }
}
