//! Headroom: the room kept for the growth of the running batch as a whole. (R1-5)

use crate::verbs::Verbs as _;
use crate::yard::{SIZE, Yard, room, text};
use blockyard_core::{TicketId, Tier};

impl Yard {
    fn headroom(&self, blocks: u64) -> u32 {
        let kept = self.cache.lock().set_headroom(blocks);
        self.sound();
        kept
    }

    fn kept(&self) -> u32 {
        let room = self.cache.lock().room(Tier::DEVICE);
        room.expect("there is a device").headroom
    }

    fn promise(&self, blocks: u64) -> Result<TicketId, blockyard_core::Error> {
        let ticket = self.cache.lock().promise(blocks, Tier::DEVICE);
        self.sound();
        ticket
    }
}

/// Law: R1-5
#[test]
fn a_begin_may_not_take_the_headroom_and_a_grow_may() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin(&text(1, 2));
    assert_eq!(yard.headroom(5), 5);
    let refused = yard.begin_reserving(&text(2, 2), 0).unwrap_err();
    assert_eq!(room(refused), (2, 6, 0, 5));
    assert!(
        yard.grow(&lease, 4 * SIZE),
        "one that is not promised, and three of the headroom"
    );
    assert_eq!((yard.kept(), yard.device().promised), (2, 2));
    assert!(!yard.grow(&lease, 3 * SIZE), "two are left");
    assert_eq!(yard.kept(), 2, "a row that is not served takes nothing");
    assert!(yard.grow(&lease, 2 * SIZE));
    assert_eq!((yard.kept(), yard.device().free), (0, 0));
    yard.finish(lease);
}

/// Law: R1-5
#[test]
fn headroom_is_what_can_be_had_and_takes_the_place_of_what_was_kept_before() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin_reserving(&text(1, 2), 2 * SIZE).unwrap();
    assert_eq!(
        yard.headroom(u64::MAX),
        4,
        "two are held, and two promised to the lease"
    );
    assert_eq!(yard.headroom(3), 3);
    let ticket = yard.promise(1).expect("one is left");
    assert_eq!(yard.headroom(9), 3, "nothing of a ticket");
    yard.cache.lock().release_ticket(ticket).unwrap();
    assert_eq!(yard.kept(), 3, "it rises when it is set, and not by itself");
    assert_eq!(yard.headroom(0), 0);
    assert_eq!(yard.device().promised, 2, "the lease's own");
    yard.finish(lease);
}

/// Law: R1-5
#[test]
fn with_nothing_running_there_is_no_headroom_at_once() {
    let yard = Yard::new(8, 8);
    yard.ends_busy();
    assert_eq!(yard.headroom(4), 0, "nothing runs yet");
    let (one, two) = (yard.run(&text(1, 2)), yard.run(&text(2, 2)));
    assert_eq!(yard.headroom(4), 4);
    yard.finish(one);
    assert_eq!(yard.kept(), 4, "one runs on");
    let parked = yard.cache.park(two, 2 * SIZE).unwrap();
    assert_eq!((yard.kept(), yard.device().promised), (0, 0));
    yard.promise(6)
        .expect("all but what is parked can be promised to another at once");
    let ticket = yard.promise(1);
    assert_eq!(room(ticket.unwrap_err()), (1, 4, 2, 6));
    yard.abandon(parked);
}

/// Law: R1-5
#[test]
fn a_lease_that_is_dropped_or_ends_while_it_loads_leaves_no_headroom() {
    let yard = Yard::new(8, 8);
    let lease = yard.run(&text(1, 2));
    assert_eq!(yard.headroom(4), 4);
    drop(lease);
    assert_eq!(yard.kept(), 0);
    yard.sound();

    yard.publish_below(&text(2, 3));
    let (loading, begun) = yard.stop(&text(2, 3), u32::MAX);
    assert_eq!(yard.headroom(2), 2, "what loads runs soon");
    yard.finish(loading);
    assert_eq!(yard.kept(), 0, "what has ended waits for its loads alone");
    yard.land(&begun.plans);
    yard.sound();
}

/// Law: R1-5
#[test]
fn headroom_yields_to_a_resize_and_is_whole_where_that_is_refused() {
    let yard = Yard::new(8, 0);
    let (lease, _) = yard.begin(&text(1, 3));
    assert_eq!(yard.headroom(5), 5);
    let refused = yard.cache.lock().resize(Tier::DEVICE, 3).is_err();
    yard.sound();
    assert!(refused, "three are held, and one slot is null");
    assert_eq!(yard.kept(), 5);
    yard.cache.lock().resize(Tier::DEVICE, 6).unwrap();
    yard.sound();
    assert_eq!((yard.kept(), yard.device().promised), (2, 2));
    yard.cache.lock().resize(Tier::DEVICE, 9).unwrap();
    yard.sound();
    assert_eq!(yard.kept(), 2);
    yard.finish(lease);
}
