//! The one cost function: whether copying a prefix up beats computing it. Whole nanoseconds and no
//! clock, so that every rank and every replay decides alike.

use crate::base::{MAX_TIERS, Tier};

/// What moving and computing one block take, in nanoseconds: measured once, the same on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BlockCosts {
    /// Loading a block, by the tier that it comes from; the device's own is not used.
    pub load: [u64; MAX_TIERS],
    /// Computing the first block of a sequence.
    pub compute: u64,
    /// What computing a block takes more for each block before it: attention.
    pub attend: u64,
}

impl BlockCosts {
    /// How many leading blocks of `runs` it is best to load, where they follow `after` others and
    /// `queue` blocks of each tier are on their way up already.
    ///
    /// Tiers load beside each other, and the blocks of one tier one after the other. A run is taken
    /// whole or not at all: each block more takes longer to compute than the one before it, and as
    /// long to load. What a run saves is therefore convex in its length, so that it is most at an
    /// end: with none of it, or with all.
    pub fn best(
        &self,
        runs: impl Iterator<Item = (Tier, u32)>,
        after: u32,
        queue: [u32; MAX_TIERS],
    ) -> u32 {
        let [compute, attend] = [self.compute, self.attend].map(u128::from);
        let mut loading = queue.map(u128::from);
        let (mut blocks, mut most, mut best) = (0_u128, 0, 0);
        let mut longest = 0;
        for (tier, run) in runs {
            let run = u128::from(run);
            blocks += run;
            let lane = &mut loading[tier.at()];
            *lane += run;
            longest = u128::max(longest, *lane * u128::from(self.load[tier.at()]));
            // Blocks before each, summed: after, after + 1, and so on.
            let before = blocks * u128::from(after) + blocks * blocks.saturating_sub(1) / 2;
            let computing = (blocks * compute).saturating_add(before.saturating_mul(attend));
            let saved = computing.saturating_sub(longest);
            if saved > most {
                (most, best) = (saved, blocks as u32);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_costs(host: u64, disk: u64) -> BlockCosts {
        let mut load = [0; MAX_TIERS];
        (load[1], load[2]) = (host, disk);
        let (compute, attend) = (100, 10);
        BlockCosts {
            load,
            compute,
            attend,
        }
    }

    fn worth(block_costs: BlockCosts, blocks: u32, after: u32, queue: u32) -> bool {
        let mut queues = [0; MAX_TIERS];
        queues[1] = queue;
        let best = block_costs.best([(Tier::HOST, blocks)].into_iter(), after, queues);
        assert!(best == 0 || best == blocks, "all or nothing");
        best > 0
    }

    #[test]
    fn a_load_pays_when_it_takes_less_and_not_when_it_takes_as_long() {
        // Blocks 2, 3 and 4: 120 + 130 + 140.
        assert!(worth(block_costs(129, 0), 3, 2, 0));
        assert!(!worth(block_costs(130, 0), 3, 2, 0), "as long");
        assert!(worth(block_costs(77, 0), 3, 2, 2) && !worth(block_costs(78, 0), 3, 2, 2));
        assert!(
            !worth(block_costs(0, 0), 0, 9, 0),
            "there is nothing to save"
        );
    }

    #[test]
    fn the_sum_is_what_adding_block_by_block_gives() {
        for (blocks, after, queue, load) in [(7, 3, 2, 90), (7, 3, 2, 110), (1, 0, 0, 41)] {
            let block_costs = BlockCosts {
                load: [load; MAX_TIERS],
                compute: 41,
                attend: 13,
            };
            let computing: u64 = (0..blocks).map(|at| 41 + 13 * u64::from(after + at)).sum();
            let loading = u64::from(queue + blocks) * load;
            assert_eq!(
                worth(block_costs, blocks, after, queue),
                loading < computing
            );
        }
    }

    #[test]
    fn tiers_load_beside_each_other_and_a_slow_run_is_left_with_what_is_behind_it() {
        let (host, disk) = (Tier::HOST, Tier::DISK);
        let runs = [(host, 4), (disk, 2), (host, 4)];
        let best = |block_costs: BlockCosts, queue| block_costs.best(runs.into_iter(), 0, queue);
        let free = [0; MAX_TIERS];
        // The disk's two blocks take as long as the host's eight.
        assert_eq!(best(block_costs(50, 200), free), 10);
        assert_eq!(best(block_costs(50, 1000), free), 4, "the disk is too slow");
        let mut queue = free;
        queue[2] = 20;
        assert_eq!(best(block_costs(50, 200), queue), 4, "or too busy");
        queue[1] = 20;
        assert_eq!(best(block_costs(50, 200), queue), 0);
        // All ten are worth it together, where the first run alone is not.
        assert_eq!(best(block_costs(110, 120), free), 10);
    }

    #[test]
    fn nothing_overflows() {
        let most = BlockCosts {
            load: [u64::MAX; MAX_TIERS],
            compute: u64::MAX,
            attend: u64::MAX,
        };
        assert!(worth(most, u32::MAX, u32::MAX, u32::MAX));
        let slow = BlockCosts { attend: 0, ..most };
        assert!(!worth(slow, u32::MAX, u32::MAX, u32::MAX));
    }
}
