//! What goes next is known ahead, under every order: what is said goes, and what copies ahead have had the
//! time to copy is not lost.

use crate::yard::{KINDS, Yard, and_one, cat, config, text};
use blockyard_core::{Config, EvictionPolicy, Hints, HostCopies, Priority, Retention, Tier};
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

/// Law: INV-20l
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

/// Law: INV-20l
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

/// Law: INV-20l
#[test]
fn the_order_is_told_where_a_shrink_leaves_a_block_beyond_the_size() {
    for policy in KINDS {
        let yard = Yard::of(Config {
            policy,
            ..config(8, 0)
        });
        yard.ends_busy();
        let [first, second, third, last] = [1, 2, 3, 4].map(|name| yard.begin(&text(name, 1)).0);
        let parent = yard.run(&text(9, 1));
        yard.finish(first);
        // Its child has a lower slot, so that it must stay.
        let child = yard.run(&text(9, 2));
        for lease in [parent, child, second, third] {
            yard.finish(lease);
        }
        yard.resize(Tier::DEVICE, 5);
        yard.finish(last);
        let order = yard.cache.lock().eviction_order(Tier::DEVICE);
        let order = order.expect("it is told");
        assert_eq!(order.len() as u64, yard.device().idle, "{policy:?}");
    }
}

/// Law: INV-20l
#[test]
fn a_victim_nearer_than_its_score_says_keeps_its_copy() {
    let yard = Yard::of(Config {
        policy: EvictionPolicy::Heap,
        ..config(4, 2)
    });
    let end = |name: u32, blocks: u64, priority: u64| {
        let lease = yard.run(&text(name, blocks));
        let hints = Hints {
            priority: Some(Priority::new(priority).expect("at most 100")),
            ..Hints::default()
        };
        let ended = yard.cache.lock().finish(&[lease.id()], hints, None);
        ended.expect("it runs");
        lease.spend();
        yard.sound();
    };
    end(1, 2, 90);
    end(1, 1, 0);
    end(7, 1, 50);
    yard.copy_down(2);
    // The parent has the lowest score, and goes after its child, the last of all.
    assert_eq!(yard.demote(3), None, "no nearer victim loses its copy");
    yard.squeeze(1);
    assert_eq!(yard.hits(&text(7, 1)), [0, 1, 0, 0]);
}
