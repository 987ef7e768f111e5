//! Tickets: blocks promised to a request that does not run yet, or to a sequence about to be
//! parked. (INV-22)

use crate::verbs::Verbs as _;
use crate::yard::{SIZE, Yard, and_one, cat, config, on, room, sealing, text, tokens};
use blockyard_core::{
    Answer, Chain, Config, Error, Filling, Holder, HolderId, Lease, Parked, Request, Result,
    Ticket, Tier,
};

fn promise(yard: &Yard, blocks: u64) -> Ticket {
    let ticket = yard
        .cache
        .promise(blocks, Tier::DEVICE)
        .expect("there is room");
    yard.sound();
    ticket
}

pub(crate) fn request(chain: &Chain, reserve: u64) -> Request<'_> {
    Request {
        keys: chain.keys(),
        tokens: chain.tokens(),
        reserve,
        load: u32::MAX,
        filling: Filling::Soon,
    }
}

/// A begin with a ticket, by its number.
fn redeem(yard: &Yard, ticket: &Ticket, text: &[u32], reserve: u64) -> Result<Answer> {
    let chain = yard.chain(text);
    let answer = yard
        .cache
        .lock()
        .redeem(ticket.id(), |state| state.begin(&request(&chain, reserve)));
    yard.sound();
    answer
}

fn begun(yard: &Yard, answer: Result<Answer>, text: &[u32]) -> Lease {
    match answer {
        Ok(Answer::Begun(begun)) => yard.cache.handle(begun.lease, yard.chain(text)),
        other => panic!("it should have begun: {other:?}"),
    }
}

/// Law: INV-22
#[test]
fn a_ticket_keeps_its_blocks_from_begins_and_grows_and_moves_no_slot() {
    let yard = Yard::new(8, 0);
    yard.publish(&text(1, 3));
    let (lease, _) = yard.begin(&text(2, 2));
    let ticket = promise(&yard, 5);
    let device = yard.device();
    assert_eq!((device.free, device.idle, device.promised), (3, 3, 5));
    assert!(yard.grow(&lease, SIZE), "one may be had");
    assert!(!yard.grow(&lease, SIZE), "the rest is promised");
    assert!(yard.begin_reserving(&text(3, 1), 0).is_err());
    yard.cache.release(ticket).unwrap();
    assert!(yard.grow(&lease, 5 * SIZE));
    yard.finish(lease);
}

/// Law: INV-22
#[test]
fn a_ticket_is_refused_with_the_numbers_and_one_that_never_fits_or_is_for_nothing_at_once() {
    let yard = Yard::new(8, 0);
    yard.publish(&text(1, 2));
    let first = promise(&yard, 3);
    let before = yard.stats();
    let refused = yard.cache.promise(6, Tier::DEVICE).unwrap_err();
    assert_eq!(room(refused), (6, 6, 2, 3));
    for blocks in [9, u64::MAX] {
        let large = yard.cache.promise(blocks, Tier::DEVICE).unwrap_err();
        assert!(matches!(large, Error::TooLarge { need, capacity: 8, .. } if need == blocks));
    }
    let none = yard.cache.promise(0, Tier::DEVICE).unwrap_err();
    assert!(matches!(none, Error::Argument { name: "blocks", .. }));
    let after = yard.stats();
    assert_eq!((after.tiers, after.tickets), (before.tiers, 1));
    assert_eq!(after.counters.no_room, 1);
    yard.cache.release(first).unwrap();
}

/// Law: INV-22
#[test]
fn a_begin_uses_the_room_of_its_ticket_and_what_it_did_not_need_is_promised_no_more() {
    let yard = Yard::new(8, 0);
    let prompt = text(2, 3);
    let ticket = promise(&yard, 6);
    let (other, _) = yard.begin(&text(1, 2));
    assert!(yard.begin_reserving(&prompt, SIZE).is_err(), "none is left");
    let answer = redeem(&yard, &ticket, &prompt, SIZE);
    ticket.spend();
    let lease = begun(&yard, answer, &prompt);
    let device = yard.device();
    assert_eq!((device.claimed, device.free, device.promised), (5, 3, 1));
    assert_eq!(yard.stats().tickets, 0);
    let (third, _) = yard.begin(&text(3, 2));
    assert!(yard.grow(&lease, SIZE), "its own growth is");
    for lease in [other, lease, third] {
        yard.finish(lease);
    }
}

