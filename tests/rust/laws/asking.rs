//! What a scheduler asks: how much room there is, what each holder has, what is in flight.

use crate::yard::{Yard, and_one, cat, on, one, text, tokens};
use blockyard_core::{
    Answer, Error, Filling, Holder, HolderId, Outcome, Parked, Pending, Request, Room, Tier,
};

/// Law: INV-16
#[test]
fn room_is_what_is_free_may_be_evicted_and_is_promised() {
    let yard = Yard::new(12, 4);
    yard.publish(&text(1, 3));
    let (lease, _) = yard.begin_reserving(&text(2, 2), 8).unwrap();
    let room = |free, evictable, promised| Room {
        free,
        evictable,
        promised,
        available: i64::from(free + evictable - promised),
        headroom: 0,
        evicted: 0,
    };
    let (device, host) = (Tier::DEVICE, Tier::HOST);
    assert_eq!(yard.cache.lock().room(device), Ok(room(7, 3, 2)));
    let parked = yard.park(lease, 8);
    assert_eq!(yard.cache.lock().room(device), Ok(room(7, 3, 0)));
    assert_eq!(yard.cache.lock().room(host), Ok(room(4, 0, 2)));
    let disk = yard.cache.lock().room(Tier::DISK).unwrap_err();
    assert!(matches!(disk, Error::Argument { name: "tier", .. }));
    yard.abandon(parked);
}

/// Law: INV-16
#[test]
fn holders_are_told_the_largest_first_with_what_was_promised_to_them() {
    let yard = Yard::new(16, 8);
    let (small, _) = yard.begin(&text(1, 1));
    let (large, _) = yard.begin_reserving(&text(2, 4), 4).unwrap();
    let parked = yard.park(yard.run(&text(3, 3)), 12);
    yard.land(&[yard.demote_parked(&parked, 1).unwrap()]);
    let holder = |id, device, promised| Holder {
        id,
        held: match id {
            HolderId::Parked(_) => on([device, 1]),
            _ => on([device, 0]),
        },
        alone: device,
        promised: match id {
            HolderId::Parked(_) => on([0, promised]),
            _ => on([promised, 0]),
        },
    };
    let expected = [
        holder(HolderId::Lease(large.id()), 4, 1),
        holder(HolderId::Parked(parked.id()), 2, 2),
        holder(HolderId::Lease(small.id()), 1, 0),
    ];
    assert_eq!(yard.cache.lock().holders(), expected);
    yard.finish(large);
    yard.finish(small);
    yard.abandon(parked);
    assert_eq!(yard.cache.lock().holders(), []);
}

/// Law: O10
#[test]
fn a_plan_is_undispatched_until_it_is_given_out_or_its_flight_has_ended() {
    let yard = Yard::new(12, 8);
    let waiting = || yard.cache.lock().undispatched();
    assert_eq!(waiting(), None);
    yard.publish(&text(1, 3));
    let first = yard.demote(1).unwrap();
    let second = yard.demote(2).unwrap();
    assert_eq!(waiting(), Some((2, first.flight)), "the oldest is told");
    yard.land(&[first]);
    assert_eq!(waiting(), Some((1, second.flight)), "it was carried out");
    // It stands in the place of the first one.
    let third = yard.demote(3).unwrap();
    assert_eq!(waiting(), Some((2, second.flight)), "and is the newer one");
    assert_eq!(
        yard.cache.lock().dispatch(),
        [second.clone(), third.clone()]
    );
    assert_eq!(waiting(), None, "both were given out");
    yard.land(&[second, third]);
}

