//! Blocks that are read over loopback: what is good, and what is not.

use crate::support::{
    BOOT, ID, LONG, Prefill, Slots, answer, key, keys, landed, payload, taken, until,
};
use blockyard_handover::{
    Condition, End, Known, Limits, OfferServer, Offers, Peer, PeerOptions, RankMemory, Short,
    monotonic,
};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn blocks_that_were_offered_land_where_they_are_wanted() {
    let prefill = Prefill::new();
    let pin = prefill.offer(ID, 0..6);
    let peer = prefill.peer();
    assert_eq!(taken(&peer, ID, &keys(0..8)), 6);
    assert_eq!(peer.has(&[key(5), key(6)]), [true, false]);
    let memory = Slots::new(6);
    let number = peer.submit(&keys(0..6), memory.clone());
    assert_eq!(landed(&peer, number), (6, None));
    for slot in 0..6 {
        assert!(memory.read(slot) == payload(slot), "slot {slot}");
    }
    // In another order, and some of them twice.
    let wanted = [key(5), key(0), key(1), key(1)];
    let memory = Slots::new(4);
    let number = peer.submit(&wanted, memory.clone());
    assert_eq!(landed(&peer, number), (4, None));
    for (slot, number) in [5, 0, 1, 1].into_iter().enumerate() {
        assert!(memory.read(slot) == payload(number), "slot {slot}");
    }
    assert_eq!((peer.counts().got, peer.counts().connected), (10, 1));
    assert_eq!(peer.state().leases, 1);
    peer.done(ID);
    until("the offer ends", || (pin.releases() == 1).then_some(()));
    assert_eq!(
        prefill.offers.lock().unwrap().tally().ended[End::Done as usize],
        1
    );
    assert_eq!(peer.has(&[key(5)]), [false]);
    assert_eq!((peer.state().offers, peer.state().leases), (0, 0));
    let served = prefill.server.served();
    assert_eq!((served.blocks, served.stale, served.faulty), (10, 0, 0));
    assert_eq!(served.bytes, 10 * crate::support::BYTES as u64);
    assert!(peer.close(LONG) && prefill.server.close(LONG));
}

#[test]
fn each_flight_that_ends_rings_the_bell_of_its_peers_and_no_other_call_does() {
    let prefill = Prefill::new();
    prefill.offer(ID, 0..4);
    let (one, options) = (prefill.peer(), prefill.options());
    let bell = one.options().bell.clone();
    let other = Peer::new(PeerOptions {
        bell: bell.clone(),
        ..options
    });
    let other = other.unwrap();
    for (at, peer) in [&one, &other].into_iter().enumerate() {
        let before = 3 * at as u64;
        assert_eq!(taken(peer, ID, &keys(0..4)), 4);
        assert_eq!((peer.poll(0.0).len(), bell.look(0.0)), (0, before));
        let number = peer.submit(&keys(0..4), Slots::new(4));
        assert_eq!(landed(peer, number), (4, None));
        assert_eq!(bell.look(0.0), before + 1);
        let missing = peer.submit(&[key(9)], Slots::new(1));
        assert_eq!(bell.look(0.0), before + 2, "it ends at once");
        assert_eq!(landed(peer, missing), (0, Some(Short::Missing)));
        let given_up = peer.submit(&keys(0..4), Slots::new(4));
        peer.give_up(given_up, false);
        assert!(peer.wait(given_up, LONG));
        assert_eq!((peer.poll(0.0).len(), bell.look(0.0)), (1, before + 3));
    }
}

#[test]
fn flights_of_several_offers_land_each_with_its_own_bytes() {
    let prefill = Prefill::new();
    prefill.offer([1; 16], 0..4);
    prefill.offer([2; 16], 4..8);
    let peer = prefill.peer();
    assert_eq!(taken(&peer, [1; 16], &keys(0..4)), 4);
    assert_eq!(taken(&peer, [2; 16], &keys(4..8)), 4);
    let memories: Vec<_> = (0..8).map(|_| Slots::new(2)).collect();
    let numbers: Vec<_> = memories
        .iter()
        .enumerate()
        .map(|(at, memory)| peer.submit(&[key(at as u8), key(7 - at as u8)], memory.clone()))
        .collect();
    for number in &numbers {
        assert!(peer.wait(*number, LONG));
    }
    let landed = peer.poll(0.0);
    assert!(
        landed
            .iter()
            .all(|one| one.good == 2 && one.short.is_none())
    );
    assert_eq!(landed.len(), 8);
    for (at, memory) in memories.iter().enumerate() {
        assert!(memory.read(0) == payload(at) && memory.read(1) == payload(7 - at));
    }
}

