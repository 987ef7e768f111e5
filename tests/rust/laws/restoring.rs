//! A tier that outlives its yard: what it has is published again before the first begin. (INV-20, 33)

use crate::yard::{KINDS, Yard, and_one, cat, config, text, three};
use blockyard_core::{Config, Error, Key, Plan, Stop, Tier};

const HOST: Tier = Tier::HOST;
const DISK: Tier = Tier::DISK;
const NONE: Key = Key([0; 32]);

/// A row of a table: slot, key and parent.
type Row = (u32, Key, Key);

fn keys(yard: &Yard, text: &[u32]) -> Vec<Key> {
    yard.chain(text).keys().to_vec()
}

/// A text's rows, the root first, in slots from `first` on.
fn rows(yard: &Yard, text: &[u32], first: u32) -> Vec<Row> {
    let keys = keys(yard, text);
    let parents = [NONE].into_iter().chain(keys.clone());
    let slots = first..;
    let rows = slots.zip(keys.iter().copied()).zip(parents);
    rows.map(|((slot, key), parent)| (slot, key, parent))
        .collect()
}

fn tell(yard: &Yard, tier: Tier, rows: &[Row]) -> Result<(), Error> {
    let slots: Vec<u32> = rows.iter().map(|row| row.0).collect();
    let keys: Vec<Key> = rows.iter().map(|row| row.1).collect();
    let parents: Vec<Key> = rows.iter().map(|row| row.2).collect();
    let told = yard.cache.lock().restore(tier, &slots, &keys, &parents);
    yard.sound();
    told
}

fn yards(host: u32, disk: u32) -> impl Iterator<Item = Yard> {
    KINDS.into_iter().map(move |policy| {
        Yard::of(Config {
            policy,
            ..three(8, host, disk)
        })
    })
}

/// Makes the third tier evict one block of a text; says how many of it are left.
fn squeeze_disk(yard: &Yard, name: u32, left: &[u32]) -> u32 {
    assert_eq!((yard.disk().free, yard.host().capacity), (0, 0));
    let lease = yard.run(&text(name, 1));
    yard.land(&[yard.demote_lease(&lease, 1)]);
    yard.finish(lease);
    yard.hits(left)[2]
}

#[test]
fn what_was_restored_is_found_and_loaded_by_a_begin() {
    for yard in yards(4, 8) {
        let prompt = text(1, 3);
        tell(&yard, DISK, &rows(&yard, &prompt, 2)).unwrap();
        assert_eq!((yard.disk().idle, yard.disk().free), (3, 5));
        assert_eq!(yard.hits(&prompt), [0, 0, 3, 0]);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        assert_eq!(
            (begun.cached, &begun.plans[0].sources[..]),
            (12, &[2, 3, 4][..])
        );
        yard.land(&begun.plans);
        yard.finish(lease);
        assert_eq!(yard.hits(&prompt), [3, 0, 0, 0]);
    }
}

/// Law: INV-33
#[test]
fn rows_are_evicted_in_their_order_but_a_block_behind_its_children() {
    for yard in yards(0, 6) {
        let [one, two] = [1, 2].map(|name| text(name, 2));
        // The root of the first is its oldest row, and then waits for its child.
        let (first, second) = (rows(&yard, &one, 0), rows(&yard, &two, 2));
        let table = [first[0], second[1], second[0], first[1]];
        tell(&yard, DISK, &table).unwrap();
        yard.resize(DISK, 4);
        let seen = [10, 11, 12, 13].map(|name| {
            let left = squeeze_disk(&yard, name, &two);
            (left, yard.hits(&one)[2])
        });
        assert_eq!(seen, [(1, 2), (0, 2), (0, 1), (0, 0)]);
    }
}

#[test]
fn the_order_that_a_tier_remembers_is_the_one_it_is_told_again() {
    for yard in yards(0, 8) {
        let (one, two) = (text(1, 2), text(2, 1));
        let all = [rows(&yard, &one, 0), rows(&yard, &two, 5)].concat();
        tell(&yard, DISK, &all).unwrap();
        // A block stands behind its children.
        let order = || yard.cache.lock().eviction_order(DISK).unwrap();
        let before = order();
        assert_eq!(before.len(), 3);
        let place = |slot| before.iter().position(|&one| one == slot).unwrap();
        assert!(place(1) < place(0));
        let again = Yard::of(three(8, 0, 8));
        let told: Vec<Row> = before
            .iter()
            .map(|&slot| *all.iter().find(|row| row.0 == slot).unwrap())
            .collect();
        tell(&again, DISK, &told).unwrap();
        assert_eq!(again.cache.lock().eviction_order(DISK).unwrap(), before);
        let refused = yard.cache.lock().eviction_order(HOST);
        assert!(refused.unwrap().is_empty());
    }
}