#[test]
fn idle_blocks_that_a_copy_holds_are_told_with_their_flights() {
    let yard = Yard::new(12, 8);
    let held = || yard.cache.lock().idle_in_flight();
    // A pinned path, of which nobody could have anything in any case.
    let lease = yard.run(&text(3, 2));
    let busy = yard.demote_lease(&lease, 2);
    assert_eq!(held(), []);
    yard.publish(&text(1, 3));
    assert_eq!(held(), [], "nothing reads them");
    let first = yard.demote(1).unwrap();
    assert_eq!(held(), [(Tier::DEVICE, 3, vec![first.flight])]);
    let second = yard.demote(2).unwrap();
    assert_eq!(
        held(),
        [(Tier::DEVICE, 3, vec![first.flight, second.flight])]
    );
    yard.land(&[second]);
    // On the host what lies above a block that comes is held as well.
    assert_eq!(
        held(),
        [
            (Tier::DEVICE, 3, vec![first.flight]),
            (Tier::HOST, 1, vec![first.flight])
        ]
    );
    yard.overdue(&first);
    assert_eq!(held(), []);
    yard.land(&[first, busy]);
    yard.finish(lease);
}

/// Law: INV-6
#[test]
fn blocks_are_in_flight_until_they_land_or_their_end_is_unknown() {
    let yard = Yard::new(12, 8);
    let in_flight = || yard.cache.lock().blocks_in_flight();
    yard.publish_below(&text(1, 2));
    yard.publish(&text(2, 3));
    let down = yard.demote(3).unwrap();
    assert_eq!(in_flight(), (3, 0));
    let (lease, begun) = yard.begin(&and_one(&text(1, 2)));
    assert_eq!(in_flight(), (3, 2));
    yard.overdue(&down);
    assert_eq!(in_flight(), (0, 2), "nothing waits for what may never end");
    yard.land(&[down]);
    assert_eq!(in_flight(), (0, 2), "nor is it counted at its fence");
    yard.fail(one(&begun), 1);
    assert_eq!(in_flight(), (0, 0));
    yard.finish(lease);
}

#[test]
fn a_plan_is_dispatched_once_in_the_order_in_which_it_was_made_unless_it_has_ended() {
    let yard = Yard::new(16, 8);
    yard.ends_busy();
    yard.publish(&text(1, 3));
    let mut state = yard.cache.lock();
    let first = state.demote(Tier::DEVICE, 1).unwrap();
    let ended = state.demote(Tier::DEVICE, 2).unwrap();
    let last = state.demote(Tier::DEVICE, 3).unwrap();
    state
        .commit(&[Outcome::failed(ended.flight, 1)], None)
        .unwrap();
    assert_eq!(state.dispatch(), [first, last]);
    assert_eq!(state.dispatch(), []);
}

/// Law: INV-16
#[test]
fn what_is_held_alone_is_what_the_end_of_a_lease_gives_back() {
    let yard = Yard::new(24, 8);
    yard.publish(&text(1, 3));
    let (first, _) = yard.begin(&and_one(&text(1, 3)));
    let exclusive =
        |lease: &blockyard_core::Lease| yard.cache.lock().exclusive_blocks(lease.id()).unwrap();
    assert_eq!(exclusive(&first), 4);
    let (second, _) = yard.begin(&and_one(&text(1, 3)));
    assert_eq!((exclusive(&first), exclusive(&second)), (1, 1));
    let room = |yard: &Yard| {
        let room = yard.cache.lock().room(Tier::DEVICE).unwrap();
        room.free + room.evictable
    };
    let before = room(&yard);
    yard.finish(second);
    assert_eq!(room(&yard), before + 1);
    assert_eq!(exclusive(&first), 4);
    let id = first.id();
    yard.finish(first);
    assert_eq!(room(&yard), before + 5);
    assert!(yard.cache.lock().exclusive_blocks(id).is_err());
}

