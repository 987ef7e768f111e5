//! Loads, puts and deletes of shared stores: a block counts when it has come, and no verb waits.
//! (INV-35a, INV-35b, INV-42)

use crate::stores::{HOST, REMOTE, engines, four, keys, yards};
use crate::yard::{KINDS, Yard, and_one, cat, each_of, text};
use blockyard_core::{Answer, Config, Filling, Key, Plan, Stop, Tier};

/// A store that has lost a block, or has another under its key, costs that block alone.
/// Law: INV-35a
#[test]
fn a_load_that_fails_drops_that_name_alone_and_is_a_miss() {
    for corrupt in [false, true] {
        for yard in yards(16, 4, 0, 8) {
            let prompt = and_one(&text(1, 4));
            let (lease, begun) = yard.begin_adopted(&prompt);
            yard.spoil(&begun.plans[0], 2, corrupt);
            assert_eq!(yard.view(&lease).cached, 8, "the good ones before it");
            let probe = yard.probe(&prompt);
            assert_eq!((probe.hits, probe.stop), ([2, 0, 0, 0], Stop::Missing));
            assert_eq!(yard.names(), 3, "nothing is known of the others");
            assert_eq!(yard.stats().counters.corrupt, u64::from(corrupt));
            yard.seal(&lease, 17);
            yard.finish(lease);
            assert_eq!(yard.hits(&prompt), [4, 0, 0, 0], "computed again");
            yard.at_rest();
        }
    }
}

/// As a request that moves to another engine needs it: from wherever its blocks are, past the host.
/// Law: INV-35a, INV-39
#[test]
fn a_path_is_written_to_a_store_whatever_tiers_it_lies_on() {
    for yard in yards(16, 8, 0, 4) {
        yard.adopt(&text(9, 3));
        let path = text(1, 5);
        yard.publish_below(&path[..8]);
        let running = yard.run(&path);
        let all = keys(&yard, &path);
        let write = |keys: &[Key]| {
            let written = yard.cache.lock().write_down(REMOTE, keys, &[]);
            written.expect("it has names").0
        };
        assert_eq!(
            write(&all[1..]),
            [],
            "nothing stands behind what is not there"
        );
        // Four names, of which three are idle: they go, and no other.
        let plans = write(&all);
        assert_eq!(plans.iter().map(Plan::len).sum::<usize>(), 4);
        assert!(plans.iter().all(|plan| plan.to == REMOTE));
        assert_eq!(
            write(&all),
            [],
            "they are on their way, and the fifth has no room"
        );
        assert_eq!(yard.cache.lock().written(REMOTE, &all), Ok(0));
        // The sequence ends, and what is read stays.
        yard.finish(running);
        yard.land(&plans);
        assert_eq!(yard.cache.lock().written(REMOTE, &all), Ok(4));
        assert_eq!((yard.names(), yard.stats().tiers[REMOTE.0].idle), (4, 4));
        assert_eq!(write(&all), [], "no name goes for its own continuation");
        yard.at_rest();
    }
}

/// A store that refused a prefix has it now, from elsewhere; what stands on that may go down, too.
/// Law: INV-20
#[test]
fn what_was_passed_over_is_looked_at_again_when_its_prefix_is_written() {
    let refuses = Config {
        copy_retries: 0,
        ..four(16, 0, 3, 8)
    };
    for yard in each_of(KINDS, refuses) {
        let (path, other) = (text(1, 3), cat(&text(1, 2), &text(2, 1)));
        yard.publish_below(&path);
        let ahead = |blocks| yard.cache.lock().copy_ahead(Tier::DISK, blocks, false);
        let first = ahead(2).expect("none is below");
        assert_eq!(first.len(), 2, "its prefix");
        yard.fail(&first, 0);
        assert_eq!(ahead(3), None, "nothing goes down without that");
        yard.sound();
        assert_eq!(yard.adopt(&other), 3, "it stands on the same");
        let prefix = &keys(&yard, &path)[..2];
        let written = yard.cache.lock().write_down(REMOTE, prefix, &[]);
        yard.sound();
        yard.land(&written.expect("it has names").0);
        let rest = ahead(3).expect("it is looked at again");
        assert_eq!(rest.len(), 1);
        yard.land(&[rest]);
    }
}