/// Law: INV-22
#[test]
fn a_begin_may_need_more_than_its_ticket_keeps_where_there_is_room() {
    let yard = Yard::new(8, 0);
    yard.publish(&text(1, 4));
    let ticket = promise(&yard, 2);
    let prompt = and_one(&text(1, 4));
    let answer = redeem(&yard, &ticket, &prompt, 3 * SIZE);
    ticket.spend();
    let lease = begun(&yard, answer, &prompt);
    assert_eq!((yard.view(&lease).cached, yard.device().promised), (16, 3));
    yard.finish(lease);
}

/// Law: INV-22
#[test]
fn a_begin_that_is_refused_or_told_to_wait_has_its_ticket_still() {
    let yard = Yard::new(10, 8);
    yard.publish_below(&text(1, 2));
    let plan = yard.promote(&text(1, 2), 2).expect("two are below");
    let (lease, _) = yard.begin(&text(2, 3));
    let ticket = promise(&yard, 4);
    let (stats, digest) = (yard.stats(), || yard.cache.lock().digest());
    let before = digest();
    let waits = redeem(&yard, &ticket, &and_one(&text(1, 2)), 0);
    assert!(matches!(waits, Ok(Answer::Soon(flight)) if flight == plan.flight));
    let large = redeem(&yard, &ticket, &text(3, 11), 0).unwrap_err();
    assert!(matches!(large, Error::TooLarge { need: 11, .. }));
    let refused = redeem(&yard, &ticket, &text(3, 4), 2 * SIZE).unwrap_err();
    assert_eq!(
        room(refused),
        (6, 5, 0, 0),
        "its own ticket is not in its way"
    );
    assert_eq!((yard.stats().tiers, digest()), (stats.tiers, before));
    assert!(ticket.check().is_ok());
    let answer = redeem(&yard, &ticket, &text(3, 4), SIZE);
    ticket.spend();
    yard.finish(begun(&yard, answer, &text(3, 4)));
    yard.land(&[plan]);
    yard.finish(lease);
}

/// Law: INV-22
#[test]
fn a_resume_uses_the_room_of_its_ticket_or_has_it_still() {
    let yard = Yard::new(6, 6);
    let parked = yard.park(yard.run(&text(1, 3)), 12);
    yard.land(&[yard.demote_parked(&parked, 3).unwrap()]);
    let (lease, _) = yard.begin(&text(2, 2));
    let ticket = promise(&yard, 4);
    let keys = yard.chain(&text(1, 3));
    let resume = |reserve| {
        let answer = yard.cache.lock().redeem(ticket.id(), |state| {
            state.resume(parked.id(), keys.keys(), 12, reserve)
        });
        yard.sound();
        answer
    };
    let refused = resume(2 * SIZE).unwrap_err();
    assert!(matches!(refused, Error::NoRoom { promised: 0, .. }));
    assert_eq!((yard.stats().tickets, yard.device().promised), (1, 4));
    let Ok(Answer::Begun(begun)) = resume(0) else {
        panic!("the ticket has room for it")
    };
    ticket.spend();
    assert_eq!((yard.stats().tickets, yard.device().promised), (0, 0));
    let resumed = parked.into_lease(begun.lease);
    yard.land(&begun.plans);
    assert_eq!(yard.view(&resumed).cached, 12);
    yard.finish(resumed);
    yard.finish(lease);
}

/// Law: INV-2
#[test]
fn a_ticket_is_spent_once_and_only_where_it_was_made() {
    let yard = Yard::new(8, 0);
    let other = Yard::new(8, 0);
    let (first, second) = (promise(&yard, 2), promise(&yard, 3));
    let id = first.id();
    yard.cache.release(first).unwrap();
    let mut state = yard.cache.lock();
    let again = state.release_ticket(id).unwrap_err();
    assert!(matches!(again, Error::Spent { what: "ticket", .. }));
    let begin = state.redeem(id, |_| panic!("nothing is run for a spent ticket"));
    assert!(matches!(begin, Err(Error::Spent { .. })));
    drop(state);
    let unknown = other.cache.lock().release_ticket(second.id()).unwrap_err();
    assert!(matches!(unknown, Error::Foreign { .. }));
    assert_eq!(other.cache.check_ticket(&second), Err(unknown));
    assert_eq!((yard.stats().tickets, yard.device().promised), (1, 3));
    // Given up with its handle, in the wrong place: its promise comes back all the same.
    assert!(other.cache.release(second).is_err());
    assert_eq!(
        (yard.device().promised, yard.stats().counters.leaked),
        (0, 1)
    );
}