/// Law: INV-33
#[test]
fn a_stem_stands_behind_all_its_branches() {
    for yard in yards(0, 4) {
        let stem = text(1, 1);
        let [left, right] = [2, 3].map(|name| cat(&stem, &text(name, 1)));
        let (one, two) = (rows(&yard, &left, 0), rows(&yard, &right, 2));
        let other = rows(&yard, &text(4, 1), 3)[0];
        tell(
            &yard,
            DISK,
            &[one[0], one[1], (2, two[1].1, two[1].2), other],
        )
        .unwrap();
        let seen = [10, 11, 12].map(|name| {
            squeeze_disk(&yard, name, &stem);
            [&left, &right, &text(4, 1)].map(|text| yard.hits(text)[2])
        });
        assert_eq!(
            seen,
            [[1, 2, 1], [1, 1, 1], [0, 0, 1]],
            "behind its last branch"
        );
    }
}

/// Law: INV-33
#[test]
fn what_has_lost_its_parent_is_found_again_by_a_walk_that_passes_there() {
    for yard in yards(4, 8) {
        let prompt = text(1, 4);
        let table = rows(&yard, &prompt, 0);
        tell(&yard, DISK, &[table[3], table[2], table[0]]).unwrap();
        let probe = yard.probe(&prompt);
        assert_eq!((probe.hits, probe.stop), ([0, 0, 1, 0], Stop::Missing));
        let (lease, begun) = yard.begin(&prompt);
        assert_eq!(begun.cached, 4);
        yard.land(&begun.plans);
        yard.seal(&lease, 8);
        assert_eq!(
            yard.hits(&prompt),
            [2, 0, 2, 0],
            "an orphan contradicts nothing"
        );
        yard.finish(lease);
        let (lease, begun) = yard.begin(&and_one(&prompt));
        assert_eq!(begun.cached, 16);
        yard.land(&begun.plans);
        yard.finish(lease);
        assert_eq!(yard.hits(&prompt), [4, 0, 0, 0]);
    }
}

/// Law: INV-33
#[test]
fn an_orphan_that_nobody_asks_for_is_aged_out() {
    for yard in yards(0, 2) {
        let table = rows(&yard, &text(1, 2), 0);
        let other = rows(&yard, &text(2, 1), 1)[0];
        tell(&yard, DISK, &[(0, table[1].1, table[1].2), other]).unwrap();
        assert_eq!(squeeze_disk(&yard, 10, &text(2, 1)), 1);
        assert_eq!(yard.disk().idle, 2);
        assert_eq!(squeeze_disk(&yard, 11, &text(2, 1)), 0);
    }
}

#[test]
fn what_was_restored_is_parked_moved_and_copied_like_anything_else() {
    for yard in yards(4, 4) {
        let [prompt, deep] = [1, 2].map(|name| text(name, 2));
        tell(&yard, HOST, &rows(&yard, &prompt, 0)).unwrap();
        let plan = yard.demote_from(HOST, 4).unwrap();
        assert_eq!((plan.to, &plan.sources[..]), (DISK, &[1, 0][..]));
        yard.land(&[plan]);
        let lease = yard.run(&cat(&prompt, &text(3, 1)));
        let handle = yard.park(lease, 12);
        assert_eq!((yard.disk().pinned, yard.host().promised), (2, 1));
        yard.land(&[yard.move_parked(&handle, 4, DISK).unwrap()]);
        yard.resize(HOST, 0);
        yard.squeeze(3);
        let (lease, begun) = yard.resume(handle);
        assert_eq!(begun.hits, [0, 0, 3, 0]);
        yard.land(&begun.plans);
        yard.finish(lease);
        yard.publish(&deep);
        yard.cache.lock().clear();
        assert_eq!(yard.hits(&prompt), [0; 4]);
    }
}

#[test]
fn slots_that_were_not_named_are_given_out_in_their_order() {
    let yard = Yard::of(three(8, 0, 5));
    let table = rows(&yard, &text(1, 2), 0);
    tell(
        &yard,
        DISK,
        &[(3, table[0].1, NONE), (1, table[1].1, table[1].2)],
    )
    .unwrap();
    let lease = yard.run(&text(2, 3));
    let plan: Plan = yard.demote_lease(&lease, 3);
    assert_eq!(plan.destinations, [0, 2, 4]);
    yard.land(&[plan]);
    yard.finish(lease);
}

