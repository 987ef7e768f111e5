//! Table 2.1: seal, block by block.

use crate::verbs::Verbs as _;
use crate::yard::{SIZE, Yard, and_one, cat, sealing, text, three, tokens};
use blockyard_core::{Cells, Error, Lease, Loading, Seals, Tier};

/// Law: 2.1-1
#[test]
fn a_block_whose_key_is_new_is_published() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 2);
    let (lease, _) = yard.begin(&prompt);
    assert_eq!((yard.device().claimed, yard.on_device(&prompt)), (2, 0));
    assert_eq!(yard.seal(&lease, 8), 2);
    assert_eq!((yard.device().pinned, yard.on_device(&prompt)), (2, 2));
    yard.finish(lease);
    assert_eq!(yard.device().idle, 2);
}

/// Law: 2.1-2
#[test]
fn a_key_without_a_device_copy_adopts_the_leases_slot() {
    let yard = Yard::new(8, 8);
    let prompt = text(1, 2);
    yard.publish_below(&prompt);
    // Not worth loading: computed again.
    let (lease, _) = yard.stop(&prompt, 0);
    assert_eq!(yard.seal(&lease, 8), 2);
    assert_eq!(yard.on_device(&prompt), 2);
    assert_eq!((yard.stats().counters.duplicates, yard.host().idle), (0, 2));
    let slots = yard.table(&lease);
    let (other, begun) = yard.begin(&and_one(&prompt));
    assert_eq!((begun.hits, begun.plans.len()), ([2, 0, 0, 0], 0));
    assert_eq!(yard.table(&other)[..2], slots);
    yard.finish(other);
    yard.finish(lease);
    yard.squeeze(2);
    assert_eq!(
        yard.hits(&prompt),
        [0, 2, 0, 0],
        "the copies below still serve"
    );
}

/// Law: 2.1-3
#[test]
fn a_block_that_another_has_published_stays_private_and_pins_the_published_one() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 2);
    let (first, second) = (yard.begin(&prompt).0, yard.begin(&prompt).0);
    assert_eq!(yard.seal(&first, 8), 2);
    let table = yard.table(&second);
    assert_eq!(yard.seal(&second, 8), 2);
    assert_eq!(yard.table(&second), table, "tables are append-only");
    assert_eq!(yard.stats().counters.duplicates, 2);
    assert_eq!(yard.device().pinned, 4);
    yard.finish(first);
    assert_eq!((yard.device().pinned, yard.device().idle), (4, 0), "pinned");
    yard.finish(second);
    let device = yard.device();
    assert_eq!(
        (device.free, device.idle),
        (6, 2),
        "the private ones are free"
    );
    assert_eq!(yard.on_device(&prompt), 2);
}

/// Law: 2.1-3
#[test]
fn park_frees_private_duplicates_first_and_copies_only_the_published_blocks() {
    let yard = Yard::new(8, 8);
    let prompt = text(1, 2);
    let (first, second) = (yard.begin(&prompt).0, yard.begin(&prompt).0);
    yard.seal(&first, 8);
    let published = yard.table(&first);
    let parked = yard.park(second, 8);
    assert_eq!((yard.device().free, yard.host().promised), (6, 2));
    let plan = yard.demote_parked(&parked, 8).unwrap();
    assert!(plan.sources.iter().all(|slot| published.contains(slot)));
    yard.land(&[plan]);
    yard.finish(first);
    yard.abandon(parked);
}

/// Law: 2.1-4
#[test]
fn a_forks_slot_that_was_sealed_before_is_left_as_it_is() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 2);
    let (lease, _) = yard.begin(&prompt);
    let (forked, begun) = yard.cache.fork(&lease, 8, 0).unwrap();
    assert!(begun.plans.is_empty());
    assert_eq!(yard.table(&forked), yard.table(&lease), "all is shared");
    yard.seal(&lease, 8);
    let before = yard.device();
    assert_eq!(yard.seal(&forked, 8), 2);
    assert_eq!(
        (yard.device(), yard.stats().counters.duplicates),
        (before, 0)
    );
    yard.finish(lease);
    assert_eq!(yard.device().pinned, 2);
    yard.finish(forked);
    assert_eq!((yard.device().idle, yard.device().free), (2, 6));
}

