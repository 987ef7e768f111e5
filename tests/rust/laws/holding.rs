//! Held blocks stay where they are, and the generation of a slot tells when they do no more. (INV-36a,
//! INV-36b)

use crate::verbs::Verbs as _;
use crate::yard::{KINDS, SIZE, Yard, and_one, cat, config, each_of, on, text};
use blockyard_core::{Boot, Condemned, Config, Error, HeldBlocks, Holder, HolderId, Tier};
use std::num::NonZeroU32;

/// Holds what of a text is on the device.
fn try_hold(yard: &Yard, text: &[u32]) -> Option<HeldBlocks> {
    let chain = yard.chain(text);
    let path = yard.cache.lock().hold_blocks(chain.keys());
    yard.sound();
    let path = path.expect("there is memory");
    path.map(|path| yard.cache.handle_held(path))
}

fn hold(yard: &Yard, text: &[u32]) -> HeldBlocks {
    try_hold(yard, text).expect("some of it is there")
}

fn now(held: &HeldBlocks) -> Vec<u64> {
    let all = 0..held.slots().len();
    let now = all.map(|at| held.generation_now(at).expect("it has one"));
    now.collect()
}

fn release(yard: &Yard, held: &HeldBlocks) {
    held.release().expect("the yard is whole");
    yard.sound();
    assert!(!held.is_held());
}

/// Law: INV-36a
#[test]
fn what_is_held_is_evicted_by_nobody_until_it_is_released() {
    for yard in each_of(KINDS, config(8, 0)) {
        yard.publish(&text(1, 3));
        let held = hold(&yard, &and_one(&text(1, 3)));
        assert_eq!(held.keys(), yard.chain(&text(1, 3)).keys());
        assert_eq!(held.parents()[1..], held.keys()[..2]);
        assert_eq!((yard.stats().held_blocks, yard.device().takeable), (3, 0));
        assert!(yard.begin_reserving(&text(2, 6), 0).is_err(), "5 are free");
        yard.squeeze(0);
        assert_eq!(yard.on_device(&text(1, 3)), 3);
        assert_eq!(now(&held), held.generations());
        assert!(held.is_held());
        release(&yard, &held);
        assert_eq!(yard.stats().held_blocks, 0);
        yard.finish(
            yard.begin_reserving(&text(2, 6), 0)
                .expect("there is room")
                .0,
        );
    }
}

/// Law: INV-36b
#[test]
fn a_generation_changes_before_the_slot_has_another_block_and_never_comes_back() {
    let yard = Yard::new(3, 0);
    let mut seen = std::collections::BTreeSet::new();
    for name in 1..9 {
        yard.publish(&text(name, 3));
        let held = hold(&yard, &text(name, 3));
        let rows = held.slots().iter().zip(held.generations());
        for (&slot, &generation) in rows.clone() {
            assert!(
                seen.insert((slot, generation)),
                "{slot}: {generation} again"
            );
        }
        release(&yard, &held);
        for ((_, told), now) in rows.zip(now(&held)) {
            assert!(
                now > *told,
                "it is raised with the end, and not when it is held again"
            );
        }
    }
}

/// Law: INV-36b
#[test]
fn a_generation_is_raised_with_the_last_of_several_holds_alone() {
    let yard = Yard::new(8, 0);
    yard.publish(&text(1, 4));
    let (long, short) = (hold(&yard, &text(1, 4)), hold(&yard, &text(1, 2)));
    assert_eq!(short.generations(), &long.generations()[..2]);
    release(&yard, &long);
    assert!(short.is_held(), "one's end is not the other's");
    assert_eq!(now(&short), short.generations());
    let raised: Vec<bool> = (0..4)
        .map(|at| now(&long)[at] > long.generations()[at])
        .collect();
    assert_eq!(raised, [false, false, true, true]);
    release(&yard, &short);
    assert!(
        now(&short)
            .iter()
            .zip(short.generations())
            .all(|(now, told)| now > told)
    );
}

/// Law: INV-36b
#[test]
fn the_same_slot_has_another_generation_in_another_boot() {
    let generations = [1, 7].map(|boot| {
        let boot = Boot(NonZeroU32::new(boot).expect("not 0"));
        let yard = Yard::of(Config {
            boot,
            ..config(8, 0)
        });
        yard.publish(&text(1, 2));
        let held = hold(&yard, &text(1, 2));
        (
            held.slots().to_vec(),
            held.generations().to_vec(),
            yard.cache.lock().digest(),
        )
    });
    let [(slots, first, one), (same, second, other)] = generations;
    assert_eq!(slots, same);
    assert_eq!(first, [1 << 32 | 1; 2]);
    assert_eq!(second, [7 << 32 | 1; 2]);
    assert_eq!(one, other, "replicas differ in their boot");
}

