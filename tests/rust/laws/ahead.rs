//! What goes next is known ahead, under every order: what is said goes, and what copies ahead have had the
//! time to copy is not lost.

use crate::yard::{KINDS, Yard, and_one, cat, config, text};
use blockyard_core::{Config, EvictionPolicy, HostCopies, Retention, Tier};
use std::collections::BTreeSet;

const DEVICE: u32 = 40;

/// Prompts that branch, some of them hinted at, by seed.
struct Talks {
    chance: u64,
}

impl Talks {
    fn below(&mut self, most: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.chance = self.chance.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.chance;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % most
    }

    fn prompt(&mut self) -> Vec<u32> {
        let family = text(self.below(6) as u32, 11);
        let length = 1 + self.below(11) as usize;
        let stem = &family[..length * 4];
        if self.below(3) == 0 {
            stem.to_vec()
        } else {
            cat(stem, &text(10 + self.below(9) as u32, 1))
        }
    }

    fn retention(&mut self) -> Retention {
        match self.below(5) {
            0 => Retention::SessionEnded,
            1 => Retention::Retain,
            _ => Retention::Ordinary,
        }
    }

    /// One request from its begin to its end.
    fn talk(&mut self, yard: &Yard) -> Vec<u32> {
        let prompt = self.prompt();
        let (lease, begun) = yard.begin(&and_one(&prompt));
        yard.land(&begun.plans);
        yard.seal(&lease, prompt.len() as u64);
        yard.finish_as(lease, self.retention());
        prompt
    }
}

fn yard(policy: EvictionPolicy, host: u32) -> Yard {
    Yard::of(Config {
        policy,
        host_copies: Some(HostCopies::Last),
        ..config(DEVICE, host)
    })
}

#[test]
fn what_is_said_to_go_next_goes_one_by_one_and_at_once() {
    for policy in KINDS {
        for seed in 0..8 {
            let (yard, mut talks) = (yard(policy, 0), Talks { chance: seed });
            for _ in 0..30 {
                talks.talk(&yard);
                let order = || yard.cache.lock().eviction_order(Tier::DEVICE).unwrap();
                let before = order();
                let gone = talks.below(before.len() as u64 + 1) as usize;
                yard.squeeze(gone as u32);
                let after: BTreeSet<u32> = order().into_iter().collect();
                let left: BTreeSet<u32> = before[gone..].iter().copied().collect();
                assert_eq!(
                    left, after,
                    "{policy:?}, seed {seed}: {gone} of {before:?} went"
                );
            }
        }
    }
}

#[test]
fn no_victim_goes_without_a_copy_while_copies_ahead_keep_up() {
    for policy in KINDS {
        for seed in 0..4 {
            let (yard, mut talks) = (yard(policy, 2000), Talks { chance: seed });
            let mut known: Vec<Vec<u32>> = Vec::new();
            for _ in 0..40 {
                known.push(talks.talk(&yard));
                // No prompt is longer, so that none needs more at once.
                while let Some(plan) = yard.demote(13) {
                    yard.land(&[plan]);
                }
                for prompt in &known {
                    let found: u32 = yard.hits(prompt).iter().sum();
                    let all = prompt.len() as u32 / 4;
                    assert_eq!(found, all, "{policy:?}, seed {seed}: {prompt:?}");
                }
            }
        }
    }
}