/// Law: 2.1-5
#[test]
fn a_seal_stops_where_pinning_the_published_block_lacks_backing() {
    let yard = Yard::new(4, 0);
    let prompt = text(1, 1);
    let (first, _) = yard.begin(&prompt);
    let (second, _) = yard.begin(&prompt);
    yard.seal(&first, 4);
    yard.finish(first);
    // Three left: two free and the idle block, all promised to a third.
    let third = yard.begin_reserving(&text(2, 1), 8).unwrap().0;
    assert_eq!(yard.device().promised, 2);
    assert_eq!(yard.seal(&second, 4), 0, "pinning it would break a promise");
    assert_eq!(yard.device().idle, 1);
    assert!(yard.grow(&third, 8));
    assert_eq!(yard.on_device(&prompt), 0, "the promise was kept");
    assert_eq!(yard.seal(&second, 4), 1, "and now the key is new");
    yard.finish(second);
    yard.finish(third);
}

/// Law: INV-22, 2.1-2
#[test]
fn an_orphan_is_not_linked_again_while_it_is_read() {
    let yard = Yard::of(three(8, 4, 4));
    let prompt = text(1, 2);
    yard.publish(&prompt);
    yard.copy_down(1);
    yard.squeeze(1);
    assert_eq!(yard.hits(&prompt), [1, 1, 0, 0]);
    let plan = yard.demote_from(Tier::HOST, 1).expect("it is idle there");
    yard.squeeze(yard.device().idle as u32);
    assert_eq!(yard.hits(&prompt), [0, 0, 0, 0], "its parent is gone");
    // The first block again, with a copy below that backs a promise.
    let (lease, _) = yard.begin(&prompt);
    assert_eq!(yard.seal(&lease, SIZE), 1);
    yard.land(&[yard.demote_lease(&lease, 1)]);
    let host = yard.host();
    let ticket = yard.cache.promise(host.free + host.takeable, Tier::HOST);
    assert_eq!(
        yard.seal(&lease, 2 * SIZE),
        0,
        "the copy above would be held"
    );
    yard.fail(&plan, 0);
    assert_eq!(yard.seal(&lease, 2 * SIZE), 1);
    assert_eq!(yard.on_device(&prompt), 2);
    yard.cache.release(ticket.expect("there is room")).unwrap();
    yard.finish(lease);
}

/// Law: 2.1-3
#[test]
fn a_duplicate_in_the_middle_of_a_table_leaves_the_rest_to_be_published_behind_it() {
    let yard = Yard::new(12, 0);
    let (stem, leaf) = (text(1, 2), text(2, 1));
    let whole = cat(&stem, &leaf);
    let (first, second) = (yard.begin(&stem).0, yard.begin(&whole).0);
    yard.seal(&first, 8);
    assert_eq!(yard.seal(&second, 12), 3);
    assert_eq!(yard.stats().counters.duplicates, 2);
    yard.finish(first);
    yard.finish(second);
    assert_eq!(yard.on_device(&whole), 3);
    for left in (0..3).rev() {
        yard.squeeze(1);
        assert_eq!(yard.on_device(&whole), left);
    }
}

/// Law: 2.1-3
#[test]
fn forks_of_a_duplicate_pin_the_published_block_once_for_them_all() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 1);
    let (first, second) = (yard.begin(&prompt).0, yard.begin(&tokens(1, 4)).0);
    yard.seal(&first, 4);
    yard.seal(&second, 4);
    let (forked, _) = yard.cache.fork(&second, 4, 0).unwrap();
    yard.finish(first);
    yard.finish(second);
    assert_eq!(yard.device().pinned, 2, "the fork has both still");
    yard.finish(forked);
    assert_eq!((yard.device().idle, yard.device().free), (1, 7));
}