/// Law: INV-2
#[test]
fn a_ticket_that_is_dropped_gives_its_promise_back_and_is_counted() {
    let yard = Yard::new(8, 0);
    drop(promise(&yard, 8));
    let all = promise(&yard, 8);
    assert_eq!(yard.stats().counters.leaked, 1);
    yard.cache.release(all).unwrap();
    assert_eq!(yard.stats().counters.leaked, 1);
}

/// Law: INV-22
#[test]
fn a_clear_leaves_tickets_alone_and_a_resize_counts_them() {
    let yard = Yard::new(8, 0);
    yard.publish(&text(1, 4));
    let ticket = promise(&yard, 5);
    yard.cache.lock().clear();
    yard.sound();
    assert_eq!((yard.device().promised, yard.stats().tickets), (5, 1));
    let refused = yard.cache.lock().resize(Tier::DEVICE, 5).unwrap_err();
    assert!(matches!(
        refused,
        Error::InUse {
            want: 4,
            used: 5,
            ..
        }
    ));
    yard.cache.lock().resize(Tier::DEVICE, 6).unwrap();
    yard.sound();
    let answer = redeem(&yard, &ticket, &text(2, 5), 0);
    ticket.spend();
    yard.finish(begun(&yard, answer, &text(2, 5)));
}

/// Law: INV-16
#[test]
fn a_ticket_is_among_the_holders_with_what_it_was_promised() {
    let yard = Yard::new(8, 4);
    let (lease, _) = yard.begin(&text(1, 1));
    let (ticket, below) = (promise(&yard, 5), promise_below(&yard, 3));
    let holder = |id, device, promised| Holder {
        id,
        held: on([device, 0]),
        alone: device,
        promised: on(promised),
    };
    let expected = [
        holder(HolderId::Lease(lease.id()), 1, [0, 0]),
        holder(HolderId::Ticket(ticket.id()), 0, [5, 0]),
        holder(HolderId::Ticket(below.id()), 0, [0, 3]),
    ];
    assert_eq!(yard.cache.lock().holders(), expected);
    yard.cache.release(ticket).unwrap();
    yard.cache.release(below).unwrap();
    yard.finish(lease);
}

// Tickets of the host, for a sequence about to be parked.

fn promise_below(yard: &Yard, blocks: u64) -> Ticket {
    let ticket = yard
        .cache
        .promise(blocks, Tier::HOST)
        .expect("there is room");
    yard.sound();
    ticket
}

/// A park with a ticket, which it spends.
pub(crate) fn park_in(
    yard: &Yard,
    ticket: &Ticket,
    lease: &Lease,
    computed: u64,
) -> Result<Parked> {
    let seals = sealing(lease, computed)?;
    let row = seals.row(lease, computed);
    let parked = yard.cache.lock().redeem_parking(ticket.id(), &row, None);
    yard.sound();
    let parked = lease.into_parked(parked.inspect_err(|_| assert!(ticket.check().is_ok()))?);
    ticket.spend();
    Ok(parked)
}

/// Law: INV-14, INV-22
#[test]
fn a_ticket_of_the_host_keeps_its_slots_from_parks_and_copies_ahead_and_moves_none() {
    let yard = Yard::new(16, 4);
    let ticket = promise_below(&yard, 3);
    assert_eq!((yard.host().free, yard.host().promised), (4, 3));
    assert_eq!(yard.device().promised, 0);
    yard.publish(&text(1, 3));
    let plan = yard.demote(3).unwrap();
    assert_eq!(plan.len(), 1, "the rest is promised");
    assert_eq!(yard.demote(3), None);
    yard.land(&[plan]);
    let (lease, error) = yard.cache.park(yard.run(&text(2, 2)), 8).unwrap_err();
    assert!(matches!(
        error,
        Error::NoRoom {
            tier: Tier::HOST,
            ..
        }
    ));
    assert_eq!(room(error), (2, 3, 1, 3));
    yard.cache.release(ticket).unwrap();
    let parked = yard.park(lease, 8);
    yard.abandon(parked);
}

