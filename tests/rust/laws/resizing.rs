//! Table 2.7: resize.

use crate::verbs::Verbs as _;
use crate::yard::{KINDS, SIZE, Yard, and_one, cat, config, each_of, one, text, tokens};
use blockyard_core::{Config, Error, EvictionPolicy, Tier, WritePolicy};

fn resize(yard: &Yard, tier: Tier, slots: u32) -> Result<(), Error> {
    let resized = yard.cache.lock().resize(tier, slots);
    yard.sound();
    resized
}

/// The device's slots beside its null slot.
fn device(yard: &Yard, slots: u32) -> Result<(), Error> {
    resize(yard, Tier::DEVICE, slots + 1)
}

/// Law: 2.7-4, 4.1-5
#[test]
fn a_tier_that_grows_gives_out_slots_across_the_old_boundary() {
    let yard = Yard::new(4, 0);
    let lease = yard.run(&text(1, 3));
    device(&yard, 8).unwrap();
    assert_eq!((yard.device().capacity, yard.device().free), (8, 5));
    let (other, _) = yard.begin(&text(2, 5));
    let mut table = yard.table(&other);
    table.sort_unstable();
    assert_eq!(table, [4, 5, 6, 7, 8]);
    yard.finish(other);
    yard.finish(lease);
    assert_eq!(yard.on_device(&text(1, 3)), 3, "and finds what it had");
}

/// It is asked for all of it before anything is changed.
/// Law: R2-8
#[test]
fn a_tier_for_whose_bookkeeping_there_is_no_memory_stays_as_it_is() {
    for (policy, write, host) in [
        (EvictionPolicy::Recency, WritePolicy::Through, 4),
        (EvictionPolicy::Recency, WritePolicy::SecondTouch, 0),
        (EvictionPolicy::Heap, WritePolicy::OnEvict, 4),
    ] {
        let yard = Yard::of(Config {
            policy,
            write,
            ..config(8, host)
        });
        let lease = yard.run(&text(1, 3));
        yard.publish(&text(2, 2));
        let before = (yard.stats(), yard.cache.lock().digest());
        for tier in [Tier::DEVICE, Tier::HOST] {
            let widen = |slots, there| yard.cache.lock().resize_where(tier, slots, Some(there));
            match widen(1_000, 1_000) {
                Err(Error::Memory { bytes, there, .. }) => {
                    // A node is 64 bytes, a cell 16, and so on.
                    assert!((100_000..200_000).contains(&bytes), "{bytes}");
                    assert_eq!(there, Some(1_000));
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(before, (yard.stats(), yard.cache.lock().digest()));
            yard.sound();
        }
        for tier in [Tier::DEVICE, Tier::HOST] {
            let widened = yard.cache.lock().resize_where(tier, 1_000, Some(200_000));
            assert_eq!(widened, Ok(()));
            yard.sound();
        }
        let (other, _) = yard.begin(&text(3, 900));
        yard.finish(other);
        yard.finish(lease);
    }
}

#[test]
fn a_yard_for_whose_bookkeeping_there_is_no_memory_is_none() {
    let small = config(1_000, 1_000);
    assert_eq!(small.fits(Some(400_000)), Ok(()));
    let refused = small.fits(Some(100_000)).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Memory {
                there: Some(100_000),
                ..
            }
        ),
        "{refused}"
    );
    let wrong = Config {
        block_size: 0,
        ..small
    };
    let refused = wrong.fits(Some(0)).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Argument {
                name: "block_size",
                ..
            }
        ),
        "{refused}"
    );
}

/// Law: 2.7-4, 4.1-5
#[test]
fn slots_that_are_not_used_leave_at_once() {
    let yard = Yard::new(8, 8);
    let lease = yard.run(&text(1, 3));
    device(&yard, 4).unwrap();
    assert_eq!((yard.device().capacity, yard.device().free), (4, 1));
    resize(&yard, Tier::HOST, 0).unwrap();
    assert_eq!(yard.host().capacity, 0);
    assert!(yard.begin_reserving(&text(2, 2), 0).is_err());
    yard.finish(lease);
}

/// Law: 2.7-2
#[test]
fn a_shrink_that_is_refused_leaves_the_free_slots_in_their_order() {
    let yard = Yard::new(8, 0);
    let (first, second) = (yard.begin(&text(1, 2)).0, yard.begin(&text(2, 3)).0);
    yard.finish(first);
    let before = yard.cache.lock().digest();
    assert!(device(&yard, 2).is_err());
    assert_eq!(yard.cache.lock().digest(), before);
    let (third, _) = yard.begin(&text(3, 3));
    assert_eq!(
        yard.table(&third),
        [1, 2, 6],
        "as if nothing had been asked"
    );
    yard.finish(second);
    yard.finish(third);
}

