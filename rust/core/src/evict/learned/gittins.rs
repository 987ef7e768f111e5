//! What a block is worth, from when blocks like it are used again.
//!
//! That is its Gittins index (Gittins 1979): the most hits per use waited that it promises, over all
//! times to wait. If the hazard is the same for each doubling of age, that is recency.

/// Bins of ages, in uses. The first has those below 2 to the power of `FIRST_LOG`; then two make a
/// doubling.
pub(crate) const BINS: usize = 40;
const FIRST_LOG: u32 = 4;
/// A probability of 1.
pub(crate) const CERTAIN: u64 = 1 << 16;

/// The bin of an age.
pub(crate) fn bin(age: u32) -> usize {
    let age = age.max(1 << (FIRST_LOG - 1));
    let log = age.ilog2();
    let half = (age >> (log - 1)) & 1;
    let bin = (2 * log + half + 1).saturating_sub(2 * FIRST_LOG);
    (bin as usize).min(BINS - 1)
}

/// The first age in a bin.
pub(crate) fn start(bin: usize) -> u32 {
    let Some(halves) = (bin as u32).checked_sub(1) else {
        return 0;
    };
    (2 + halves % 2) << (FIRST_LOG - 1 + halves / 2)
}

/// The Gittins index at each age, as a number that fits: see `narrow`.
///
/// From the last bin to the first. To wait on after a bin is better than to stop there, if what
/// follows promises more hits per use than the bin itself; then both are one wait.
pub(crate) fn indices(hazards: &[u64; BINS]) -> [u32; BINS] {
    #[derive(Clone, Copy, Default)]
    struct Wait {
        /// The probability of a hit.
        hit: u64,
        /// Uses until the hit or the end, in sixteenths.
        time: u64,
        /// The probability that there is none.
        missed: u64,
    }
    let mut waits = [Wait::default(); BINS];
    let mut count = 0;
    let mut values = [0; BINS];
    for bin in (0..BINS).rev() {
        let hit = hazards[bin].min(CERTAIN);
        let width = u64::from(start(bin + 1) - start(bin)) << 4;
        // A hit comes in the middle of its bin.
        let time = width - width * hit / (2 * CERTAIN);
        let mut wait = Wait {
            hit,
            time,
            missed: CERTAIN - hit,
        };
        while count > 0 {
            let next = waits[count - 1];
            if next.hit * wait.time <= wait.hit * next.time {
                break;
            }
            wait.hit += wait.missed * next.hit / CERTAIN;
            wait.time += wait.missed * next.time / CERTAIN;
            wait.missed = wait.missed * next.missed / CERTAIN;
            count -= 1;
        }
        waits[count] = wait;
        count += 1;
        values[bin] = narrow((wait.hit << 40) / wait.time.max(1));
    }
    values
}

/// A number of 64 bits in 32, which keep its order: 6 for the place of its highest bit, 26 for the
/// bits that follow.
fn narrow(wide: u64) -> u32 {
    let wide = wide.max(1);
    let log = wide.ilog2();
    let rest = (wide << (63 - log) << 1) >> 38;
    log << 26 | rest as u32
}

#[cfg(test)]
mod tests {
    use super::{BINS, CERTAIN, bin, indices, narrow, start};

    #[test]
    fn bins_follow_one_another() {
        assert_eq!(
            [0, 1, 15, 16, 23, 24, 31, 32].map(bin),
            [0, 0, 0, 1, 1, 2, 2, 3]
        );
        for at in 1..BINS {
            assert_eq!((bin(start(at) - 1), bin(start(at))), (at - 1, at));
        }
        assert_eq!(bin(u32::MAX), BINS - 1);
    }

    #[test]
    fn narrow_numbers_keep_their_order() {
        let numbers = [
            0,
            1,
            2,
            3,
            4,
            1000,
            1001,
            1 << 40,
            (1 << 40) + (1 << 20),
            u64::MAX,
        ];
        assert!(
            numbers
                .windows(2)
                .skip(1)
                .all(|pair| narrow(pair[0]) < narrow(pair[1]))
        );
        assert_eq!(narrow(0), narrow(1));
    }

    #[test]
    fn with_the_same_hazard_at_each_doubling_the_index_is_recency() {
        let values = indices(&[CERTAIN / 16; BINS]);
        // Two bins to a doubling, of equal width: what is in both is told apart by its stamp.
        assert!(values[1..].windows(2).all(|pair| pair[0] >= pair[1]));
        assert!(values[1..].windows(3).all(|bins| bins[0] > bins[2]));
        let double = narrow(2 << 20) - narrow(1 << 20);
        let (young, old) = (values[11], values[13]);
        assert!((young - old).abs_diff(double) < double / 8);
    }

    #[test]
    fn the_index_looks_as_far_ahead_as_it_pays() {
        let mut hazards = [0; BINS];
        hazards[20] = CERTAIN;
        let values = indices(&hazards);
        // The nearer the certain hit, the more it is worth; after it there is nothing.
        assert!(values[..=20].windows(2).all(|pair| pair[0] < pair[1]));
        assert!(values[21..].iter().all(|&value| value == 0));
        // From the first age: one hit in as many uses as half of the bin is away.
        let away = u64::midpoint(u64::from(start(20)), u64::from(start(21)));
        assert!(values[0].abs_diff(narrow((CERTAIN << 40) / (16 * away))) < 1 << 20);
    }
}
