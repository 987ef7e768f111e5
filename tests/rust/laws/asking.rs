//! What a scheduler asks: how much room there is, who holds what, what is in the air.

use crate::yard::{Yard, and_one, one, text};
use blockyard_core::{Error, Holder, Room, Tier, Who};

#[test]
fn room_is_what_is_free_may_be_evicted_and_is_promised() {
    let yard = Yard::new(12, 4);
    yard.publish(&text(1, 3));
    let (lease, _) = yard.begin_reserving(&text(2, 2), 8).unwrap();
    let room = |free, evictable, promised| Room {
        free,
        evictable,
        promised,
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

#[test]
fn holders_are_told_the_largest_first_with_what_was_promised_to_them() {
    let yard = Yard::new(16, 8);
    let (small, _) = yard.begin(&text(1, 1));
    let (large, _) = yard.begin_reserving(&text(2, 4), 4).unwrap();
    let parked = yard.park(yard.run(&text(3, 3)), 12);
    yard.land(&[yard.demote_parked(&parked, 1).unwrap()]);
    let holder = |who, device, promised| Holder {
        who,
        device,
        promised,
    };
    let expected = [
        holder(Who::Lease(large.id()), 4, 1),
        holder(Who::Parked(parked.id()), 2, 2),
        holder(Who::Lease(small.id()), 1, 0),
    ];
    assert_eq!(yard.cache.lock().holders(), expected);
    yard.finish(large);
    yard.finish(small);
    yard.abandon(parked);
    assert_eq!(yard.cache.lock().holders(), []);
}

#[test]
fn blocks_are_in_the_air_until_they_land_or_their_end_is_unknown() {
    let yard = Yard::new(12, 8);
    let in_air = || yard.cache.lock().blocks_in_air();
    yard.publish_below(&text(1, 2));
    yard.publish(&text(2, 3));
    let down = yard.demote(3).unwrap();
    assert_eq!(in_air(), (3, 0));
    let (lease, begun) = yard.begin(&and_one(&text(1, 2)));
    assert_eq!(in_air(), (3, 2));
    yard.overdue(&down);
    assert_eq!(in_air(), (0, 2), "nothing waits for what may never end");
    yard.land(&[down]);
    assert_eq!(in_air(), (0, 2), "nor is it counted at its fence");
    yard.fail(one(&begun), 1);
    assert_eq!(in_air(), (0, 0));
    yard.finish(lease);
    yard.at_rest();
}

#[test]
fn a_plan_is_dispatched_once_in_the_order_in_which_it_was_made_unless_it_has_ended() {
    let yard = Yard::new(16, 8);
    yard.publish(&text(1, 3));
    let mut state = yard.cache.lock();
    let first = state.demote(1).unwrap();
    let ended = state.demote(2).unwrap();
    let last = state.demote(3).unwrap();
    state.commit(&[(ended.flight, 1, false)], None).unwrap();
    assert_eq!(state.dispatch(), [first, last]);
    assert_eq!(state.dispatch(), []);
}