#[test]
fn of_an_offer_the_blocks_of_the_own_keys_are_taken_from_the_first_one_wanted() {
    let prefill = Prefill::new();
    prefill.offer(ID, 0..6);
    let peer = prefill.peer();
    let mut mine = keys(0..6);
    mine[4] = [99; 32];
    peer.take(3, ID, BOOT, &mine, 2);
    let answer = answer(&peer);
    assert_eq!(
        (answer.number, answer.blocks, answer.why.as_str()),
        (3, 4, "")
    );
    assert_eq!(peer.has(&mine), [false, false, true, true, false, false]);
    let (known, _) = peer.known(&ID).unwrap();
    assert_eq!((known.first, known.slots), (2, vec![2, 3]));
    let memory = Slots::new(3);
    let number = peer.submit(&[key(2), key(3), key(4)], memory.clone());
    assert_eq!(landed(&peer, number), (2, Some(Short::Missing)));
    assert!(memory.read(1) == payload(3) && memory.read(2) == vec![0; memory.read(2).len()]);
}

#[test]
fn an_offer_of_other_keys_is_refused_and_ends_at_once() {
    let prefill = Prefill::new();
    let pin = prefill.offer(ID, 0..4);
    let peer = prefill.peer();
    peer.take(1, ID, BOOT, &keys(5..9), 0);
    let found = answer(&peer);
    assert_eq!((found.blocks, found.why.as_str()), (0, "other keys"));
    until("the offer ends", || (pin.releases() == 1).then_some(()));
    assert_eq!(peer.state().leases, 0);
}

#[test]
fn an_offer_of_another_boot_or_name_is_gone() {
    let prefill = Prefill::new();
    prefill.offer(ID, 0..4);
    let peer = prefill.peer();
    for (id, boot, why) in [(ID, BOOT + 1, "reset"), ([1; 16], BOOT, "ended")] {
        peer.take(1, id, boot, &keys(0..4), 0);
        let found = answer(&peer);
        assert_eq!((found.blocks, found.why.as_str()), (0, why));
    }
    assert_eq!(peer.counts().gone, 2);
    assert_eq!(peer.state().condition, Condition::Well);
}

#[test]
fn a_piece_that_is_anothers_to_write_is_passed_over_and_summed() {
    let prefill = Prefill::new();
    prefill.offer(ID, 0..2);
    let peer = prefill.peer();
    assert_eq!(taken(&peer, ID, &keys(0..2)), 2);
    for foreign in 0..4 {
        let mut memory = Slots::empty(2);
        memory.foreign = Some(foreign);
        let memory = Arc::new(memory);
        let number = peer.submit(&keys(0..2), memory.clone());
        assert_eq!(landed(&peer, number), (2, None), "{foreign}");
        let (mine, theirs) = (memory.read(1), payload(1));
        let begin = [0, 1, 300_000, 600_000, 700_000];
        for piece in 0..4 {
            let range = begin[piece]..begin[piece + 1];
            let expected = if piece == foreign {
                vec![0; range.len()]
            } else {
                theirs[range.clone()].to_vec()
            };
            assert!(mine[range] == expected, "{piece} of {foreign}");
        }
    }
}

/// Law: INV-36b
#[test]
fn inv_36b_a_block_whose_generation_has_changed_is_refused_though_its_bytes_came() {
    let prefill = Prefill::new();
    let pin = prefill.offer(ID, 0..4);
    let peer = prefill.peer();
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    pin.raise();
    let number = peer.submit(&keys(0..4), Slots::new(4));
    assert_eq!(landed(&peer, number), (0, Some(Short::Missing)));
    assert!(peer.counts().stale >= 1, "{:?}", peer.counts());
    assert!(prefill.server.served().stale >= 1);
    assert_eq!(peer.state().condition, Condition::Well);
}

/// Law: INV-36a
#[test]
fn inv_36a_of_a_hold_that_has_ended_no_byte_is_sent() {
    let prefill = Prefill::new();
    let pin = prefill.offer(ID, 0..4);
    let peer = prefill.peer();
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    let before = prefill.memory.touched.load(Ordering::SeqCst);
    pin.end();
    let number = peer.submit(&keys(0..4), Slots::new(4));
    assert_eq!(landed(&peer, number), (0, Some(Short::Missing)));
    assert_eq!(prefill.memory.touched.load(Ordering::SeqCst), before);
    until("it is told", || (peer.state().offers == 0).then_some(()));
}

#[test]
fn the_end_of_an_offer_is_told_to_who_has_taken_it() {
    let prefill = Prefill::new();
    prefill.offer(ID, 0..4);
    let peer = prefill.peer();
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    prefill.offers.lock().unwrap().end(&ID, End::Aborted);
    until("it is told", || {
        (peer.has(&[key(0)]) == [false]).then_some(())
    });
    assert_eq!((peer.state().offers, peer.state().leases), (0, 0));
}

