//! What plans carry besides slots, and how they are written as bytes.

use crate::verbs::Verbs as _;
use crate::yard::{SIZE, Yard, and_one, cat, config, one, text, tokens};
use blockyard_core::{
    Cache, Chain, Config, Error, FlightId, Group, Key, KeyHash, MAX_TIERS, Namespace, Plan,
    Sealing, Tier, YardId,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, RngSeed};

/// A yard whose host must know the keys of its blocks.
fn keyed(device: u32, host: u32) -> Yard {
    Yard::of(Config {
        keyed: [false, true, false, false],
        ..config(device, host)
    })
}

/// The numbers of bytes of a plan before its slots, and of each block.
fn written(plan: &Plan) -> (Vec<u8>, usize, usize) {
    let bytes = plan.to_bytes();
    assert_eq!(Plan::from_bytes(&bytes).as_ref(), Ok(plan));
    let header = if bytes.starts_with(b"Y3") { 24 } else { 32 };
    (
        bytes[..2].to_vec(),
        header,
        (bytes.len() - header) / plan.len(),
    )
}

#[test]
fn to_a_keyed_tier_go_keys_and_parents_and_from_one_come_keys() {
    let yard = keyed(8, 8);
    let prompt = text(1, 3);
    let chain = yard.chain(&prompt);
    let keys = chain.keys();
    yard.publish(&prompt);
    let down = yard.demote(3).expect("three are idle");
    assert_eq!(down.keys, [keys[2], keys[1], keys[0]], "leaves first");
    assert_eq!(down.parents, [keys[1], keys[0], Key::NO_PARENT]);
    assert_eq!(written(&down), (b"Y4".to_vec(), 32, 8 + 64));
    yard.land(&[down]);
    yard.squeeze(3);
    let (lease, begun) = yard.begin(&and_one(&prompt));
    let up = one(&begun);
    assert_eq!((&up.keys[..], &up.parents[..]), (keys, &[][..]));
    assert_eq!(written(up), (b"Y4".to_vec(), 32, 8 + 32));
    yard.land(&begun.plans);
    yard.finish(lease);
}

#[test]
fn what_is_loaded_of_a_full_hit_has_its_key_like_the_rest() {
    let yard = keyed(8, 8);
    let prompt = text(1, 2);
    yard.publish_below(&prompt);
    let chain = yard.chain(&prompt);
    let (lease, begun) = yard.begin(&prompt);
    let carried: Vec<Key> = begun.plans.iter().flat_map(|up| up.keys.clone()).collect();
    assert_eq!((begun.plans.len(), &carried[..]), (2, chain.keys()));
    yard.land(&begun.plans);
    yard.finish(lease);
    yard.publish_below(&text(2, 1));
    let chain = yard.chain(&text(2, 1));
    let ahead = yard.promote(&text(2, 1), 1).unwrap();
    assert_eq!(ahead.keys, chain.keys());
    yard.land(&[ahead]);
}

#[test]
fn plans_between_tiers_that_need_no_keys_have_none() {
    for keyed in [[false; MAX_TIERS], [false, false, true, false]] {
        let yard = Yard::of(Config {
            keyed,
            ..config(12, 8)
        });
        yard.publish(&text(1, 3));
        let down = yard.demote(3).expect("three are idle");
        let parked = yard.park(yard.run(&tokens(2, 7)), 7);
        let tail = yard.demote_parked(&parked, 2).expect("two are kept");
        for plan in [&down, &tail] {
            assert_eq!((plan.keys.len(), plan.parents.len(), plan.rank), (0, 0, 0));
            assert_eq!(written(plan), (b"Y3".to_vec(), 24, 8));
        }
        yard.land(&[down, tail]);
        yard.abandon(parked);
    }
    let yard = self::keyed(8, 8);
    let lease = yard.run(&tokens(1, 6));
    let (forked, begun) = yard.cache.fork(&lease, 6, 0).unwrap();
    assert_eq!(
        written(one(&begun)),
        (b"Y3".to_vec(), 24, 8),
        "on the device"
    );
    yard.land(&begun.plans);
    yard.finish(lease);
    yard.finish(forked);
}