/// A sequence may hold each of its blocks twice. Where that is too much it gives its own ones up,
/// and goes on with those that the other has published. (INV-11, INV-25)
/// Law: 2.1-3
#[test]
fn a_running_sequence_gives_its_duplicates_up_in_place() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 3);
    let (first, second) = (yard.begin(&prompt).0, yard.begin(&prompt).0);
    yard.seal(&first, 12);
    yard.seal(&second, 8);
    let (published, own) = (yard.table(&first), yard.table(&second));
    yard.finish(first);
    assert_eq!((yard.device().free, yard.device().idle), (2, 1));
    assert_eq!(yard.cache.lock().dedup(&[second.id()]), Ok(2));
    assert_eq!(yard.table(&second), [published[0], published[1], own[2]]);
    let device = yard.device();
    assert_eq!((device.free, device.pinned, device.claimed), (4, 2, 1));
    assert_eq!(
        yard.cache.lock().dedup(&[second.id()]),
        Ok(0),
        "they are gone"
    );
    // The third block is a duplicate only now, and the table may still grow.
    assert_eq!(yard.seal(&second, 12), 1);
    assert_eq!(yard.cache.lock().dedup(&[second.id()]), Ok(1));
    assert_eq!(yard.table(&second), published);
    assert!(yard.grow(&second, 8));
    yard.finish(second);
    assert_eq!(yard.stats().counters.deduped, 3);
    assert_eq!(yard.on_device(&prompt), 3);
}

/// Law: 2.1-3
#[test]
fn changed_cells_tell_an_engine_of_every_duplicate_that_was_given_up() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 3);
    let (first, second) = (yard.begin(&prompt).0, yard.begin(&prompt).0);
    yard.seal(&first, 8);
    yard.seal(&second, 8);
    let mut row = [u32::MAX; 3];
    let show = |row: &mut [u32; 3]| {
        let (mut state, id) = (yard.cache.lock(), [second.id()]);
        let written = state.block_tables(&id, 3, Cells::Changed, Loading::Refuse, |cells| {
            cells.copy_to(row);
        });
        written.expect("it is wide enough")
    };
    assert_eq!((show(&mut row), show(&mut row)), (3, 0));
    assert_eq!(yard.cache.lock().dedup(&[second.id()]), Ok(2));
    show(&mut row);
    assert_eq!(row[..], yard.table(&second));
    assert_eq!(row[..2], yard.table(&first)[..2]);
    yard.finish(first);
    yard.finish(second);
}

/// Law: 2.1-3
#[test]
fn a_duplicate_that_forks_share_is_free_when_the_last_of_them_has_given_it_up() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 1);
    let (first, second) = (yard.begin(&prompt).0, yard.begin(&tokens(1, 4)).0);
    yard.seal(&first, 4);
    // The fork has not sealed the block; its parent has.
    let (forked, _) = yard.cache.fork(&second, 4, 0).unwrap();
    yard.seal(&second, 4);
    let given = |lease: &Lease| yard.cache.lock().dedup(&[lease.id()]);
    assert_eq!((given(&second), yard.device().free), (Ok(1), 6));
    assert_eq!(given(&forked), Ok(1));
    assert_eq!(yard.seal(&forked, 4), 1);
    assert_eq!((yard.device().free, yard.device().pinned), (7, 1));
    assert_eq!(yard.table(&forked), yard.table(&first));
    for lease in [first, second, forked] {
        yard.finish(lease);
    }
}

/// Law: 2.1-3
#[test]
fn a_batch_with_a_spent_lease_gives_nothing_up() {
    let yard = Yard::new(8, 0);
    let prompt = text(1, 1);
    let (first, second) = (yard.begin(&prompt).0, yard.begin(&prompt).0);
    yard.seal(&first, 4);
    yard.seal(&second, 4);
    let spent = first.id();
    yard.finish(first);
    let before = yard.device();
    let answer = yard.cache.lock().dedup(&[second.id(), spent]);
    assert!(matches!(answer, Err(Error::Spent { .. })), "{answer:?}");
    assert_eq!(yard.device(), before);
    yard.finish(second);
}

/// What another thread does to the lease of a seal between two of its slices.
type Between = fn(&Yard, Lease) -> Option<Lease>;

/// Seals 7 computed blocks in slices of 3, and does this after the first. Returns the blocks sealed, and the
/// lease where it lives on.
fn seal_around(yard: &Yard, between: Between) -> (u64, Option<Lease>) {
    let (lease, _) = yard.begin(&and_one(&text(1, 7)));
    let mut seals = sealing(&lease, 7 * SIZE).expect("appended");
    let more = seals.apply_slice(&mut yard.cache.lock(), 3);
    assert_eq!(
        (more, seals.sealed()),
        (Ok(true), 3),
        "no more than a slice"
    );
    yard.sound();
    let lease = between(yard, lease);
    while seals
        .apply_slice(&mut yard.cache.lock(), 3)
        .expect("checked")
    {
        yard.sound();
    }
    yard.sound();
    (seals.sealed(), lease)
}

