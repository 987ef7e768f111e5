//! Copies on the host of what the device has used again go first from there, leaf first, and never one
//! that is kept, or that was made for a next victim. (POLICIES, section 4)

use crate::verbs::Verbs as _;
use crate::yard::{KINDS, Yard, and_one, cat, config, each_of, text, three};
use blockyard_core::{Config, HostCopies, Tier, WritePolicy};

fn yards(device: u32, host: u32) -> impl Iterator<Item = Yard> {
    let sizes = Config {
        host_copies: Some(HostCopies::First),
        ..config(device, host)
    };
    each_of(KINDS, sizes)
}

/// Uses a text that the device has.
fn use_again(yard: &Yard, prompt: &[u32]) {
    let (lease, begun) = yard.begin(&and_one(prompt));
    assert_eq!(u64::from(begun.hits[0]) * 4, prompt.len() as u64);
    yard.finish(lease);
}

/// Copies one block more to a full host, which evicts one.
fn squeeze_host(yard: &Yard, name: u32) {
    assert_eq!(yard.host().free, 0, "the host is full");
    let lease = yard.run(&text(name, 1));
    yard.land(&[yard.demote_lease(&lease, 1)]);
    yard.finish(lease);
}

/// Law: INV-20j
#[test]
fn a_copy_of_what_the_device_has_used_again_goes_before_all_else() {
    for yard in yards(8, 4) {
        yard.ends_busy();
        yard.publish_below(&text(1, 2));
        let both = text(2, 2);
        yard.publish(&both);
        yard.copy_down(2);
        assert_eq!(yard.host().free, 0);
        use_again(&yard, &both);
        squeeze_host(&yard, 3);
        squeeze_host(&yard, 4);
        assert_eq!(
            yard.hits(&text(1, 2)),
            [0, 2, 0, 0],
            "the host alone has it"
        );
        assert_eq!(yard.hits(&both), [2, 0, 0, 0]);
        assert!(yard.demote(8).is_some(), "they want a copy again");
    }
}

/// Law: INV-20j
#[test]
fn a_copy_for_the_next_victims_goes_last_and_so_does_one_of_what_comes_next_again() {
    for yard in yards(8, 4) {
        yard.publish_below(&text(1, 2));
        let both = text(2, 2);
        yard.publish(&both);
        yard.copy_down(2);
        squeeze_host(&yard, 3);
        assert_eq!(
            yard.hits(&text(1, 2)),
            [0, 1, 0, 0],
            "not the copy just made"
        );
        use_again(&yard, &both);
        // They are among the next victims again.
        assert!(yard.demote(8).is_none_or(|plan| {
            yard.land(&[plan]);
            true
        }));
        squeeze_host(&yard, 4);
        assert_eq!(yard.hits(&both), [2, 0, 0, 0]);
        yard.squeeze(yard.device().idle as u32);
        assert_eq!(yard.hits(&both)[1], 2, "nothing is lost");
    }
}

/// Law: INV-20j
#[test]
fn a_loaded_block_leaves_a_copy_that_goes_first() {
    for yard in yards(8, 3) {
        yard.publish_below(&text(1, 2));
        let prompt = text(2, 1);
        yard.publish_below(&prompt);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        assert_eq!(begun.hits[1], 1);
        yard.land(&begun.plans);
        squeeze_host(&yard, 3);
        assert_eq!(yard.hits(&text(1, 2)), [0, 2, 0, 0]);
        assert_eq!(yard.hits(&prompt), [1, 0, 0, 0], "one copy is enough");
        yard.finish(lease);
    }
}

/// Law: INV-20j
#[test]
fn what_is_new_takes_the_place_of_a_copy_that_goes_first_and_of_no_next_victim() {
    for policy in KINDS {
        let yard = Yard::of(Config {
            policy,
            write: WritePolicy::Through,
            host_copies: Some(HostCopies::First),
            ..config(12, 4)
        });
        let twice = [text(1, 2), text(2, 2)];
        for prompt in &twice {
            yard.publish(prompt);
            yard.land(&[yard.demote(1).unwrap()]);
            yard.land(&[yard.demote(1).unwrap()]);
        }
        for prompt in &twice {
            use_again(&yard, prompt);
        }
        assert_eq!(
            yard.host().free,
            0,
            "the host has copies of what the device has used again"
        );
        yard.publish(&text(3, 2));
        yard.land(&[yard.demote(2).unwrap()]);
        assert_eq!(yard.hits(&text(3, 2)), [2, 0, 0, 0]);
        yard.squeeze(yard.device().idle as u32);
        assert_eq!(
            yard.hits(&text(3, 2))[1],
            2,
            "{policy:?}: what is new was copied"
        );
        let left: u32 = twice.iter().map(|prompt| yard.hits(prompt)[1]).sum();
        assert_eq!(left, 2, "{policy:?}: for as many others");
    }
}

