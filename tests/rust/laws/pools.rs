//! LAWS 4.1: pools and allocation.

use crate::verbs::Verbs as _;
use crate::yard::{SIZE, Yard, and_one, config, room, text, tokens};
use blockyard_core::{Cache, Config, Error, KeyHash, Namespace, Tier};

/// Law: 4.1-1
#[test]
fn slots_are_distinct_the_lowest_first_and_come_back() {
    let yard = Yard::new(4, 0);
    let (lease, _) = yard.begin(&text(1, 2));
    assert_eq!(yard.table(&lease), [1, 2], "0 is the null slot");
    assert_eq!((yard.device().free, yard.device().capacity), (2, 4));
    yard.finish(lease);
    assert_eq!(yard.device().free, 4);
}

/// Law: 4.1-2
#[test]
fn asking_for_more_than_there_is_fails_with_numbers_and_an_exact_fit_does_not() {
    let yard = Yard::new(4, 0);
    let (held, _) = yard.begin(&text(1, 2));
    let before = yard.device();
    assert_eq!(
        room(yard.begin_reserving(&text(2, 3), 0).unwrap_err()),
        (3, 2, 0, 0)
    );
    assert_eq!(yard.device(), before);
    let (exact, _) = yard.begin(&text(2, 2));
    assert_eq!(yard.device().free, 0);
    assert_eq!(
        room(yard.begin_reserving(&tokens(3, 1), 0).unwrap_err()),
        (1, 0, 0, 0)
    );
    yard.finish(held);
    yard.finish(exact);
}

/// Law: 4.1-2
#[test]
fn what_can_never_fit_is_told_so_at_once() {
    let yard = Yard::new(4, 0);
    let (held, _) = yard.begin(&text(1, 4));
    for (blocks, reserve) in [(5, 0), (2, 3 * SIZE)] {
        let refused = yard.begin_reserving(&text(2, blocks), reserve);
        let refused = refused.map(|_| ()).unwrap_err();
        assert!(matches!(
            refused,
            Error::TooLarge {
                need: 5,
                capacity: 4,
                ..
            }
        ));
    }
    yard.finish(held);
}

/// Law: 4.1-3
#[test]
fn asking_whether_there_is_room_evicts_nothing() {
    let yard = Yard::new(4, 0);
    let prompt = text(1, 4);
    yard.publish(&prompt);
    let device = yard.device();
    assert_eq!((device.free, device.takeable), (0, 4), "room for four");
    yard.probe(&text(2, 4));
    assert_eq!(yard.stats().counters.evicted[0], 0);
    assert_eq!(yard.on_device(&prompt), 4);
}

/// Law: 4.1-4
#[test]
fn a_host_of_no_slots_has_room_for_nothing() {
    let yard = Yard::new(4, 0);
    yard.publish(&text(1, 2));
    assert_eq!((yard.host().capacity, yard.host().free), (0, 0));
    assert_eq!(yard.demote(2), None);
    let (lease, error) = yard.cache.park(yard.run(&text(2, 1)), 4).unwrap_err();
    assert!(matches!(
        error,
        Error::TooLarge {
            tier: Tier::HOST,
            ..
        }
    ));
    yard.finish(lease);
}

/// Law: 4.1-4
#[test]
fn the_host_gives_its_slots_out_lowest_first_and_has_them_back() {
    let yard = Yard::new(4, 4);
    yard.publish(&text(1, 2));
    let plan = yard.demote(2).unwrap();
    assert_eq!(plan.destinations, [0, 1]);
    yard.fail(&plan, 0);
    assert_eq!(yard.host().free, 4);
}

/// Law: 4.1-6
#[test]
fn a_config_with_other_sizes_makes_another_yard() {
    for (device, host) in [(1, 0), (7, 3), (100, 50)] {
        let yard = Yard::new(device, host);
        let capacities = (yard.device().capacity, yard.host().capacity);
        assert_eq!(capacities, (u64::from(device), u64::from(host)));
    }
}

/// Law: 4.1-7
#[test]
fn tokens_take_as_many_blocks_as_they_start() {
    let yard = Yard::new(16, 0);
    for (count, blocks) in [(1, 1), (4, 1), (5, 2), (7, 2), (8, 2), (9, 3)] {
        let (lease, _) = yard.begin(&tokens(1, count));
        assert_eq!(yard.view(&lease).blocks, blocks, "{count} tokens");
        yard.finish(lease);
    }
    let nothing = yard.begin_reserving(&[], 0).map(|_| ()).unwrap_err();
    assert!(matches!(nothing, Error::Argument { name: "tokens", .. }));
}

/// Law: 4.1-7
#[test]
fn growing_by_nothing_takes_nothing() {
    let yard = Yard::new(4, 0);
    let (lease, _) = yard.begin(&text(1, 1));
    let before = yard.stats();
    assert!(yard.grow(&lease, 0));
    assert_eq!((yard.stats(), yard.view(&lease).blocks), (before, 1));
    assert!(yard.grow(&lease, 1));
    assert_eq!(yard.view(&lease).blocks, 2);
    yard.finish(lease);
}

/// Law: 4.1-6
#[test]
fn a_yard_of_impossible_size_is_refused_by_name() {
    let make = |config| Cache::new(config, KeyHash::default(), &Namespace::default()).map(|_| ());
    let block_size = Config {
        block_size: 0,
        ..config(4, 0)
    };
    let none = Config {
        slots: vec![],
        ..config(4, 0)
    };
    let only_null = Config {
        slots: vec![1],
        ..config(4, 0)
    };
    let groups = Config {
        groups: 2,
        ..config(4, 0)
    };
    assert!(matches!(
        make(block_size),
        Err(Error::Argument {
            name: "block_size",
            ..
        })
    ));
    assert!(matches!(
        make(none),
        Err(Error::Argument { name: "tiers", .. })
    ));
    assert!(matches!(
        make(only_null),
        Err(Error::Argument { name: "device", .. })
    ));
    assert!(matches!(
        make(groups),
        Err(Error::Unsupported { what: "groups", .. })
    ));
}

/// Law: 4.1-6
#[test]
fn a_clear_brings_every_count_back_once_nothing_is_held() {
    let yard = Yard::new(8, 8);
    yard.publish(&text(1, 4));
    yard.copy_down(4);
    let (lease, _) = yard.begin(&and_one(&text(1, 4)));
    yard.cache.lock().clear();
    yard.finish(lease);
    yard.at_rest();
    let (whole, _) = yard.begin(&text(2, 8));
    assert_eq!(yard.device().claimed, 8, "all of it is to be had");
    yard.finish(whole);
    assert_eq!(yard.device().free, 8);
}