/// Law: 2.7-2, 4.1-5
#[test]
fn a_shrink_below_what_is_used_is_refused_and_changes_nothing() {
    let yard = Yard::new(8, 8);
    let claimed = yard.begin_reserving(&text(1, 2), 2 * SIZE).unwrap().0;
    let pinned = yard.run(&text(2, 1));
    let before = yard.stats();
    let refused = device(&yard, 4).unwrap_err();
    // Two claimed, one pinned, two promised.
    assert!(matches!(
        refused,
        Error::InUse {
            tier: Tier::DEVICE,
            want: 4,
            used: 5
        }
    ));
    assert_eq!(yard.stats(), before);
    device(&yard, 5).unwrap();
    assert_eq!(yard.device().capacity, 5);
    assert!(yard.grow(&claimed, 2 * SIZE), "the promise still holds");
    yard.finish(claimed);
    yard.finish(pinned);
}

/// Law: 2.7-2
#[test]
fn quarantined_slots_count_as_used() {
    let yard = Yard::new(8, 4);
    yard.publish(&text(1, 2));
    let plan = yard.demote(2).unwrap();
    yard.overdue(&plan);
    let refused = resize(&yard, Tier::HOST, 1).unwrap_err();
    assert!(matches!(
        refused,
        Error::InUse {
            want: 1,
            used: 2,
            ..
        }
    ));
    resize(&yard, Tier::HOST, 2).unwrap();
    yard.fail(&plan, 0);
    assert_eq!((yard.host().capacity, yard.host().free), (2, 2));
}

#[test]
fn where_a_copy_keeps_a_block_from_backing_a_promise_what_is_missing_counts_as_used() {
    let yard = Yard::new(4, 4);
    yard.publish(&text(1, 1));
    let plan = yard.demote(1).unwrap();
    let ticket = yard.cache.promise(2, Tier::DEVICE).unwrap();
    let refused = device(&yard, 2).unwrap_err();
    // Two promised; of the two that would be left, one cannot be evicted while it is read.
    assert!(matches!(
        refused,
        Error::InUse {
            want: 2,
            used: 3,
            ..
        }
    ));
    yard.land(&[plan]);
    device(&yard, 2).unwrap();
    yard.cache.release(ticket).unwrap();
}

/// Law: 2.7-3, 4.1-5
#[test]
fn a_shrink_to_exactly_what_is_used_retires_high_slots_as_they_come_free() {
    let yard = Yard::new(8, 0);
    let low = yard.begin(&text(1, 5)).0;
    let high = yard.run(&text(2, 3));
    yard.finish(low);
    device(&yard, 3).unwrap();
    let capacity = yard.device().capacity;
    assert_eq!(capacity, 6, "three free ones below, three held above");
    assert!(yard.table(&high).iter().all(|&slot| slot > 3));
    let (low, _) = yard.begin(&text(3, 3));
    assert!(yard.table(&low).iter().all(|&slot| slot <= 3));
    assert!(!yard.grow(&high, 1), "what retires is not given out");
    yard.finish(high);
    assert_eq!((yard.device().capacity, yard.device().idle), (3, 0));
    assert!(
        yard.begin_reserving(&text(4, 1), 0).is_err(),
        "no room for more"
    );
    yard.finish(low);
}

/// Of 8 device slots 4 are left, and the one idle path has its root beyond them.
fn rooted_beyond(policy: EvictionPolicy) -> Yard {
    let yard = Yard::of(Config {
        policy,
        ..config(8, 8)
    });
    let low = yard.begin(&text(2, 4)).0;
    let high = yard.run(&text(1, 2));
    yard.finish(low);
    yard.finish(yard.run(&text(1, 4)));
    yard.finish(high);
    device(&yard, 4).expect("nothing is held");
    assert_eq!((yard.device().capacity, yard.device().idle), (6, 4));
    yard
}

/// Law: 2.7-3
#[test]
fn a_block_beyond_the_size_retires_when_its_last_child_is_evicted() {
    for policy in KINDS {
        let yard = rooted_beyond(policy);
        let sizes = [1, 2].map(|blocks| {
            // Two slots are free.
            yard.finish(yard.begin(&text(2 + blocks, 2 + u64::from(blocks))).0);
            (yard.device().capacity, yard.on_device(&text(1, 4)))
        });
        assert_eq!(sizes, [(6, 3), (4, 0)], "{policy:?}");
        assert_eq!(yard.stats().counters.evicted[0], 4);
    }
}