/// Law: 2.1-1
#[test]
fn a_seal_in_slices_leaves_what_one_seal_leaves() {
    let digests = [usize::MAX, 3, 1].map(|most| {
        let yard = Yard::new(24, 0);
        let leases = [text(1, 7), text(2, 2), text(1, 8)].map(|text| yard.begin(&text).0);
        let mut seals = Seals::default();
        for (lease, blocks) in leases.iter().zip([7, 2, 8]) {
            seals.add(lease, blocks * SIZE).expect("appended");
        }
        while seals
            .apply_slice(&mut yard.cache.lock(), most)
            .expect("live")
        {
            yard.sound();
        }
        assert_eq!(seals.sealed(), 17, "{most}");
        yard.cache.lock().digest()
    });
    assert_eq!(digests, [digests[0]; 3]);
}

/// Law: INV-2
#[test]
fn a_seal_in_slices_checks_all_its_rows_before_the_first() {
    let yard = Yard::new(24, 0);
    let [first, last] = [text(1, 7), text(2, 7)].map(|text| yard.begin(&text).0);
    let mut seals = Seals::default();
    for lease in [&first, &last] {
        seals.add(lease, 7 * SIZE).expect("appended");
    }
    yard.cache
        .lock()
        .trim(&[last.id()], &[SIZE])
        .expect("it is private");
    let before = yard.cache.lock().digest();
    let refused = seals.apply_slice(&mut yard.cache.lock(), 3);
    assert!(
        matches!(refused, Err(Error::Argument { .. })),
        "{refused:?}"
    );
    assert_eq!((seals.sealed(), yard.cache.lock().digest()), (0, before));
}

/// Law: 2.1-1, INV-1
#[test]
fn what_ends_between_two_slices_of_its_seal_is_sealed_no_further() {
    let ends: [Between; 3] = [
        |yard, lease| {
            yard.finish(lease);
            None
        },
        |yard, lease| {
            drop(yard.park(lease, 3 * SIZE));
            None
        },
        |yard, lease| {
            yard.cache.lock().clear();
            Some(lease)
        },
    ];
    for (end, found) in ends.into_iter().zip([3, 3, 0]) {
        let yard = Yard::new(24, 24);
        assert_eq!(seal_around(&yard, end).0, 3);
        assert_eq!(yard.on_device(&text(1, 7)), found);
    }
}

/// Law: 2.1-1
#[test]
fn what_is_trimmed_between_two_slices_of_its_seal_is_sealed_no_further_even_if_it_grows_again() {
    let yard = Yard::new(24, 0);
    let (sealed, lease) = seal_around(&yard, |yard, lease| {
        let cut = yard.cache.lock().trim(&[lease.id()], &[4 * SIZE]);
        cut.expect("it is private");
        assert!(yard.grow(&lease, 4 * SIZE));
        Some(lease)
    });
    assert_eq!((sealed, yard.on_device(&text(1, 7))), (3, 3));
    let lease = lease.expect("it runs");
    assert_eq!(yard.seal(&lease, 7 * SIZE), 4, "computed anew");
    assert_eq!(yard.on_device(&text(1, 7)), 7);
}

/// Law: 2.1-1
#[test]
fn what_is_sealed_or_forked_between_two_slices_of_a_seal_is_sealed_once() {
    let yard = Yard::new(24, 0);
    let (sealed, lease) = seal_around(&yard, |yard, lease| {
        assert_eq!(yard.seal(&lease, 5 * SIZE), 2);
        Some(lease)
    });
    assert_eq!((sealed, yard.on_device(&text(1, 7))), (5, 7));
    yard.finish(lease.expect("it runs"));
    let yard = Yard::new(24, 0);
    let (sealed, _lease) = seal_around(&yard, |yard, lease| {
        let (fork, _) = yard.cache.fork(&lease, 7 * SIZE, 0).expect("room");
        yard.finish(fork);
        Some(lease)
    });
    assert_eq!((sealed, yard.on_device(&text(1, 7))), (7, 7));
}