/// Law: INV-35a
#[test]
fn an_adopted_block_is_a_hit_from_its_first_good_load_on() {
    for yard in yards(12, 0, 0, 8) {
        let prompt = and_one(&text(1, 4));
        let (lease, begun) = yard.begin_adopted(&prompt);
        let counted = |yard: &Yard| {
            let counters = yard.stats().counters;
            (counters.hits[REMOTE.0], counters.cached, counters.unproven)
        };
        assert_eq!(
            (begun.cached, begun.hits[REMOTE.0]),
            (16, 4),
            "they are loaded"
        );
        assert_eq!(counted(&yard), (0, 0, 0), "and count for nothing");
        yard.fail(&begun.plans[0], 3);
        assert_eq!(counted(&yard), (3, 12, 1));
        yard.finish(lease);
        yard.squeeze(yard.device().idle as u32);
        assert_eq!(yard.hits(&prompt), [0, 0, 0, 3]);
        // They have proven true.
        let (lease, begun) = yard.begin(&prompt);
        assert_eq!(counted(&yard), (6, 24, 1));
        yard.land(&begun.plans);
        yard.finish(lease);
        // The last block of a full hit has the KV of all tokens but one.
        let whole = text(2, 3);
        let (lease, begun) = yard.begin_adopted(&whole);
        assert_eq!((begun.cached, begun.hits[REMOTE.0]), (11, 3));
        yard.land(&begun.plans);
        assert_eq!(counted(&yard), (9, 35, 1));
        yard.finish(lease);
        // What has no end is proven by nothing.
        let late = and_one(&text(3, 2));
        let (lease, begun) = yard.begin_adopted(&late);
        yard.overdue(&begun.plans[0]);
        assert_eq!(counted(&yard), (9, 35, 3));
        yard.land(&begun.plans);
        assert_eq!(counted(&yard), (9, 35, 3));
        yard.finish(lease);
        // What was put there by this yard is proven, whatever the slot had before.
        let own = yard.run(&text(4, 2));
        yard.land(&[yard.demote_lease(&own, 2)]);
        yard.finish(own);
        yard.squeeze(yard.device().idle as u32);
        let (lease, begun) = yard.begin(&and_one(&text(4, 2)));
        assert_eq!(counted(&yard).0, 11);
        yard.land(&begun.plans);
        yard.finish(lease);
        yard.at_rest();
    }
}

/// A store that never answers holds its own loads and puts, and nothing else.
/// Law: INV-35b
#[test]
fn no_verb_waits_for_a_store_that_never_answers() {
    for yard in yards(10, 4, 0, 8) {
        let asked = and_one(&text(1, 3));
        let (loading, begun) = yard.begin_adopted(&asked);
        yard.publish_below(&text(2, 2));
        let put = yard.demote_from(HOST, 2).expect("two");
        assert_eq!((put.from, put.to), (HOST, REMOTE));
        assert_eq!(yard.adopt(&text(3, 3)), 3);
        let other = yard.run(&text(4, 1));
        yard.finish(other);
        yard.cache.lock().clear();
        yard.sound();
        yard.overdue(&begun.plans[0]);
        yard.overdue(&put);
        assert_eq!(yard.view(&loading).cached, 0);
        yard.finish(loading);
        assert_eq!(yard.device().pinned, 0);
        yard.fail(&begun.plans[0], 0);
        yard.fail(&put, 0);
        yard.at_rest();
    }
}