/// Law: INV-20g, INV-20j
#[test]
fn of_a_path_only_what_has_nothing_else_below_it_goes_first() {
    for yard in yards(8, 4) {
        yard.ends_busy();
        let trunk = text(1, 1);
        yard.publish_below(&text(3, 2));
        // The device drops the end and keeps the start, which is used again.
        yard.publish(&cat(&trunk, &text(2, 1)));
        yard.copy_down(2);
        yard.squeeze(1);
        use_again(&yard, &trunk);
        // While they run, their own copies stay.
        let press = |name: u32| {
            let lease = yard.run(&text(name, 1));
            yard.land(&[yard.demote_lease(&lease, 1)]);
            lease
        };
        let mut leases = vec![press(4)];
        let whole = cat(&trunk, &text(2, 1));
        assert_eq!(
            yard.hits(&whole),
            [1, 1, 0, 0],
            "the start waits for the end"
        );
        leases.extend([press(5), press(6)]);
        assert_eq!(yard.hits(&text(3, 2)), [0, 0, 0, 0]);
        assert_eq!(yard.hits(&whole), [1, 0, 0, 0], "the end went");
        leases.push(press(7));
        let copy = yard.demote(1).map(|plan| plan.len());
        assert_eq!(copy, Some(1), "and then its start");
        for lease in leases {
            yard.finish(lease);
        }
    }
}

/// Law: INV-20j
#[test]
fn a_kept_copy_does_not_go_whoever_uses_its_block() {
    for yard in yards(8, 3) {
        let prompt = text(1, 2);
        let lease = yard.run(&prompt);
        yard.land(&[yard.demote_lease(&lease, 2)]);
        let parked = yard.park(lease, 8);
        use_again(&yard, &prompt);
        assert_eq!(yard.host().pinned, 2);
        yard.publish_below(&text(2, 1));
        squeeze_host(&yard, 3);
        assert_eq!(yard.host().pinned, 2);
        yard.abandon(parked);
    }
}

/// Law: INV-20j
#[test]
fn where_they_go_last_and_on_the_disk_nothing_has_changed() {
    let last = Yard::of(Config {
        host_copies: Some(HostCopies::Last),
        ..config(8, 4)
    });
    last.publish_below(&text(1, 2));
    last.publish(&text(2, 2));
    last.copy_down(2);
    use_again(&last, &text(2, 2));
    squeeze_host(&last, 3);
    assert_eq!(last.hits(&text(1, 2)), [0, 1, 0, 0]);
    let disk = Yard::of(Config {
        host_copies: Some(HostCopies::First),
        ..three(8, 0, 4)
    });
    disk.publish_below(&text(1, 2));
    disk.publish(&text(2, 2));
    disk.copy_down(2);
    use_again(&disk, &text(2, 2));
    let lease = disk.run(&text(3, 1));
    disk.land(&[disk.demote_lease(&lease, 1)]);
    disk.finish(lease);
    assert_eq!(
        disk.hits(&text(1, 2)),
        [0, 0, 1, 0],
        "a write is worth keeping"
    );
}

/// Law: INV-20j
#[test]
fn with_a_full_host_an_eviction_costs_one_copy_down() {
    for yard in yards(64, 128) {
        let ahead = 16;
        let fill = |name: u32| {
            let plan = yard.cache.lock().demote(Tier::DEVICE, ahead);
            if let Some(plan) = plan {
                yard.cache.landed(&[plan]).expect("they are ours");
            }
            let lease = yard.cache.begin(yard.chain(&text(name, 4)), 0, u32::MAX);
            let (lease, begun) = lease.expect("room").expect("nothing in flight");
            yard.cache.landed(&begun.plans).expect("they are ours");
            yard.cache.seal(&[(&lease, 16)]).expect("computed");
            yard.cache
                .finish(lease, blockyard_core::Retention::Ordinary)
                .expect("it runs");
        };
        // New ones, and now and then one that was there shortly before, on the device or below.
        for name in 0..64 {
            fill(name);
        }
        assert_eq!(yard.host().free, 0);
        let before = yard.stats().counters;
        let mut name = 64;
        while yard.stats().counters.evicted[0] - before.evicted[0] < 10_000 {
            fill(name);
            if name % 3 == 0 {
                fill(name - 3);
                fill(name - 30);
            }
            name += 1;
        }
        let after = yard.stats().counters;
        let evicted = after.evicted[0] - before.evicted[0];
        let down = after.moved[0][1] - before.moved[0][1];
        assert!(
            down * 100 <= evicted * 105,
            "{down} copies for {evicted} evictions"
        );
        yard.sound();
    }
}

/// Law: INV-20j
#[test]
fn one_that_goes_first_needs_no_copy_below() {
    for yard in each_of(
        KINDS,
        Config {
            host_copies: Some(HostCopies::First),
            ..three(8, 4, 8)
        },
    ) {
        yard.ends_busy();
        let prompt = text(1, 2);
        yard.publish(&prompt);
        yard.copy_down(2);
        use_again(&yard, &prompt);
        assert_eq!(yard.demote_from(Tier::HOST, 4), None);
        yard.sound();
        yard.squeeze(2);
        let copies = yard.demote_from(Tier::HOST, 4);
        assert_eq!(copies.map(|plan| plan.len()), Some(2), "now it does");
    }
}

/// Law: INV-20j
#[test]
fn a_copy_of_a_next_victim_stays_though_its_block_was_used_again() {
    for yard in yards(8, 3) {
        yard.publish_below(&text(1, 1));
        yard.publish_below(&text(2, 1));
        let block = text(3, 1);
        yard.publish(&block);
        yard.copy_down(1);
        use_again(&yard, &block);
        assert!(yard.demote(8).is_none(), "it has its copy");
        squeeze_host(&yard, 4);
        assert_eq!(yard.hits(&text(1, 1)), [0, 0, 0, 0]);
        yard.squeeze(yard.device().idle as u32);
        assert_eq!(yard.hits(&block), [0, 1, 0, 0], "nothing was lost");
    }
}