/// In vllm#53095 leases ended under load, as no renewal of theirs came.
#[test]
fn a_lease_is_renewed_by_the_thread_while_the_offer_is_open() {
    let prefill = Prefill::new();
    *prefill.offers.lock().unwrap() = Offers::new(Duration::from_secs(3), Duration::from_secs(60));
    let pin = prefill.offer(ID, 0..4);
    let peer = prefill.peer();
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    let left = || {
        let mut offers = prefill.offers.lock().unwrap();
        offers.sweep(monotonic());
        offers.holding()[0].left
    };
    let mut before = left();
    until("it is not renewed", || {
        left().checked_sub(mem::replace(&mut before, left()))
    });
    assert!(peer.close(LONG));
    until("it is said that it is done", || {
        (pin.releases() == 1).then_some(())
    });
    assert_eq!(
        prefill.offers.lock().unwrap().tally().ended[End::Done as usize],
        1
    );
}

#[test]
fn the_peer_of_another_rank_is_told_of_an_offer_and_reads_its_own_bytes() {
    let prefill = Prefill::new();
    let (one, other) = (Slots::filled(16), Slots::filled(16));
    for slot in 0..16 {
        other.write(slot, &payload(slot + 100));
    }
    let rank = |memory: &Arc<Slots>| RankMemory {
        memory: memory.clone(),
        bytes: crate::support::BYTES as u32,
        slots: 16,
        said: Vec::new(),
    };
    let ranks = vec![rank(&one), rank(&other)];
    let identity = crate::support::identity(BOOT, None);
    let offers = Arc::clone(&prefill.offers);
    let server =
        OfferServer::open(offers, "127.0.0.1:0", identity, ranks, Limits::default()).unwrap();
    let pin = prefill.offer(ID, 0..4);
    let peer_of = |rank| {
        Peer::new(PeerOptions {
            rank,
            ..crate::support::options(server.address().to_string())
        })
        .unwrap()
    };
    let (first, second) = (peer_of(0), peer_of(1));
    assert_eq!(taken(&first, ID, &keys(0..4)), 4);
    let (known, reader) = first.known(&ID).unwrap();
    assert_eq!(
        known,
        Known {
            boot: BOOT,
            first: 0,
            keys: keys(0..4),
            ..known.clone()
        }
    );
    second.learn(ID, reader, known);
    let memory = Slots::new(4);
    let number = second.submit(&keys(0..4), memory.clone());
    assert_eq!(landed(&second, number), (4, None));
    assert!(memory.read(3) == payload(103));
    first.done(ID);
    until("the offer ends", || (pin.releases() == 1).then_some(()));
}

#[test]
fn a_second_take_of_an_offer_has_a_lease_of_its_own() {
    let prefill = Prefill::new();
    let pin = prefill.offer(ID, 0..4);
    let peer = prefill.peer();
    assert_eq!(taken(&peer, ID, &keys(0..2)), 2);
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    assert_eq!(prefill.offers.lock().unwrap().holding()[0].readers, 2);
    peer.done(ID);
    assert_eq!(peer.has(&[key(3)]), [true]);
    let number = peer.submit(&keys(0..4), Slots::new(4));
    assert_eq!(landed(&peer, number), (4, None));
    assert_eq!(pin.releases(), 0);
    peer.done(ID);
    until("the offer ends", || (pin.releases() == 1).then_some(()));
}

#[test]
fn who_refuses_an_offer_that_it_has_not_taken_ends_it() {
    let prefill = Prefill::new();
    let pin = prefill.offer(ID, 0..4);
    let peer = prefill.peer();
    peer.refuse(ID, "it came too late");
    until("the offer ends", || (pin.releases() == 1).then_some(()));
    peer.done([1; 16]);
    peer.refuse(ID, "again");
    assert_eq!(taken(&peer, ID, &keys(0..4)), 0);
}

#[test]
fn who_refuses_an_offer_whose_take_is_out_ends_it() {
    let prefill = Prefill::new();
    let peer = prefill.peer();
    for leaves in [Peer::done, |peer: &Peer, id| peer.refuse(id, "aborted")] {
        let pin = prefill.offer(ID, 0..4);
        peer.take(1, ID, BOOT, &keys(0..4), 0);
        leaves(&peer, ID);
        // It may have been answered before.
        assert!(["given up", ""].contains(&answer(&peer).why.as_str()));
        until("the offer ends", || (pin.releases() == 1).then_some(()));
        assert_eq!(peer.state().leases, 0);
    }
}

#[test]
fn who_refuses_an_offer_of_a_peer_that_rests_renews_it_no_more() {
    let prefill = Prefill::new();
    let options = PeerOptions {
        failures: 1,
        ..prefill.options()
    };
    let peer = Peer::new(options).unwrap();
    let _pin = prefill.offer(ID, 0..4);
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    drop(prefill);
    let number = peer.submit(&keys(0..4), Slots::new(4));
    assert_eq!(landed(&peer, number).0, 0);
    until("it rests", || {
        (peer.state().condition == Condition::Resting).then_some(())
    });
    peer.refuse(ID, "aborted");
    assert_eq!(peer.has(&[key(0)]), [false]);
    assert_eq!(peer.state().offers, 0);
}
