//! A rank has lost its memory, but for the tiers that outlive its process. (INV-6, 21, 23, 24)

use crate::yard::{KINDS, Yard, and_one, cat, text, three};
use blockyard_core::{Config, Error, EvictionPolicy, MAX_TIERS, Retention, Tier};

const HOST: Tier = Tier::HOST;
const DISK: Tier = Tier::DISK;

/// The disk is keyed, and outlives the process.
fn yard_as(policy: EvictionPolicy, host: u32) -> Yard {
    let mut keyed = [false; MAX_TIERS];
    keyed[DISK.0] = true;
    Yard::of(Config {
        policy,
        keyed,
        ..three(12, host, 16)
    })
}

fn yard() -> Yard {
    yard_as(EvictionPolicy::Recency, 0)
}

fn lose(yard: &Yard) {
    yard.cache.lock().lose_unkeyed().expect("the disk is keyed");
    yard.sound();
}

/// Law: INV-24
#[test]
fn what_the_disk_has_is_found_and_nothing_else() {
    for policy in KINDS {
        let yard = yard_as(policy, 0);
        for (name, below) in [(1, 3), (2, 2), (3, 0)] {
            let lease = yard.run(&text(name, 3));
            if below > 0 {
                yard.land(&[yard.demote_lease(&lease, below)]);
            }
            yard.finish(lease);
        }
        lose(&yard);
        let hits = [1, 2, 3].map(|name| yard.hits(&text(name, 3)));
        assert_eq!(hits, [[0, 0, 3, 0], [0, 0, 2, 0], [0, 0, 0, 0]]);
        assert_eq!((yard.device().free, yard.disk().idle), (12, 5));
        assert_eq!(yard.stats().counters.evicted[0], 0, "it was no eviction");
        // It is loaded, shared and published as ever.
        let (lease, begun) = yard.begin(&and_one(&text(1, 3)));
        assert_eq!(begun.cached, 12);
        yard.land(&begun.plans);
        yard.seal(&lease, 13);
        yard.finish(lease);
        assert_eq!(yard.on_device(&text(1, 3)), 3);
    }
}

/// Law: INV-24
#[test]
fn the_host_goes_with_the_device() {
    let yard = yard_as(EvictionPolicy::Recency, 8);
    yard.publish_below(&text(1, 2));
    assert_eq!(yard.hits(&text(1, 2)), [0, 2, 0, 0]);
    lose(&yard);
    assert_eq!(yard.hits(&text(1, 2)), [0, 0, 0, 0]);
    assert_eq!((yard.host().free, yard.stats().blocks), (8, 0));
}

/// Law: INV-24
#[test]
fn a_running_lease_is_detached_and_what_it_shares_stays_its_own() {
    let yard = yard();
    let prompt = text(1, 3);
    let one = yard.run(&prompt);
    yard.land(&[yard.demote_lease(&one, 3)]);
    let (two, _) = yard.begin(&and_one(&prompt));
    let table = yard.table(&two);
    lose(&yard);
    assert!(yard.view(&one).detached && yard.view(&two).detached);
    assert_eq!(yard.table(&two), table);
    assert_eq!(yard.hits(&prompt), [0, 0, 3, 0]);
    assert_eq!(yard.seal(&two, 13), 0);
    let (three, begun) = yard.begin(&and_one(&prompt));
    assert_eq!(begun.hits, [0, 0, 3, 0], "from the disk, and not from them");
    yard.land(&begun.plans);
    yard.finish(one);
    yard.finish(two);
    yard.finish(three);
}

/// Nothing has ended yet that would raise what it has begun over.
/// Law: INV-20, INV-24
#[test]
fn what_a_running_lease_has_published_stands_behind_what_it_has_put_on_it() {
    for policy in KINDS {
        let yard = yard_as(policy, 0);
        yard.finish_as(yard.run(&text(1, 2)), Retention::SessionEnded);
        let longer = cat(&text(1, 2), &text(2, 1));
        let lease = yard.run(&longer);
        yard.land(&[yard.demote_lease(&lease, 3)]);
        lose(&yard);
        assert_eq!(yard.hits(&longer), [0, 0, 3, 0]);
        yard.finish(lease);
    }
}

/// Law: INV-24
#[test]
fn no_copy_from_what_is_lost_is_published_however_it_ends() {
    for good in [0, 2] {
        let yard = yard();
        yard.publish(&text(1, 2));
        let plan = yard.demote(2).expect("there is room");
        assert_eq!(yard.cache.lock().dispatch(), std::slice::from_ref(&plan));
        lose(&yard);
        assert_eq!(yard.disk().pinned, 2, "it may write there still");
        assert_eq!(yard.device().quarantined, 2, "and read there");
        yard.fail(&plan, good);
        assert_eq!(yard.hits(&text(1, 2)), [0, 0, 0, 0]);
        assert_eq!((yard.device().free, yard.disk().free), (12, 16));
    }
}

/// A rank would write there what its new memory has, under the keys of before.
/// Law: INV-24
#[test]
fn what_was_planned_from_there_and_not_dispatched_never_is() {
    let yard = yard();
    yard.publish_below(&text(2, 2));
    yard.cache.lock().dispatch();
    yard.publish(&text(1, 2));
    yard.demote(2).expect("there is room");
    let (lease, begun) = yard.begin(&and_one(&text(2, 2)));
    lose(&yard);
    assert_eq!(yard.cache.lock().dispatch(), begun.plans, "from the disk");
    assert_eq!(yard.disk().free, 14);
    yard.land(&begun.plans);
    yard.finish(lease);
}

/// Law: INV-24
#[test]
fn what_comes_up_lands_for_its_lease_alone() {
    let yard = yard();
    yard.publish_below(&text(1, 2));
    let (lease, begun) = yard.begin(&and_one(&text(1, 2)));
    lose(&yard);
    yard.land(&begun.plans);
    assert_eq!(yard.hits(&text(1, 2)), [0, 0, 2, 0]);
    assert!(yard.view(&lease).detached);
    yard.finish(lease);
}

/// Law: INV-24
#[test]
fn what_is_parked_on_the_disk_alone_stays_parked() {
    let yard = yard_as(EvictionPolicy::Recency, 8);
    let whole = yard.park_on(&text(1, 2), &[DISK, DISK]);
    let half = yard.park_on(&text(2, 2), &[DISK, HOST]);
    lose(&yard);
    assert!(!yard.broken(&whole));
    assert!(yard.broken(&half));
    let (lease, begun) = yard.resume(whole);
    assert_eq!((begun.cached, begun.hits), (8, [0, 0, 2, 0]));
    yard.land(&begun.plans);
    yard.finish(lease);
    let (lease, begun) = yard.resume(half);
    assert_eq!(begun.hits, [0, 0, 1, 0], "what the disk has of it");
    yard.land(&begun.plans);
    yard.finish(lease);
}

/// Law: INV-24
#[test]
fn without_a_keyed_tier_nothing_could_be_kept() {
    let yard = Yard::of(three(8, 4, 4));
    yard.publish(&text(1, 2));
    let refused = yard.cache.lock().lose_unkeyed();
    assert!(
        matches!(refused, Err(Error::Argument { .. })),
        "{refused:?}"
    );
    assert_eq!(yard.on_device(&text(1, 2)), 2);
}