/// Law: 2.7-3
#[test]
fn a_path_that_is_evicted_at_once_leaves_nothing_beyond_the_size() {
    for policy in KINDS {
        let yard = Yard::of(Config {
            policy,
            ..config(16, 16)
        });
        let low = yard.begin(&text(2, 8)).0;
        let high = yard.run(&text(1, 2));
        yard.finish(low);
        yard.finish(yard.run(&text(1, 8)));
        yard.finish(high);
        device(&yard, 8).expect("nothing is held");
        assert_eq!((yard.device().capacity, yard.device().free), (10, 2));
        // Six lie within the size, and the two above them beyond it.
        yard.finish(yard.begin(&text(3, 8)).0);
        assert_eq!((yard.device().capacity, yard.device().free), (8, 8));
        assert_eq!(yard.stats().counters.evicted[0], 8, "{policy:?}");
    }
}

/// Law: 2.7-3
#[test]
fn a_block_beyond_the_size_that_is_read_retires_when_the_copy_has_ended() {
    for good in [0, 1] {
        let yard = Yard::new(8, 8);
        let low = yard.begin(&text(1, 7)).0;
        yard.publish(&text(2, 1));
        let plan = yard.demote(1).unwrap();
        yard.finish(low);
        device(&yard, 4).unwrap();
        assert_eq!((yard.device().capacity, yard.device().idle), (5, 1));
        yard.fail(&plan, good);
        assert_eq!((yard.device().capacity, yard.device().idle), (4, 0));
        assert_eq!(yard.hits(&text(2, 1)), [0, good, 0, 0]);
    }
}

/// Law: INV-20d, 2.7-3
#[test]
fn what_retires_when_its_copies_have_landed_leaves_them_to_go_leaf_first() {
    for yard in each_of(KINDS, config(8, 8)) {
        let low = yard.begin(&text(1, 5)).0;
        let lease = yard.run(&text(2, 3));
        let root_first = yard.demote_lease(&lease, 3);
        yard.finish(low);
        yard.finish(lease);
        device(&yard, 4).unwrap();
        assert_eq!((yard.device().capacity, yard.device().idle), (7, 3));
        yard.land(&[root_first]);
        assert_eq!((yard.device().capacity, yard.device().idle), (4, 0));
        resize(&yard, Tier::HOST, 3).unwrap();
        yard.publish_below(&text(3, 1));
        assert_eq!(yard.hits(&text(2, 3)), [0, 2, 0, 0]);
    }
}

/// Law: 2.7-3
#[test]
fn blocks_beyond_the_size_retire_when_the_copy_of_the_last_has_ended() {
    for good in [0, 1] {
        let yard = Yard::new(8, 4);
        yard.publish_below(&text(1, 2));
        let lease = yard.run(&text(2, 2));
        yard.land(&[yard.demote_lease(&lease, 1)]);
        let plan = yard.demote_lease(&lease, 1);
        resize(&yard, Tier::HOST, 2).unwrap();
        assert_eq!((yard.host().capacity, yard.host().idle), (4, 3));
        yard.fail(&plan, good);
        assert_eq!((yard.host().capacity, yard.host().idle), (2, 2));
        assert_eq!(yard.hits(&text(1, 2)), [0, 2, 0, 0]);
        yard.finish(lease);
    }
}

/// Law: 2.7-3
#[test]
fn blocks_beyond_the_size_retire_when_their_keeps_have_ended() {
    for broken in [false, true] {
        let yard = Yard::new(8, 8);
        let low = yard.begin(&text(1, 5)).0;
        let parked = yard.park(yard.run(&text(2, 3)), 12);
        yard.finish(low);
        device(&yard, 4).unwrap();
        assert_eq!(yard.device().capacity, 7);
        if broken {
            yard.cache.lock().clear();
            assert_eq!(yard.device().capacity, 4);
        }
        yard.abandon(parked);
        assert_eq!((yard.device().capacity, yard.device().idle), (4, 0));
    }
}

/// Law: 2.7-3
#[test]
fn idle_blocks_beyond_the_new_size_leave_child_before_parent() {
    for yard in each_of(KINDS, config(8, 8)) {
        yard.publish(&text(1, 6));
        yard.copy_down(6);
        device(&yard, 3).unwrap();
        assert_eq!(yard.device().capacity, 3);
        assert_eq!(
            yard.hits(&text(1, 6)),
            [3, 3, 0, 0],
            "the copies below serve"
        );
    }
}

