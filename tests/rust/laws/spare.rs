//! Slots that are kept free ahead of need: how many, of whose blocks, and what is never lost by it.

use crate::yard::{KINDS, SIZE, Yard, and_one, config, text};
use blockyard_core::{
    Cache, Config, Error, EvictionPolicy, Growth, KeyHash, Loading, Namespace, Tier, WritePolicy,
};

/// The device has a null slot beside those.
fn sparing(spare: impl Into<Option<u32>>, device: u32, host: u32) -> Config {
    Config {
        spare: spare.into(),
        ..config(device, host)
    }
}

/// A device that is full of idle chains of four blocks.
fn full(config: Config) -> Yard {
    let blocks = config.slots[0] - config.null_slots;
    let yard = Yard::of(config);
    for name in 0..blocks / 4 {
        yard.publish(&text(name, 4));
    }
    assert_eq!(yard.device().free, u64::from(blocks % 4));
    yard
}

fn make_spare(yard: &Yard) -> u32 {
    let made = yard.cache.lock().make_spare();
    yard.sound();
    made
}

/// Free slots, all evictions of the device, and those ahead of need.
fn evicted(yard: &Yard) -> (u64, u64, u64) {
    let counters = yard.stats().counters;
    (
        yard.device().free,
        counters.evicted[0],
        counters.evicted_ahead,
    )
}

fn refusal(config: Config) -> String {
    let made = Cache::new(config, KeyHash::default(), &Namespace::default());
    let error = made.map(drop).expect_err("too many");
    assert!(matches!(error, Error::Argument { name: "spare", .. }));
    error.to_string()
}

/// Law: R2-11
#[test]
fn a_64th_of_the_device_is_kept_free_and_512_at_most() {
    for (slots, spare) in [
        (63, 0),
        (64, 1),
        (127, 1),
        (6_400, 100),
        (32_768, 512),
        (65_536, 512),
    ] {
        let yard = Yard::new(slots - 1, 0);
        yard.publish(&text(1, u64::from(slots - 1)));
        assert_eq!(make_spare(&yard), spare, "of {slots}");
        assert_eq!(evicted(&yard), (spare.into(), spare.into(), spare.into()));
        assert_eq!(make_spare(&yard), 0, "it is there");
    }
}

/// Law: R2-11
#[test]
fn more_than_a_64th_is_refused_and_none_makes_none() {
    for (slots, most) in [(16, 8), (512, 8), (640, 10), (64_000, 1_000)] {
        for spare in [most + 1, u32::MAX] {
            let said = refusal(sparing(spare, slots - 1, 0));
            assert!(
                said.starts_with(&format!("spare = {spare}, where at most {most}")),
                "{said}"
            );
        }
        Yard::of(sparing(most, slots - 1, 0));
    }
    let owned = Config {
        engine: true,
        null_slots: 0,
        ..sparing(1, 16, 0)
    };
    assert!(refusal(owned).contains("itself"));
    let yard = full(sparing(0, 640, 0));
    assert_eq!((make_spare(&yard), evicted(&yard)), (0, (0, 0, 0)));
}

/// A begin that finds its room evicts nothing, and one that needs more than was kept free only the rest.
/// Law: R2-11, R2-7
#[test]
fn the_front_of_the_order_goes_ahead_and_a_begin_takes_what_is_free() {
    for policy in KINDS {
        for few in [3, 8] {
            let yard = full(Config {
                policy,
                ..sparing(few, 40, 0)
            });
            let order = yard.cache.lock().eviction_order(Tier::DEVICE).unwrap();
            assert_eq!(make_spare(&yard), few);
            let after = yard.cache.lock().eviction_order(Tier::DEVICE).unwrap();
            assert_eq!(after, order[few as usize..], "{policy:?}");
            let few = u64::from(few);
            let (lease, _) = yard.begin(&text(90, few));
            assert_eq!(evicted(&yard), (0, few, few));
            yard.finish(lease);
            make_spare(&yard);
            let (lease, _) = yard.begin(&text(91, few + 2));
            let told = evicted(&yard);
            assert_eq!(told, (0, told.2 + 2, told.2), "only the deficit");
            yard.finish(lease);
        }
    }
}

/// Law: R2-11
#[test]
fn a_step_makes_it_once_and_leaves_each_promise_backed() {
    let yard = full(sparing(4, 40, 0));
    let (lease, _) = yard.begin_reserving(&text(80, 6), 20 * SIZE).unwrap();
    assert_eq!(evicted(&yard), (0, 6, 0), "a begin makes none ahead");
    assert!(yard.grow(&lease, 1));
    assert_eq!(evicted(&yard), (4, 11, 4));
    assert_eq!((yard.device().promised, yard.device().takeable), (19, 29));
    let growth = Growth {
        more: |_| SIZE,
        width: None,
        loading: Loading::Refuse,
    };
    let mut state = yard.cache.lock();
    state.decode_step(&[lease.id()], &[], &growth).unwrap();
    drop(state);
    assert_eq!(evicted(&yard), (4, 12, 5));
    assert_eq!(yard.device().promised, 18);
    yard.finish(lease);
    assert_eq!(evicted(&yard).1, 12, "the end of a sequence makes none");
}

