//! INV-22: tickets, promises made for somebody who does not run yet.

use crate::yard::{SIZE, Yard, and_one, room, text};
use blockyard_core::{
    Answer, Chain, Error, Filling, Holder, Lease, Request, Result, Ticket, Tier, Who,
};

fn promise(yard: &Yard, blocks: u64) -> Ticket {
    let ticket = yard.cache.promise(blocks).expect("there is room");
    yard.sound();
    ticket
}

fn request(chain: &Chain, reserve: u64) -> Request<'_> {
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
    yard.at_rest();
}

#[test]
fn a_ticket_is_refused_with_the_numbers_and_one_that_never_fits_or_is_for_nothing_at_once() {
    let yard = Yard::new(8, 0);
    yard.publish(&text(1, 2));
    let first = promise(&yard, 3);
    let before = yard.stats();
    let refused = yard.cache.promise(6).unwrap_err();
    assert_eq!(room(refused), (6, 6, 2, 3));
    for blocks in [9, u64::MAX] {
        let large = yard.cache.promise(blocks).unwrap_err();
        assert!(matches!(large, Error::TooLarge { need, capacity: 8, .. } if need == blocks));
    }
    let none = yard.cache.promise(0).unwrap_err();
    assert!(matches!(none, Error::Argument { name: "blocks", .. }));
    let after = yard.stats();
    assert_eq!((after.tiers, after.tickets), (before.tiers, 1));
    assert_eq!(after.counters.no_room, 1);
    yard.cache.release(first).unwrap();
}

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
    yard.at_rest();
}

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

#[test]
fn a_begin_that_is_refused_or_told_to_wait_has_its_ticket_still() {
    let yard = Yard::new(10, 8);
    yard.publish_below(&text(1, 2));
    let plan = yard.cache.lock().promote(yard.chain(&text(1, 2)).keys(), 2);
    let plan = plan.unwrap().expect("two are below");
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
        "his own ticket is not in his way"
    );
    assert_eq!((yard.stats().tiers, digest()), (stats.tiers, before));
    assert!(ticket.check().is_ok());
    let answer = redeem(&yard, &ticket, &text(3, 4), SIZE);
    ticket.spend();
    yard.finish(begun(&yard, answer, &text(3, 4)));
    yard.land(&[plan]);
    yard.finish(lease);
    yard.at_rest();
}

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
    yard.at_rest();
}

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
    assert!(!other.cache.made_ticket(&second));
    assert_eq!((yard.stats().tickets, yard.device().promised), (1, 3));
    // Given up with its handle, in the wrong place: its promise comes back all the same.
    assert!(other.cache.release(second).is_err());
    assert_eq!(
        (yard.device().promised, yard.stats().counters.leaked),
        (0, 1)
    );
}

#[test]
fn a_ticket_that_is_dropped_gives_its_promise_back_and_is_counted() {
    let yard = Yard::new(8, 0);
    drop(promise(&yard, 8));
    let all = promise(&yard, 8);
    assert_eq!(yard.stats().counters.leaked, 1);
    yard.cache.release(all).unwrap();
    assert_eq!(yard.stats().counters.leaked, 1);
    yard.at_rest();
}

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

#[test]
fn a_ticket_is_among_the_holders_with_what_it_was_promised() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin(&text(1, 1));
    let ticket = promise(&yard, 5);
    let holder = |who, device, promised| Holder {
        who,
        device,
        alone: device,
        promised,
    };
    let expected = [
        holder(Who::Lease(lease.id()), 1, 0),
        holder(Who::Ticket(ticket.id()), 0, 5),
    ];
    assert_eq!(yard.cache.lock().holders(), expected);
    yard.cache.release(ticket).unwrap();
    yard.finish(lease);
}