/// Law: 2.7-3
#[test]
fn an_idle_block_beyond_the_new_size_stays_while_its_child_does() {
    for yard in each_of(KINDS, config(8, 0)) {
        let low = yard.begin(&text(2, 4)).0;
        yard.publish(&text(1, 3));
        yard.finish(low);
        // A child in a low slot of parents in high ones.
        let lease = yard.run(&text(1, 4));
        let table = yard.table(&lease);
        assert!(
            table[3] <= 4 && table[..3].iter().all(|&slot| slot > 4),
            "{table:?}"
        );
        yard.finish(lease);
        device(&yard, 4).unwrap();
        assert_eq!(yard.device().capacity, 7, "three retire with their child");
        assert_eq!(yard.on_device(&text(1, 4)), 4);
        yard.publish(&text(3, 4));
        assert_eq!(
            (yard.device().capacity, yard.on_device(&text(1, 4))),
            (4, 0)
        );
    }
}

/// Law: 2.7-3
#[test]
fn a_slot_that_is_loaded_for_no_lease_when_the_tier_shrinks_retires_when_it_has_landed() {
    let yard = Yard::new(8, 8);
    yard.publish_below(&text(1, 2));
    let low = yard.begin(&text(2, 5)).0;
    let (lease, begun) = yard.begin(&and_one(&text(1, 2)));
    let slots = &one(&begun).destinations;
    let beyond = slots.iter().filter(|&&slot| slot > 4).count() as u64;
    yard.finish(low);
    device(&yard, 4).unwrap();
    yard.finish(lease);
    assert!(beyond > 0);
    assert_eq!(yard.device().capacity, 4 + beyond);
    yard.land(&begun.plans);
    assert_eq!(yard.device().capacity, 4);
    for name in 3..5 {
        yard.publish(&text(name, 4));
    }
    assert_eq!((yard.device().capacity, yard.device().idle), (4, 4));
}

/// Law: 2.7-4
#[test]
fn a_shrink_that_is_taken_back_has_its_slots_again() {
    let yard = Yard::new(8, 0);
    let low = yard.begin(&text(1, 5)).0;
    let high = yard.run(&text(2, 3));
    yard.finish(low);
    device(&yard, 3).unwrap();
    device(&yard, 8).unwrap();
    assert_eq!((yard.device().capacity, yard.device().free), (8, 5));
    yard.finish(high);
}

/// Law: 2.7-2
#[test]
fn a_resize_of_what_is_not_there_names_its_argument() {
    let yard = Yard::new(4, 4);
    let disk = resize(&yard, Tier::DISK, 8);
    assert!(matches!(disk, Err(Error::Argument { name: "tier", .. })));
    let none = resize(&yard, Tier::DEVICE, 0);
    assert!(matches!(none, Err(Error::Argument { name: "slots", .. })));
    let vast = resize(&yard, Tier::HOST, u32::MAX);
    assert!(matches!(vast, Err(Error::Argument { name: "slots", .. })));
    assert_eq!((yard.device().capacity, yard.host().capacity), (4, 4));
}

/// Law: 2.7-1
#[test]
fn keeps_in_the_way_on_the_device_are_broken_first() {
    let yard = Yard::new(8, 8);
    let parked = [1, 2].map(|name| yard.park(yard.run(&text(name, 3)), 12));
    device(&yard, 4).unwrap();
    let broken = parked.each_ref().map(|parked| yard.broken(parked));
    assert_eq!(
        broken,
        [false, true],
        "the youngest, and no more than needed"
    );
    for parked in parked {
        yard.abandon(parked);
    }
    let (lease, begun) = yard.begin(&text(1, 3));
    assert_eq!(one(&begun).len(), 1);
    yard.land(&begun.plans);
    yard.finish(lease);
}

/// Law: 2.7-1
#[test]
fn a_tail_in_flight_that_goes_with_its_keep_does_not_hold_what_backs_a_ticket() {
    let yard = Yard::new(8, 4);
    let prompt = cat(&text(1, 2), &tokens(2, 2));
    yard.publish(&text(1, 2));
    yard.copy_down(2);
    let parked = yard.park(yard.run(&prompt), 10);
    let plan = yard.demote_parked(&parked, 1).unwrap();
    let ticket = yard.cache.promise(1, Tier::HOST).unwrap();
    // Two kept, one in flight, one promised: without the keep the two may go for the ticket.
    resize(&yard, Tier::HOST, 2).unwrap();
    assert!(yard.broken(&parked));
    assert_eq!((yard.host().capacity, yard.host().takeable), (3, 2));
    yard.land(&[plan]);
    assert_eq!((yard.host().capacity, yard.host().idle), (2, 2));
    yard.abandon(parked);
    yard.cache.release(ticket).unwrap();
}