/// Law: R2-11, INV-20l
#[test]
fn a_victim_that_a_tier_below_could_take_stays_until_it_has_its_copy() {
    for policy in KINDS {
        let yard = full(Config {
            policy,
            ..sparing(8, 40, 80)
        });
        assert_eq!(make_spare(&yard), 0, "{policy:?}: nothing is below");
        let plan = yard.demote(6).expect("victims");
        assert_eq!(make_spare(&yard), 0, "they are on their way");
        yard.land(&[plan]);
        assert_eq!(make_spare(&yard), 6, "{policy:?}");
        let counters = yard.stats().counters;
        assert_eq!((counters.evicted[0], counters.dropped[0]), (6, 0));
        yard.copy_down(2);
        assert_eq!((make_spare(&yard), make_spare(&yard)), (2, 0));
    }
}

/// What no tier below will ever take goes: used once where copies are of what was used again, or cleared.
/// Law: R2-11
#[test]
fn a_victim_that_no_tier_below_will_take_goes() {
    let yard = full(Config {
        write: WritePolicy::SecondTouch,
        ..sparing(8, 40, 80)
    });
    assert_eq!(make_spare(&yard), 8);
    let again = text(2, 4);
    let (lease, _) = yard.begin(&and_one(&again));
    yard.finish(lease);
    let rest = yard.device().takeable as u32 - 4;
    yard.squeeze(rest);
    assert_eq!(yard.on_device(&again), 4);
    let (held, _) = yard.begin(&text(70, yard.device().free));
    assert_eq!(make_spare(&yard), 0, "they were used again");
    yard.cache.lock().clear();
    assert_eq!(make_spare(&yard), 4);
    yard.finish(held);
}

/// What is kept free does not count as free where copies ahead look at how much is: else they would end
/// before any victim has its copy.
/// Law: R2-11, INV-20l
#[test]
fn copies_ahead_go_on_behind_what_is_kept_free() {
    let yard = full(sparing(8, 40, 80));
    let mut rounds = 0;
    loop {
        let plan = yard.cache.lock().copy_ahead(Tier::DEVICE, 2, false);
        let Some(plan) = plan else { break };
        yard.land(&[plan]);
        make_spare(&yard);
        rounds += 1;
    }
    // Paths of four go down root first: the last is one whose end is the next two victims.
    assert_eq!((rounds, evicted(&yard)), (6, (8, 8, 8)));
    assert_eq!(yard.stats().counters.dropped[0], 0);
}

/// Law: R2-11
#[test]
fn a_device_that_has_shrunk_keeps_none_free_until_it_is_whole_again() {
    for few in [2, 8] {
        let yard = full(sparing(few, 40, 0));
        yard.resize(Tier::DEVICE, 33);
        let before = evicted(&yard);
        assert_eq!((make_spare(&yard), evicted(&yard)), (0, before));
        yard.resize(Tier::DEVICE, 41);
        let lacks = few - yard.device().free.min(few.into()) as u32;
        assert_eq!(make_spare(&yard), lacks);
        assert_eq!(yard.device().free, 8.max(few.into()));
    }
}

/// A lease holds blocks that were forgotten: what is idle goes as before, one by one.
/// Law: R2-11, INV-42
#[test]
fn while_something_forgotten_is_still_in_use_it_is_made_as_well() {
    let yard = full(sparing(8, 40, 0));
    let prompt = text(1, 4);
    let (lease, _) = yard.begin(&and_one(&prompt));
    let chain = yard.chain(&prompt);
    let what = blockyard_core::Condemned::Keys(chain.keys());
    yard.cache.lock().forget(what, false).unwrap();
    yard.sound();
    let (free, before, _) = evicted(&yard);
    let made = make_spare(&yard);
    assert_eq!(evicted(&yard), (8, before + 8 - free, 8 - free));
    assert_eq!(u64::from(made), 8 - free);
    yard.finish(lease);
    assert_eq!(
        evicted(&yard).2,
        8 - free,
        "what was forgotten is no eviction"
    );
}

/// Nothing that is held, kept or read goes, however little is free.
/// Law: R2-11
#[test]
fn only_what_is_idle_goes() {
    for policy in [EvictionPolicy::Recency, EvictionPolicy::Heap] {
        let yard = full(Config {
            policy,
            ..sparing(8, 40, 0)
        });
        let (lease, _) = yard.begin(&text(60, 37));
        assert_eq!(make_spare(&yard), 3);
        assert_eq!((yard.device().free, yard.device().idle), (3, 0));
        assert_eq!(make_spare(&yard), 0);
        yard.finish(lease);
    }
}

/// Nobody waits long for the yard while it is made.
/// Law: R2-11, INV-4
#[test]
fn one_call_evicts_1024_at_most() {
    let slots = 96_000;
    let yard = Yard::of(sparing(1_500, slots - 1, 0));
    yard.publish(&text(1, u64::from(slots - 1)));
    let made: Vec<u32> = (0..3).map(|_| make_spare(&yard)).collect();
    assert_eq!(made, [1_024, 476, 0]);
}
