//! The one cost function: whether copying a prefix up beats computing it. Whole nanoseconds and no
//! clock, so that every rank and every replay decides alike.

/// What moving and computing one block take, in nanoseconds: measured once, the same on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Speeds {
    /// Loading a block.
    pub load: u64,
    /// Computing the first block of a sequence.
    pub compute: u64,
    /// What computing a block takes more for each block before it: attention.
    pub attend: u64,
}

impl Speeds {
    /// Whether loading `blocks` blocks that follow `after` others, behind `queue` blocks that are
    /// on their way up, takes less time than computing them.
    ///
    /// All or nothing: each block more takes longer to compute than the one before it, and as long
    /// to load. What a run saves is therefore convex in its length, so that it is most at an end:
    /// with none of it, or with all.
    pub fn worth(&self, blocks: u32, after: u32, queue: u32) -> bool {
        let [blocks, after, queue] = [blocks, after, queue].map(u128::from);
        let [load, compute, attend] = [self.load, self.compute, self.attend].map(u128::from);
        // Blocks before each, summed: after, after + 1, and so on.
        let before = blocks * after + blocks * blocks.saturating_sub(1) / 2;
        let computing = (blocks * compute).saturating_add(before.saturating_mul(attend));
        (queue + blocks) * load < computing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_pays_when_it_takes_less_and_not_when_it_takes_as_long() {
        let speeds = |load| Speeds {
            load,
            compute: 100,
            attend: 10,
        };
        // Blocks 2, 3 and 4: 120 + 130 + 140.
        assert!(speeds(129).worth(3, 2, 0));
        assert!(!speeds(130).worth(3, 2, 0), "as long");
        assert!(speeds(77).worth(3, 2, 2) && !speeds(78).worth(3, 2, 2));
        assert!(!speeds(0).worth(0, 9, 0), "there is nothing to save");
    }

    #[test]
    fn the_sum_is_what_adding_block_by_block_gives() {
        for (blocks, after, queue, load) in [(7, 3, 2, 90), (7, 3, 2, 110), (1, 0, 0, 41)] {
            let speeds = Speeds {
                load,
                compute: 41,
                attend: 13,
            };
            let computing: u64 = (0..blocks).map(|at| 41 + 13 * u64::from(after + at)).sum();
            let loading = u64::from(queue + blocks) * load;
            assert_eq!(speeds.worth(blocks, after, queue), loading < computing);
        }
    }

    #[test]
    fn nothing_overflows() {
        let most = Speeds {
            load: u64::MAX,
            compute: u64::MAX,
            attend: u64::MAX,
        };
        assert!(most.worth(u32::MAX, u32::MAX, u32::MAX));
        let slow = Speeds { attend: 0, ..most };
        assert!(!slow.worth(u32::MAX, u32::MAX, u32::MAX));
    }
}