#[test]
fn a_block_without_a_key_has_one_that_is_its_own_as_long_as_it_is_parked() {
    let yard = keyed(16, 8);
    let prompt = cat(&text(1, 1), &tokens(2, 2));
    let root = yard.chain(&prompt).keys()[0];
    let park = || yard.park(yard.run(&prompt), 6);
    let (first, second) = (park(), park());
    let [down, other] = [&first, &second].map(|parked| {
        let plan = yard.demote_parked(parked, 2).expect("two are kept");
        yard.land(std::slice::from_ref(&plan));
        plan
    });
    let tail = down.keys[0];
    assert!(tail.is_anonymous() && !root.is_anonymous());
    assert_eq!(tail.0[..24], [0; 24]);
    assert_eq!(
        (down.keys[1], &down.parents[..]),
        (root, &[root, Key::NO_PARENT][..])
    );
    assert!(other.keys[0].is_anonymous());
    assert_ne!(other.keys, [tail], "each has its own");
    yard.squeeze(3);
    let (lease, begun) = yard.resume(first);
    assert_eq!(
        one(&begun).keys,
        [root, tail],
        "the one that it was stored under"
    );
    yard.fail(one(&begun), 0);
    let first = yard.park_again(lease);
    let (lease, begun) = yard.resume(first);
    assert_eq!(one(&begun).keys, [root, tail], "it was parked all the time");
    yard.land(&begun.plans);
    yard.seal(&lease, 6);
    yard.finish(lease);
    yard.abandon(second);
}

#[test]
fn behind_a_block_without_a_key_stands_its_number_and_before_the_first_one_nothing() {
    let yard = keyed(8, 8);
    let (lease, _) = yard.begin(&text(1, 2));
    let row = Sealing {
        lease: lease.id(),
        computed: 8,
        first: 0,
        keys: &[],
        spoken: None,
    };
    let id = yard
        .cache
        .lock()
        .park(&row, None)
        .expect("the host has room");
    let parked = lease.into_parked(id);
    let plan = yard.demote_parked(&parked, 2).expect("two are kept");
    let [leaf, root] = plan.keys[..] else {
        panic!("{plan:?}")
    };
    assert!(leaf.is_anonymous() && root.is_anonymous() && leaf != root);
    assert_eq!(plan.parents, [root, Key::NO_PARENT]);
    assert!(![Key::NO_PARENT, Key::UNKNOWN].iter().any(Key::is_anonymous));
    yard.land(&[plan]);
    yard.abandon(parked);
}

#[test]
fn the_keys_are_those_of_the_launch_though_the_block_is_gone_at_the_dispatch() {
    let yard = keyed(8, 8);
    let prompt = cat(&text(1, 1), &tokens(2, 2));
    let parked = yard.park(yard.run(&prompt), 6);
    let plan = yard.demote_parked(&parked, 2).expect("two are kept");
    yard.abandon(parked);
    yard.publish(&text(3, 2));
    let dispatched = yard.cache.lock().dispatch();
    assert_eq!(dispatched, std::slice::from_ref(&plan));
    assert!(plan.keys[0].is_anonymous(), "and its tail has dissolved");
    yard.land(&[plan]);
}

#[test]
fn a_plan_with_other_keys_is_not_the_one_of_the_flight() {
    let yard = keyed(8, 8);
    yard.publish(&text(1, 2));
    let plan = yard.demote(2).expect("two are idle");
    let check = |plan: &Plan| yard.cache.lock().check_plan(plan);
    assert_eq!(check(&plan), Ok(()));
    let mut others = [plan.clone(), plan.clone(), plan.clone(), plan.clone()];
    others[0].keys[1].0[31] ^= 1;
    others[1].parents[0].0[0] ^= 1;
    others[2].parents.clear();
    (others[3].keys, others[3].parents) = Default::default();
    for other in &others {
        let number = plan.flight.number();
        assert_eq!(check(other), Err(Error::UnknownFlight { number }));
    }
    yard.land(&[plan]);
}