/// Law: INV-22
#[test]
fn a_ticket_of_the_host_is_refused_with_the_hosts_numbers_and_one_that_never_fits_at_once() {
    let yard = Yard::new(8, 4);
    yard.publish_below(&text(1, 1));
    let first = promise_below(&yard, 2);
    let before = yard.stats();
    let refused = yard.cache.promise(3, Tier::HOST).unwrap_err();
    assert!(matches!(
        refused,
        Error::NoRoom {
            tier: Tier::HOST,
            ..
        }
    ));
    assert_eq!(room(refused), (3, 3, 1, 2));
    let large = yard.cache.promise(5, Tier::HOST).unwrap_err();
    assert!(matches!(
        large,
        Error::TooLarge {
            tier: Tier::HOST,
            need: 5,
            capacity: 4
        }
    ));
    let none = yard.cache.promise(0, Tier::HOST).unwrap_err();
    assert!(matches!(none, Error::Argument { name: "blocks", .. }));
    let disk = yard.cache.promise(1, Tier::DISK).unwrap_err();
    assert!(matches!(disk, Error::Argument { name: "tier", .. }));
    assert_eq!(
        (yard.stats().tiers, yard.stats().tickets),
        (before.tiers, 1)
    );
    yard.cache.release(first).unwrap();

    let bare = Yard::new(8, 0);
    let none = bare.cache.promise(1, Tier::HOST).unwrap_err();
    assert!(matches!(
        none,
        Error::TooLarge {
            tier: Tier::HOST,
            need: 1,
            capacity: 0
        }
    ));
    let alone = Yard::of(Config {
        slots: vec![9],
        ..config(8, 0)
    });
    let none = alone.cache.promise(1, Tier::HOST).unwrap_err();
    assert!(matches!(none, Error::Argument { name: "tier", .. }));
}

/// Law: INV-22
#[test]
fn a_park_uses_the_room_of_its_ticket_and_what_it_did_not_need_is_promised_no_more() {
    let yard = Yard::new(16, 5);
    let lease = yard.run(&cat(&text(1, 2), &tokens(2, 2)));
    let ticket = promise_below(&yard, 5);
    let (other, error) = yard.cache.park(yard.run(&text(3, 1)), 4).unwrap_err();
    assert_eq!(room(error), (1, 5, 0, 5));
    let parked = park_in(&yard, &ticket, &lease, 10).unwrap();
    assert_eq!((yard.host().promised, yard.stats().tickets), (3, 0));
    let other = yard.park(other, 4);
    yard.land(&[yard.demote_parked(&parked, 3).unwrap()]);
    assert_eq!(
        yard.cache
            .lock()
            .view_parked(parked.id())
            .unwrap()
            .on_device,
        0
    );
    yard.abandon(other);
    yard.abandon(parked);
}

/// Law: INV-22
#[test]
fn a_park_inside_its_ticket_never_lacks_room_also_where_it_pins_what_is_below_already() {
    let yard = Yard::new(24, 3);
    let lease = yard.run(&cat(&text(1, 2), &tokens(2, 1)));
    yard.land(&[yard.demote_lease(&lease, 2)]);
    let ticket = promise_below(&yard, 3);
    let host = yard.host();
    assert_eq!((host.free, host.takeable, host.promised), (1, 2, 3));
    // No other sequence may read or take what backs it.
    yard.publish(&text(3, 2));
    assert_eq!(yard.demote(2), None);
    let parked = park_in(&yard, &ticket, &lease, 9).unwrap();
    let host = yard.host();
    assert_eq!((host.free, host.pinned, host.promised), (1, 2, 1));
    yard.land(&[yard.demote_parked(&parked, 1).unwrap()]);
    assert!(!yard.broken(&parked));
    yard.abandon(parked);
}

