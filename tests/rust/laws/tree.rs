//! LAWS 4.2 and 4.3: the prefix tree, and what a begin makes of it.

use crate::yard::{KINDS, SIZE, Yard, and_one, cat, config, each_of, one, text};
use blockyard_core::Stop;

/// Law: 4.2-8
#[test]
fn the_same_sequence_twice_makes_no_new_blocks_and_a_shared_prefix_reuses_them() {
    let yard = Yard::new(32, 0);
    let stem = text(1, 2);
    yard.publish(&stem);
    assert_eq!(yard.stats().blocks, 2);
    yard.publish(&stem);
    assert_eq!(yard.stats().blocks, 2);
    yard.publish(&cat(&stem, &text(2, 3)));
    assert_eq!(yard.stats().blocks, 5);
    yard.publish(
        &text(1, 0)[..0]
            .iter()
            .chain(&[9])
            .copied()
            .collect::<Vec<_>>(),
    );
    assert_eq!(yard.stats().blocks, 5, "a partial block is not published");
}

/// Law: 4.2-9
#[test]
fn a_prefix_is_found_whole_in_part_or_not_at_all() {
    let yard = Yard::new(32, 0);
    let chain = text(1, 20);
    yard.publish(&chain);
    for depth in [5, 10, 15, 20] {
        assert_eq!(
            yard.on_device(&chain[..depth * SIZE as usize]),
            depth as u32
        );
    }
    let forked = cat(&chain[..28], &text(2, 3));
    let probe = yard.probe(&forked);
    assert_eq!((probe.hits[0], probe.stop), (7, Stop::Missing));
    assert_eq!(yard.hits(&text(3, 4)), [0; 4]);
    assert_eq!(
        (yard.hits(&[]), yard.probe(&[]).stop),
        ([0; 4], Stop::Whole)
    );
}

/// Law: 4.2-9
#[test]
fn of_a_hundred_branches_the_released_ones_may_go_and_the_shared_stem_not() {
    for yard in each_of(KINDS, config(101, 0)) {
        let stem = text(1, 1);
        let mut leases: Vec<_> = (2..102)
            .map(|name| yard.run(&cat(&stem, &text(name, 1))))
            .collect();
        for lease in leases.drain(..50) {
            yard.finish(lease);
        }
        let device = yard.device();
        assert_eq!((device.takeable, device.pinned), (50, 51));
        yard.squeeze(50);
        assert_eq!(yard.on_device(&stem), 1);
        for lease in leases {
            yard.finish(lease);
        }
    }
}

/// Law: 4.2-10
#[test]
fn five_holders_need_five_releases() {
    let yard = Yard::new(16, 0);
    let prompt = text(1, 2);
    yard.publish(&prompt);
    let leases: Vec<_> = (0..5).map(|_| yard.begin(&and_one(&prompt)).0).collect();
    for lease in leases {
        assert_eq!((yard.device().idle, yard.device().takeable), (0, 0));
        yard.finish(lease);
    }
    assert_eq!((yard.device().idle, yard.device().takeable), (2, 2));
}

/// Law: 4.2-11
#[test]
fn eviction_takes_leaves_first_in_as_many_rounds_as_it_needs_and_refuses_too_few() {
    for yard in each_of(KINDS, config(12, 0)) {
        let (long, short, held) = (text(1, 4), text(2, 2), text(3, 2));
        yard.publish(&long);
        yard.publish(&short);
        let lease = yard.run(&held);
        yard.squeeze(0);
        yard.squeeze(3);
        assert_eq!([&long, &short, &held].map(|t| yard.on_device(t)), [1, 2, 2]);
        yard.squeeze(2);
        assert_eq!([&long, &short, &held].map(|t| yard.on_device(t)), [0, 1, 2]);
        assert!(yard.begin_reserving(&text(4, 11), 0).is_err());
        assert_eq!(yard.on_device(&short), 1, "refused, and nothing gone");
        yard.finish(lease);
    }
}

/// Law: 4.2-11
#[test]
fn moving_down_keeps_the_paths_shape_and_leaving_the_host_ends_it() {
    let yard = Yard::new(8, 3);
    let stem = text(1, 1);
    let (left, right) = (cat(&stem, &text(2, 1)), cat(&stem, &text(3, 1)));
    yard.publish(&left);
    yard.publish(&right);
    yard.copy_down(3);
    yard.squeeze(3);
    assert_eq!([&left, &right].map(|t| yard.hits(t)), [[0, 2, 0, 0]; 2]);
    assert_eq!(yard.stats().blocks, 3, "the same ones");
    yard.publish(&text(4, 3));
    yard.copy_down(3);
    assert_eq!([&left, &right].map(|t| yard.hits(t)), [[0, 0, 0, 0]; 2]);
    assert_eq!(
        (yard.stats().blocks, yard.stats().counters.evicted[1]),
        (3, 3)
    );
}

/// Law: 4.2-12
#[test]
fn a_block_goes_down_and_comes_up_again_under_the_same_key() {
    let yard = Yard::new(8, 8);
    let prompt = text(1, 3);
    let lease = yard.run(&prompt);
    let before = yard.table(&lease);
    yard.finish(lease);
    yard.copy_down(3);
    yard.squeeze(3);
    let (other, _) = yard.begin(&text(2, 3));
    let (lease, begun) = yard.begin(&and_one(&prompt));
    yard.land(&begun.plans);
    assert_eq!(yard.hits(&prompt), [3, 0, 0, 0]);
    assert_ne!(yard.table(&lease)[..3], before, "in other slots");
    assert_eq!(one(&begun).destinations, yard.table(&lease)[..3]);
    yard.finish(lease);
    yard.finish(other);
}

/// Law: 4.2-13
#[test]
fn a_clear_leaves_nothing_to_be_found_and_numbers_are_never_given_twice() {
    let yard = Yard::new(8, 8);
    let mut numbers = std::collections::BTreeSet::new();
    for round in 0..20 {
        let lease = yard.run(&text(round % 3, 2));
        assert!(numbers.insert(lease.id().number()));
        yard.finish(lease);
        yard.cache.lock().clear();
        assert_eq!(yard.hits(&text(round % 3, 2)), [0; 4]);
    }
}

/// Law: 4.3-20
#[test]
fn hits_are_counted_per_tier_and_in_tokens() {
    let yard = Yard::new(12, 8);
    let prompt = text(1, 4);
    yard.publish(&prompt);
    yard.copy_down(2);
    yard.squeeze(2);
    let before = yard.stats().counters;
    let (lease, begun) = yard.begin(&and_one(&prompt));
    let after = yard.stats().counters;
    assert_eq!(
        (
            after.hits[0] - before.hits[0],
            after.hits[1] - before.hits[1]
        ),
        (2, 2)
    );
    assert_eq!(after.tokens - before.tokens, 17);
    assert_eq!(after.cached - before.cached, 16);
    yard.land(&begun.plans);
    yard.finish(lease);
    // A full hit computes its last token again.
    let (lease, begun) = yard.begin(&prompt);
    assert_eq!(yard.stats().counters.cached - after.cached, 15);
    yard.land(&begun.plans);
    yard.finish(lease);
}