/// Law: INV-39
#[test]
fn a_block_whose_prefix_was_lost_is_found_again_behind_an_adopted_one() {
    for yard in yards(16, 8, 0, 8) {
        // The store has lost the second; the third is on the host, and an orphan.
        let whole = text(1, 3);
        let lease = yard.run(&whole);
        yard.land(&[yard.demote_lease(&lease, 3)]);
        yard.finish(lease);
        yard.squeeze(yard.device().idle as u32);
        let (lease, begun) = yard.begin(&and_one(&whole));
        yard.corrupt(&begun.plans[0], 1);
        yard.finish(lease);
        yard.squeeze(yard.device().idle as u32);
        assert_eq!(yard.hits(&and_one(&whole)), [0, 1, 0, 0]);
        yard.cache.lock().dispatch();
        assert_eq!(yard.adopt(&whole), 3);
        assert_eq!(
            (yard.hits(&and_one(&whole)), yard.names()),
            ([0, 2, 0, 1], 1)
        );
        yard.cache.lock().dispatch();
        let (lease, begun) = yard.begin(&and_one(&whole));
        assert_eq!(begun.plans.len(), 3);
        yard.land(&begun.plans);
        yard.finish(lease);
        yard.at_rest();
    }
}

/// Law: INV-42
#[test]
fn a_store_deletes_the_keys_that_were_named_or_found_and_none_of_them_is_adopted_meanwhile() {
    for yard in yards(16, 4, 0, 12) {
        let (all, other) = (keys(&yard, &text(1, 4)), keys(&yard, &text(2, 2)));
        let branch = keys(&yard, &cat(&text(1, 2), &text(7, 1)));
        // One is on the device alone, and one is not known.
        yard.adopt_keys(&all[..3]);
        yard.publish(&cat(&text(1, 2), &text(7, 1)));
        yard.adopt_keys(&other);
        let unknown = Key([5; 32]);
        let forgotten = yard.forget_all(&[all[1], unknown], false);
        let [plan] = &forgotten.plans[..] else {
            panic!("one tier is keyed")
        };
        assert_eq!((plan.from, plan.to), (REMOTE, REMOTE));
        let mut told = plan.keys.clone();
        told.sort_unstable();
        let mut asked = vec![all[1], unknown, all[2], branch[2]];
        asked.sort_unstable();
        assert_eq!((told, &plan.parents), (asked, &Vec::new()));
        assert_eq!(yard.adopt_keys(&all), 1);
        assert_eq!(yard.adopt_keys(&[unknown]), 0);
        // A store that was down is asked again.
        yard.fail(plan, 0);
        assert_eq!((yard.adopt_keys(&all), yard.stats().voiding), (1, 1));
        let again = yard.cache.lock().dispatch();
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].keys, plan.keys);
        yard.land(&again);
        assert_eq!((yard.adopt_keys(&all), yard.stats().voiding), (4, 0));
        // Of two that delete one key the last ends it.
        let plans: Vec<Plan> = [0, 1]
            .map(|_| yard.forget_all(&other[..1], false).plans.remove(0))
            .into();
        yard.land(&plans[..1]);
        assert_eq!(yard.adopt_keys(&other), 0);
        yard.land(&plans[1..]);
        assert_eq!(yard.adopt_keys(&other), 2);
        yard.at_rest();
    }
}

/// A begin that waits for a name is told what to wait for.
/// Law: E2, INV-20f
#[test]
fn what_is_on_its_way_to_a_store_is_counted_and_waited_for() {
    for yard in engines(16, 8) {
        let own = keys(&yard, &text(1, 3));
        let put = yard.cache.lock().offload(&own[..2], &[1, 2], 0);
        let put = put.expect("the engine's").expect("two");
        assert_eq!(
            (put.to, yard.adopt_keys(&own), yard.names()),
            (REMOTE, 3, 3)
        );
        let probe = yard.cache.lock().find(&own, 0).expect("the engine's");
        assert_eq!(
            (probe.hits, probe.stop),
            ([0; 4], Stop::Filling(put.flight))
        );
        yard.land(&[put]);
        assert_eq!(yard.cache.lock().find(&own, 0).expect("it is").hits[3], 3);
    }
    let yard = Yard::of(four(8, 0, 0, 8));
    let (lease, begun) = yard.begin_adopted(&and_one(&text(1, 2)));
    let asked = yard.ask(&and_one(&text(1, 2)), 0, 9, Filling::Soon);
    assert!(matches!(asked, Ok(Answer::Soon(flight)) if flight == begun.plans[0].flight));
    yard.land(&begun.plans);
    yard.finish(lease);
}