/// Two leases over one full block that neither has sealed; the first is parked, which gives the block
/// a node without a key.
fn fork_of_a_parked_block(yard: &Yard) -> (blockyard_core::Parked, blockyard_core::Lease) {
    let (lease, _) = yard.begin(&text(1, 2));
    let (forked, _) = yard.cache.fork(&lease, 8, 0).expect("all of it is shared");
    let row = Sealing {
        lease: lease.id(),
        computed: 8,
        first: 0,
        keys: &[],
        spoken: None,
    };
    let id = yard
        .cache
        .lock()
        .park(&row, None)
        .expect("the host has room");
    (lease.into_parked(id), forked)
}

#[test]
fn what_was_stored_without_a_key_gets_none_before_its_copy_is_gone() {
    let yard = keyed(8, 8);
    let (parked, forked) = fork_of_a_parked_block(&yard);
    let down = yard.demote_parked(&parked, 2).expect("two are kept");
    assert_eq!(
        yard.seal(&forked, 8),
        0,
        "it is on its way down without a key"
    );
    yard.land(std::slice::from_ref(&down));
    assert_eq!(yard.seal(&forked, 8), 0, "it lies there without a key");
    let (lease, begun) = yard.resume(parked);
    assert_eq!(begun.plans, [], "the fork holds it on the device");
    assert_eq!(yard.seal(&forked, 8), 2, "nothing lies there any more");
    assert_eq!(yard.seal(&lease, 8), 2);
    let again = yard.demote_lease(&lease, 2);
    assert_eq!(again.keys, yard.chain(&text(1, 2)).keys());
    yard.land(&[again]);
    yard.finish(lease);
    yard.finish(forked);
}

#[test]
fn what_only_the_device_has_gets_its_key_though_a_fork_is_parked() {
    for yard in [keyed(8, 8), Yard::new(8, 8)] {
        let (parked, forked) = fork_of_a_parked_block(&yard);
        assert_eq!(yard.seal(&forked, 8), 2);
        yard.abandon(parked);
        yard.finish(forked);
    }
}

#[test]
fn a_key_that_stands_for_something_else_is_not_published_where_a_tier_is_keyed() {
    let key = |first: u8, last: u8| {
        let mut key = [first; 32];
        key[31] = last;
        Key(key)
    };
    let reserved = [Key::NO_PARENT, key(0, 7), Key::UNKNOWN];
    let good = [key(0xFF, 0), key(1, 1)];
    for key in reserved.iter().chain(&good) {
        for (yard, knows_keys) in [(keyed(8, 8), true), (Yard::new(8, 8), false)] {
            let chain = Chain::ready(SIZE as u32, vec![*key], SIZE).unwrap();
            let begun = yard.cache.begin(chain, 0, u32::MAX).unwrap();
            let (lease, _) = begun.expect("nothing is in flight");
            let sealed = yard.cache.seal(&[(&lease, SIZE)]);
            if knows_keys && !good.contains(key) {
                let Err(Error::Argument { name, value, .. }) = sealed else {
                    panic!("{key:?} was taken: {sealed:?}");
                };
                assert_eq!((name, value), ("key", key.hex()));
                let (lease, error) = yard.cache.park(lease, SIZE).unwrap_err();
                assert!(matches!(error, Error::Argument { name: "key", .. }));
                yard.finish(lease);
            } else {
                assert_eq!(sealed, Ok(1), "{key:?}");
                yard.finish(lease);
            }
        }
    }
}