/// Law: INV-22
#[test]
fn a_park_that_is_refused_has_its_ticket_still() {
    let yard = Yard::new(32, 4);
    let (small, others) = (promise_below(&yard, 1), promise_below(&yard, 2));
    let (lease, _) = yard.begin(&text(1, 3));
    let refused = park_in(&yard, &small, &lease, 12).unwrap_err();
    assert_eq!(
        room(refused),
        (3, 4, 0, 2),
        "its own ticket is not in its way"
    );
    assert_eq!((yard.host().promised, yard.stats().tickets), (3, 2));
    assert_eq!(
        yard.view(&lease).sealed,
        3,
        "what was full is sealed all the same"
    );
    let digest = yard.cache.lock().digest();
    let less = park_in(&yard, &small, &lease, 11).unwrap_err();
    assert!(matches!(
        less,
        Error::Argument {
            name: "computed",
            ..
        }
    ));
    let (large, _) = yard.begin(&text(2, 5));
    let never = park_in(&yard, &small, &large, 20).unwrap_err();
    assert!(matches!(
        never,
        Error::TooLarge {
            tier: Tier::HOST,
            ..
        }
    ));
    yard.finish(large);
    yard.publish(&text(3, 1));
    let (loading, begun) = yard.begin(&text(3, 1));
    let early = park_in(&yard, &small, &loading, 4).unwrap_err();
    assert!(matches!(early, Error::State { .. }));
    yard.land(&begun.plans);
    yard.finish(loading);
    assert_eq!((yard.host().promised, yard.stats().tickets), (3, 2));
    assert_ne!(yard.cache.lock().digest(), digest);
    yard.cache.release(others).unwrap();
    let parked = park_in(&yard, &small, &lease, 12).unwrap();
    assert_eq!((yard.host().promised, yard.stats().tickets), (3, 0));
    yard.abandon(parked);
}

/// Law: INV-2
#[test]
fn a_ticket_is_good_for_its_own_tier_alone() {
    let yard = Yard::new(8, 4);
    let (above, below) = (promise(&yard, 2), promise_below(&yard, 2));
    let lease = yard.run(&text(1, 1));
    let digest = yard.cache.lock().digest();
    let refused = park_in(&yard, &above, &lease, 4).unwrap_err();
    assert!(matches!(refused, Error::State { .. }), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("is for the device: begin with it"),
        "{refused}"
    );
    let refused = yard
        .cache
        .lock()
        .redeem(below.id(), |_| panic!("nothing is run"));
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::State { .. }), "{refused}");
    assert!(
        refused
            .to_string()
            .contains("is for the host: park with it"),
        "{refused}"
    );
    assert_eq!(yard.cache.lock().digest(), digest);
    yard.cache.release(above).unwrap();
    yard.abandon(park_in(&yard, &below, &lease, 4).unwrap());
    let again = yard.cache.lock().release_ticket(below.id()).unwrap_err();
    assert!(matches!(again, Error::Spent { what: "ticket", .. }));
}

/// Law: 2.3-up-failed
#[test]
fn a_resume_that_came_back_incomplete_is_parked_again_and_spends_its_ticket_for_nothing() {
    let yard = Yard::new(8, 4);
    let parked = yard.park(yard.run(&text(1, 2)), 8);
    yard.land(&[yard.demote_parked(&parked, 2).unwrap()]);
    yard.squeeze(2);
    let (lease, begun) = yard.resume(parked);
    assert!(yard.view(&lease).resumed);
    yard.fail(&begun.plans[0], 1);
    assert!(yard.view(&lease).resumed && yard.view(&lease).incomplete);
    let ticket = promise_below(&yard, 2);
    let parked = park_in(&yard, &ticket, &lease, 8).unwrap();
    let host = yard.host();
    assert_eq!((host.pinned, host.free, host.promised), (2, 2, 0));
    yard.abandon(parked);
}

/// Law: INV-22, 2.7-2
#[test]
fn a_ticket_of_the_host_that_is_dropped_comes_back_and_a_clear_and_a_resize_leave_it() {
    let yard = Yard::new(8, 6);
    let parked = yard.park(yard.run(&text(1, 2)), 8);
    let ticket = promise_below(&yard, 3);
    yard.cache.lock().clear();
    yard.sound();
    assert!(yard.broken(&parked));
    assert_eq!((yard.host().promised, yard.stats().tickets), (3, 1));
    let refused = yard.cache.lock().resize(Tier::HOST, 2).unwrap_err();
    assert!(matches!(
        refused,
        Error::InUse {
            want: 2,
            used: 3,
            ..
        }
    ));
    yard.cache.lock().resize(Tier::HOST, 3).unwrap();
    yard.sound();
    drop(ticket);
    assert_eq!((yard.host().promised, yard.stats().counters.leaked), (0, 1));
    yard.abandon(parked);
}