/// Law: INV-17
#[test]
fn two_yards_that_were_told_alike_have_one_digest() {
    let yards = [0, 0, 1].map(|first| {
        let yard = Yard::of(three(8, 4, 8));
        tell(&yard, DISK, &rows(&yard, &text(1, 3), first)).unwrap();
        yard
    });
    let digests = yards.each_ref().map(|yard| yard.cache.lock().digest());
    assert!(digests[0] == digests[1] && digests[1] != digests[2]);
}

/// Law: R2-8
#[test]
fn rows_that_cannot_be_are_refused_by_name_and_change_nothing() {
    let yard = Yard::of(three(8, 4, 4));
    let table = rows(&yard, &text(1, 3), 0);
    let key = |at: usize| table[at].1;
    let before = (yard.stats(), yard.cache.lock().digest());
    let refused = |tier, rows: &[Row], name: &str, value: &str| {
        let Err(Error::Argument {
            name: own,
            value: what,
            ..
        }) = tell(&yard, tier, rows)
        else {
            panic!("{name} = {value} should have been refused");
        };
        assert_eq!((own, &what[..]), (name, value));
        assert_eq!(before, (yard.stats(), yard.cache.lock().digest()));
    };
    refused(Tier::DEVICE, &table, "tier", "device");
    refused(Tier(3), &table, "tier", "remote");
    refused(DISK, &[table[0], (4, key(1), key(0))], "slots", "4");
    refused(DISK, &[table[0], (0, key(1), key(0))], "slots", "0");
    refused(DISK, &[table[0], (1, key(0), NONE)], "keys", &key(0).hex());
    refused(DISK, &[table[0], (1, NONE, key(0))], "keys", &NONE.hex());
    let all = Key([0xFF; 32]);
    refused(DISK, &[table[0], (1, all, key(0))], "keys", &all.hex());
    refused(DISK, &[(0, key(0), key(0))], "parents", &key(0).hex());
    let circle = [(0, key(2), NONE), (1, key(0), key(1)), (2, key(1), key(0))];
    refused(DISK, &circle, "parents", &key(0).hex());
    for (keys, parents, name) in [(2, 3, "keys"), (3, 2, "parents")] {
        let keys: Vec<Key> = (0..keys).map(key).collect();
        let parents = vec![NONE; parents];
        let told = yard.cache.lock().restore(DISK, &[0, 1, 2], &keys, &parents);
        let Err(Error::Argument {
            name: own, value, ..
        }) = told
        else {
            panic!("{name} should have been refused");
        };
        assert_eq!((own, &value[..]), (name, "2"));
        assert_eq!(before, (yard.stats(), yard.cache.lock().digest()));
    }
    tell(&yard, DISK, &table).unwrap();
    assert_eq!(
        yard.hits(&text(1, 3)),
        [0, 0, 3, 0],
        "and as if nothing had been asked"
    );
}

#[test]
fn a_tier_is_restored_before_anything_has_begun_or_not_at_all() {
    let yard = Yard::of(config(8, 4));
    let table = rows(&yard, &text(1, 2), 0);
    tell(&yard, HOST, &table[..1]).unwrap();
    let again = tell(&yard, HOST, &table[1..]);
    assert!(matches!(again, Err(Error::State { .. })), "{again:?}");
    let yard = Yard::of(config(8, 4));
    let (lease, _) = yard.begin(&text(2, 1));
    yard.finish(lease);
    let before = yard.cache.lock().digest();
    let late = tell(&yard, HOST, &table);
    assert!(matches!(late, Err(Error::State { .. })), "{late:?}");
    assert_eq!(yard.cache.lock().digest(), before);
}

/// Law: INV-3
#[test]
fn a_restore_does_not_come_again_when_all_that_it_brought_has_left() {
    for yard in yards(4, 8) {
        let [first, second] = [text(1, 3), text(2, 2)];
        let all = [rows(&yard, &first, 0), rows(&yard, &second, 3)].concat();
        tell(&yard, DISK, &all).unwrap();
        yard.resize(DISK, 0);
        yard.resize(DISK, 8);
        let before = yard.cache.lock().digest();
        let again = tell(&yard, DISK, &all);
        assert!(matches!(again, Err(Error::State { .. })), "{again:?}");
        assert_eq!(yard.cache.lock().digest(), before);
        assert_eq!(yard.hits(&first), [0, 0, 0, 0]);
    }
}