#[test]
fn the_device_is_not_keyed() {
    let config = Config {
        keyed: [true, false, false, false],
        ..config(8, 8)
    };
    let made = Cache::new(config, KeyHash::default(), &Namespace::default());
    let Err(Error::Argument { name, value, .. }) = made else {
        panic!("it was made");
    };
    assert_eq!((name, &value[..]), ("keyed", "device"));
}

fn flight(number: u64) -> FlightId {
    FlightId::from_number(number).expect("a number")
}

/// Two blocks from the disk to the host, with all that a plan can have.
fn full() -> Plan {
    Plan {
        flight: flight(0x0102_0304_0506_0708),
        yard: YardId(0x1112_1314_1516_1718),
        group: Group(9),
        from: Tier::DISK,
        to: Tier::HOST,
        sources: vec![0x11, 0x12],
        destinations: vec![0x21, 0x22],
        keys: vec![Key([0x31; 32]), Key([0x32; 32])],
        parents: vec![Key([0x41; 32]), Key::NO_PARENT],
        rank: 0x0A0B,
    }
}

#[test]
fn a_plan_is_these_bytes() {
    const YARD: [u8; 8] = [0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11];
    let slots: Vec<u8> = [0x11, 0x12, 0x21, 0x22]
        .into_iter()
        .flat_map(|slot: u32| slot.to_le_bytes())
        .collect();
    let keys = [[0x31; 32], [0x32; 32]].concat();
    let parents = [[0x41; 32], [0; 32]].concat();
    let start = |flags: u8| {
        let blocks = [b'Y', b'4', 0x21, flags, 2, 0, 0, 0];
        let flight = [8, 7, 6, 5, 4, 3, 2, 1];
        let rest = [9, 0, 0x0B, 0x0A, 0, 0, 0, 0];
        [&blocks[..], &flight, &YARD, &rest].concat()
    };
    let mut plan = full();
    let bytes = |plan: &Plan| {
        assert_eq!(Plan::from_bytes(&plan.to_bytes()).as_ref(), Ok(plan));
        plan.to_bytes()
    };
    assert_eq!(
        bytes(&plan),
        [&start(3)[..], &slots, &keys, &parents].concat()
    );
    plan.parents.clear();
    assert_eq!(bytes(&plan), [&start(1)[..], &slots, &keys].concat());
    plan.keys.clear();
    assert_eq!(
        bytes(&plan),
        [&start(0)[..], &slots].concat(),
        "it has a rank"
    );
    plan.rank = 0;
    let blocks = [b'Y', b'3', 9, 0x21, 2, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1];
    assert_eq!(bytes(&plan), [&blocks[..], &YARD, &slots].concat());
    let empty = Plan {
        sources: vec![],
        destinations: vec![],
        ..plan
    };
    assert_eq!(bytes(&empty).len(), 24);
}

#[test]
fn bytes_that_are_no_plan_are_refused_with_what_is_wrong() {
    let good = full().to_bytes();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let cut = &good[..good.len() - 64];
    let mut no_blocks = good[..32].to_vec();
    no_blocks[4] = 0;
    let mut nothing = good[..32 + 16].to_vec();
    (nothing[3], nothing[26], nothing[27]) = (0, 0, 0);
    for (bytes, says) in [
        (good[..31].to_vec(), "whole"),
        (good[..3].to_vec(), "whole"),
        (cut.to_vec(), "32 + 8 per block and 32 per key"),
        (
            [&good[..], &[0; 64]].concat(),
            "32 + 8 per block and 32 per key",
        ),
        (changed(4, 3), "32 + 8 per block and 32 per key"),
        (changed(7, 0xFF), "32 + 8 per block and 32 per key"),
        (changed(3, 1), "32 + 8 per block and 32 per key"),
        (changed(1, b'1'), "version"),
        (changed(1, b'2'), "version"),
        (changed(1, b'5'), "version"),
        (changed(0, b'X'), "version"),
        (changed(1, b'3'), "24 + 8 per block"),
        (changed(2, 0x41), "tier"),
        (changed(2, 0x14), "tier"),
        (changed(3, 7), "flags"),
        (changed(3, 0x83), "flags"),
        (changed(3, 2), "none of the blocks themselves"),
        (changed(25, 1), "group"),
        (changed(28, 1), "reserved"),
        (changed(31, 0x80), "reserved"),
        (no_blocks, "no blocks"),
        (nothing, "a Y3"),
    ] {
        let Err(Error::Argument { name, value, help }) = Plan::from_bytes(&bytes) else {
            panic!("it was taken for a plan, {says}");
        };
        assert_eq!((name, value), ("plan", format!("{} bytes", bytes.len())));
        assert!(help.contains(says), "{help:?} does not say {says:?}");
    }
    let mut none = good;
    none[8..16].fill(0);
    assert!(Plan::from_bytes(&none).is_err(), "no flight");
}