/// Law: INV-5
#[test]
fn what_a_begin_would_answer_is_what_it_answers() {
    let yard = Yard::new(8, 8);
    yard.publish(&text(1, 3));
    let (other, _) = yard.begin(&text(2, 3));
    // Two slots are free, and its own three hits may not be evicted for it.
    for (blocks, fits) in [(3, true), (5, true), (6, false), (8, false), (9, false)] {
        let prompt = [text(1, 3), text(3, 6)].concat()[..4 * blocks].to_vec();
        let chain = yard.chain(&prompt);
        let request = Request {
            keys: chain.keys(),
            tokens: chain.tokens(),
            reserve: 0,
            load: u32::MAX,
            filling: Filling::Stop,
        };
        let before = yard.cache.lock().digest();
        let need = yard.cache.lock().dry_run(&request).unwrap();
        assert_eq!(yard.cache.lock().digest(), before);
        assert_eq!(
            (need.fits, need.ever),
            (fits, blocks < 9),
            "{blocks} blocks"
        );
        // The last block of a full hit is copied: of three blocks two are shared.
        let shared = (blocks - 1).min(3) as u64;
        assert_eq!((need.need, need.device), (blocks as u64 - shared, 3));
        match yard.ask(&prompt, 0, u32::MAX, Filling::Stop) {
            Ok(Answer::Begun(begun)) => {
                assert!(fits);
                yard.land(&begun.plans);
                yard.finish(yard.cache.handle(begun.lease, chain));
            }
            answer => assert!(answer.is_err() && !fits),
        }
    }
    yard.finish(other);
}

/// Law: INV-16
#[test]
fn of_a_parked_sequence_is_told_what_moves_and_what_only_it_holds() {
    let yard = Yard::new(24, 8);
    let pending = |parked: &Parked| {
        let pending = yard.cache.lock().pending(parked.id()).unwrap();
        (pending.moving, pending.alone)
    };
    // A stem that another runs on, two blocks of its own and a partial one.
    let (other, _) = yard.begin(&and_one(&text(1, 2)));
    yard.seal(&other, 8);
    let prompt = cat(&text(1, 2), &tokens(2, 10));
    let parked = yard.park(yard.run(&prompt), 18);
    let digest = yard.cache.lock().digest();
    assert_eq!(pending(&parked), (0, 3));
    assert_eq!(yard.cache.lock().digest(), digest, "it was only asked");
    // What is above a source must stay for now: at once its end would give nothing.
    let tail = yard.demote_parked(&parked, 1).unwrap();
    let exclusive = |yard: &Yard| {
        let mut holders = yard.cache.lock().holders().into_iter();
        holders
            .find(|row| row.id == HolderId::Parked(parked.id()))
            .unwrap()
            .alone
    };
    assert_eq!((pending(&parked), exclusive(&yard)), ((1, 2), 0));
    yard.overdue(&tail);
    assert_eq!(pending(&parked), (0, 3), "it is read no more");
    let rest = yard.demote_parked(&parked, 5).unwrap();
    assert_eq!(rest.len(), 5);
    assert_eq!(pending(&parked), (5, 0));
    yard.fail(&tail, 0);
    yard.fail(&rest, 2);
    assert_eq!((pending(&parked), exclusive(&yard)), ((0, 1), 1));
    yard.finish(other);
    assert_eq!(pending(&parked), (0, 3), "the stem is its own now");
    let (lease, begun) = yard.resume(parked);
    assert_eq!((begun.hits, begun.plans.len()), ([5, 0, 0, 0], 0));
    yard.finish(lease);
}

/// Law: INV-16
#[test]
fn of_a_parked_sequence_that_is_broken_or_coming_back_nothing_is_told() {
    let yard = Yard::new(8, 4);
    let broken = yard.park(yard.run(&text(1, 2)), 8);
    let id = yard.park(yard.run(&text(2, 1)), 4);
    yard.cache.lock().resize(Tier::HOST, 0).unwrap();
    yard.sound();
    let pending = |parked: &Parked| yard.cache.lock().pending(parked.id());
    assert_eq!(pending(&broken), Ok(Pending::default()));
    yard.abandon(id);
    let number = broken.id();
    yard.abandon(broken);
    let spent = yard.cache.lock().pending(number).unwrap_err();
    assert!(matches!(spent, Error::Spent { .. }));
}