/// Law: INV-36a, INV-36b
#[test]
fn a_verb_that_takes_the_blocks_ends_their_holds() {
    type End = (&'static str, fn(&Yard));
    let ends: [End; 4] = [
        ("clear", |yard| yard.cache.lock().clear()),
        ("lost", |yard| yard.cache.lock().lose_but(&[Tier::HOST])),
        ("forgotten", |yard| {
            let chain = yard.chain(&text(1, 2));
            let what = Condemned::Keys(&chain.keys()[1..]);
            yard.cache.forget(what, false).expect("there is memory");
        }),
        ("forgotten at once", |yard| {
            let chain = yard.chain(&text(1, 3));
            let what = Condemned::Keys(&chain.keys()[1..]);
            yard.cache
                .lock()
                .forget(what, true)
                .expect("there is memory");
        }),
    ];
    for (how, end) in ends {
        let yard = Yard::new(12, 4);
        yard.publish(&text(1, 3));
        yard.publish(&text(2, 2));
        let (all, first) = (hold(&yard, &text(1, 3)), hold(&yard, &text(1, 1)));
        let other = hold(&yard, &text(2, 2));
        end(&yard);
        yard.sound();
        assert!(!all.is_held(), "{how}");
        assert!(
            now(&all)[1..]
                .iter()
                .zip(&all.generations()[1..])
                .all(|(now, told)| now > told)
        );
        let forgets = how.starts_with("forgotten");
        for held in [&first, &other] {
            assert_eq!(held.is_held(), forgets, "{how}: only of what was named");
            assert_eq!(now(held) == held.generations(), forgets);
        }
        // A release after that is nothing, and no leak.
        release(&yard, &all);
        drop(all);
        assert_eq!(yard.stats().counters.leaked, 0, "{how}");
        assert_eq!(yard.stats().held_blocks, if forgets { 3 } else { 0 });
    }
}

/// Law: INV-36a, INV-42
#[test]
fn what_a_parked_sequence_keeps_stays_when_it_is_forgotten_and_its_hold_ends() {
    let yard = Yard::new(12, 8);
    let parked = yard
        .cache
        .park(yard.run(&text(1, 3)), 3 * SIZE)
        .expect("there is room");
    let held = hold(&yard, &text(1, 3));
    let chain = yard.chain(&text(1, 3));
    let done = yard
        .cache
        .forget(Condemned::Keys(chain.keys()), false)
        .expect("memory");
    yard.sound();
    assert_eq!((done.blocks, done.kept), (0, vec![parked.id()]));
    assert!(!held.is_held());
    assert_eq!(yard.on_device(&text(1, 3)), 3);
}

/// Law: INV-22, INV-36a
#[test]
fn a_hold_stops_before_a_block_that_backs_a_promise_and_moves_nothing() {
    let yard = Yard::new(8, 0);
    yard.publish(&text(1, 4));
    let ticket = yard.cache.promise(6, Tier::DEVICE).expect("there is room");
    let held = hold(&yard, &text(1, 4));
    assert_eq!(
        held.slots().len(),
        2,
        "of 4 free and 4 evictable blocks 6 are promised"
    );
    assert!(try_hold(&yard, &text(3, 2)).is_none());
    yard.cache.release(ticket).expect("it is open");
    assert_eq!(hold(&yard, &text(1, 4)).slots().len(), 4);
    assert_eq!(
        yard.cache
            .lock()
            .room(Tier::DEVICE)
            .expect("it is there")
            .evicted,
        0
    );
}

/// Law: INV-36a
#[test]
fn a_hold_outlives_its_sequence_and_is_among_the_holders() {
    let yard = Yard::new(12, 0);
    let lease = yard.run(&text(1, 3));
    let held = hold(&yard, &text(1, 3));
    yard.finish(lease);
    let other = yard.run(&cat(&text(1, 1), &text(2, 1)));
    let holder = |id, blocks, alone| Holder {
        id,
        held: on([blocks, 0]),
        alone,
        promised: on([0, 0]),
    };
    let all = [
        holder(HolderId::Hold(held.id()), 3, 2),
        holder(HolderId::Lease(other.id()), 2, 1),
    ];
    assert_eq!(yard.cache.lock().holders(), all);
    yard.finish(other);
    drop(held);
    assert_eq!(yard.cache.lock().holders(), []);
    assert_eq!(yard.stats().counters.leaked, 1, "it was dropped");
}

/// Law: INV-36a
#[test]
fn slots_of_a_later_resize_have_no_generation_and_a_held_slot_does_not_shrink_away() {
    let yard = Yard::new(4, 0);
    yard.publish(&text(1, 2));
    yard.cache.lock().resize(Tier::DEVICE, 9).expect("it grows");
    yard.publish(&text(1, 4));
    yard.publish(&text(2, 2));
    assert!(try_hold(&yard, &text(2, 2)).is_none());
    let held = hold(&yard, &text(1, 4));
    assert_eq!(held.slots(), [1, 2]);
    let shrunk = yard.cache.lock().resize(Tier::DEVICE, 2);
    assert!(matches!(shrunk, Err(Error::InUse { .. })), "{shrunk:?}");
    release(&yard, &held);
    yard.cache
        .lock()
        .resize(Tier::DEVICE, 2)
        .expect("nothing is held");
    yard.sound();
}

/// Law: INV-36a
#[test]
fn an_engines_own_blocks_are_not_held_here() {
    let yard = Yard::of(Config {
        engine: true,
        ..config(8, 4)
    });
    let held = yard
        .cache
        .lock()
        .hold_blocks(yard.chain(&text(1, 2)).keys());
    assert!(matches!(held, Ok(None)), "nothing is below: {held:?}");
}

/// Law: INV-36a
#[test]
fn the_end_of_a_hold_is_the_last_use_of_its_blocks() {
    let yard = Yard::new(6, 0);
    yard.publish(&text(1, 2));
    let held = hold(&yard, &text(1, 2));
    yard.publish(&text(2, 2));
    release(&yard, &held);
    yard.squeeze(2);
    assert_eq!(
        (yard.on_device(&text(1, 2)), yard.on_device(&text(2, 2))),
        (2, 0)
    );
}