fn runs() -> Runs {
    Runs {
        rng_seed: RngSeed::Fixed(7),
        cases: 512,
        failure_persistence: None,
        ..Runs::default()
    }
}

fn any_key() -> impl Strategy<Value = Key> {
    any::<[u8; 32]>().prop_map(Key)
}

prop_compose! {
    fn any_plan()(
        copies in vec((any::<u32>(), any::<u32>(), any_key(), any_key()), 0..5),
        (generation, index) in (1..=u32::MAX, any::<u32>()),
        (from, to) in (0..MAX_TIERS, 0..MAX_TIERS),
        yard in any::<u64>(),
        group in any::<u8>(),
        rank in prop_oneof![Just(0), any::<u16>()],
        carried in 0..3,
    ) -> Plan {
        Plan {
            flight: flight(u64::from(generation) << 32 | u64::from(index)),
            yard: YardId(yard),
            group: Group(group),
            from: Tier(from),
            to: Tier(to),
            sources: copies.iter().map(|copy| copy.0).collect(),
            destinations: copies.iter().map(|copy| copy.1).collect(),
            keys: copies.iter().filter(|_| carried > 0).map(|copy| copy.2).collect(),
            parents: copies.iter().filter(|_| carried > 1).map(|copy| copy.3).collect(),
            rank,
        }
    }
}

proptest! {
    #![proptest_config(runs())]
    #[test]
    fn a_plan_comes_back_from_its_bytes_and_no_part_of_them_is_one(plan in any_plan()) {
        let bytes = plan.to_bytes();
        prop_assert_eq!(Plan::from_bytes(&bytes), Ok(plan));
        for end in 0..bytes.len() {
            prop_assert!(Plan::from_bytes(&bytes[..end]).is_err());
        }
        prop_assert!(Plan::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn a_header_with_a_bit_changed_is_another_plan_or_none(plan in any_plan()) {
        let bytes = plan.to_bytes();
        for at in 0..bytes.len().min(32) {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                if let Ok(other) = Plan::from_bytes(&changed) {
                    prop_assert_ne!(&other, &plan, "byte {}, bit {}", at, bit);
                    prop_assert_eq!(other.to_bytes(), changed, "one form for each plan");
                }
            }
        }
    }

    #[test]
    fn whatever_bytes_come_a_plan_that_is_read_is_written_as_them(
        mut bytes in vec(any::<u8>(), 0..128),
        blocks in 0_u8..4,
        version in prop_oneof![Just(*b"Y3"), Just(*b"Y4")],
        calm in any::<bool>(),
    ) {
        // Without this hardly any would come as far as its length.
        let likely = [version[0], version[1], 0x10, 3, blocks, 0, 0, 0];
        for (byte, likely) in bytes.iter_mut().zip(likely) {
            *byte = likely;
        }
        if calm && bytes.len() >= 32 {
            bytes[25..32].fill(0);
        }
        if let Ok(plan) = Plan::from_bytes(&bytes) {
            prop_assert_eq!(plan.to_bytes(), bytes);
        }
    }
}
