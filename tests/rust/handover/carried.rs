//! Blocks whose bytes another carrier brings: sums come over the connection, and what was read is checked as ever.

use crate::support::{BYTES, ID, LONG, Pin, Prefill, Slots, keys, landed, payload, taken, until};
use blockyard_handover::{Condition, OfferServer, Peer, PeerOptions, RankMemory, Short};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn carried(prefill: &Prefill) -> Peer {
    Peer::new(PeerOptions {
        carrier: Some("nixl".into()),
        ..prefill.options()
    })
    .unwrap()
}

/// A flight of four blocks whose sums have come, and what the carrier has to read for it.
struct Carried {
    prefill: Prefill,
    peer: Peer,
    pin: Arc<Pin>,
    memory: Arc<Slots>,
    number: u64,
    generations: Vec<u64>,
}

impl Carried {
    fn new() -> Self {
        let prefill = Prefill::new();
        let pin = prefill.offer(ID, 0..4);
        let peer = carried(&prefill);
        assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
        let memory = Slots::new(4);
        let number = peer.submit(&keys(0..4), memory.clone());
        let wanted = peer.wanted(number);
        assert_eq!(
            wanted.iter().map(|one| one.1).collect::<Vec<_>>(),
            [0, 1, 2, 3]
        );
        assert!(wanted.iter().all(|one| one.0 == crate::support::BOOT));
        assert_eq!(peer.begun(), [number]);
        assert_eq!(peer.begun(), [0; 0]);
        let generations = wanted.iter().map(|one| one.2).collect();
        Self {
            prefill,
            peer,
            pin,
            memory,
            number,
            generations,
        }
    }

    /// Lands blocks, as soon as their sums are there.
    fn land(&self, row: usize, staging: &Slots, generations: &[u64]) {
        until("the sums come", || {
            self.peer
                .land(self.number, row, staging, generations)
                .then_some(())
        });
    }
}

#[test]
fn blocks_that_were_read_land_with_the_sums_of_the_other_side() {
    let it = Carried::new();
    assert_eq!(
        it.peer.memory().map(|(boot, said)| (boot, said.to_vec())),
        Some((crate::support::BOOT, b"where it is".to_vec()))
    );
    let staging = Slots::filled(4);
    // Not before those that come first.
    assert!(
        !it.peer
            .land(it.number, 2, &Slots::empty(2), &it.generations[2..])
    );
    it.land(0, &staging, &it.generations[..2]);
    assert!(it.peer.poll(0.0).is_empty());
    let rest = Slots::new(2);
    rest.write(0, &payload(2));
    rest.write(1, &payload(3));
    it.land(2, &rest, &it.generations[2..]);
    assert_eq!(landed(&it.peer, it.number), (4, None));
    for slot in 0..4 {
        assert!(it.memory.read(slot) == payload(slot), "slot {slot}");
    }
    assert_eq!(it.peer.counts().got, 4);
    let served = it.prefill.server.served();
    assert_eq!((served.blocks, served.bytes), (0, 0), "no bytes were sent");
    assert!(
        it.peer.land(it.number, 0, &*staging, &it.generations),
        "it is over"
    );
    assert!(it.peer.close(LONG) && it.prefill.server.close(LONG));
}

#[test]
fn another_generation_or_another_sum_ends_a_flight_before_that_block() {
    for (flips, short) in [(false, Short::Missing), (true, Short::Corrupt)] {
        let it = Carried::new();
        let (staging, mut generations) = (Slots::filled(4), it.generations.clone());
        if flips {
            let mut bytes = payload(2);
            bytes[BYTES - 1] ^= 1;
            staging.write(2, &bytes);
        } else {
            generations[2] += 1;
        }
        it.land(0, &staging, &generations);
        assert_eq!(landed(&it.peer, it.number), (2, Some(short)));
        let counts = it.peer.counts();
        assert_eq!(
            (counts.stale, counts.corrupt),
            (u64::from(!flips), u64::from(flips))
        );
    }
}

#[test]
fn an_offer_that_has_ended_has_no_sums() {
    let prefill = Prefill::new();
    let pin = prefill.offer(ID, 0..4);
    let peer = carried(&prefill);
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    // The yard has given the slots out; nobody has swept the offer.
    pin.raise();
    let number = peer.submit(&keys(0..4), Slots::new(4));
    assert_eq!(landed(&peer, number), (0, Some(Short::Missing)));
    assert_eq!(peer.counts().stale, 1);
}

#[test]
fn a_flight_that_was_given_up_gets_no_byte_of_what_is_read_later() {
    let it = Carried::new();
    let staging = Slots::filled(4);
    it.peer.give_up(it.number, true);
    it.memory.left.store(true, Ordering::SeqCst);
    assert!(it.peer.land(it.number, 0, &*staging, &it.generations));
    assert_eq!(staging.touched.load(Ordering::SeqCst), 0);
    assert_eq!(landed(&it.peer, it.number), (0, Some(Short::GivenUp)));
    assert!(it.peer.wanted(it.number).is_empty());
    drop(it.pin);
}

/// In vllm#50754 a transfer that could not begin was counted on for ever.
#[test]
fn a_carrier_that_fails_ends_its_flight_and_counts_against_the_peer() {
    let it = Carried::new();
    it.land(0, &Slots::filled(2), &it.generations[..2]);
    it.peer.fail(it.number, "it has ended");
    assert_eq!(landed(&it.peer, it.number), (2, Some(Short::Failed)));
    assert_eq!(
        (it.peer.counts().failed, it.peer.why()),
        (1, "it has ended".to_owned())
    );
    it.peer.fail(it.number, "again");
    assert_eq!(it.peer.counts().failed, 1);
    assert_ne!(it.peer.state().condition, Condition::Resting);
}

#[test]
fn a_side_without_the_carrier_is_refused_by_its_name() {
    let prefill = Prefill::new();
    let rank = RankMemory {
        memory: prefill.memory.clone(),
        bytes: BYTES as u32,
        slots: 16,
        said: Vec::new(),
    };
    let identity = crate::support::identity(crate::support::BOOT, None);
    let offers = Arc::clone(&prefill.offers);
    let limits = blockyard_handover::Limits::default();
    let server = OfferServer::open(offers, "127.0.0.1:0", identity, vec![rank], limits).unwrap();
    let peer = Peer::new(PeerOptions {
        carrier: Some("nixl".into()),
        ..crate::support::options(server.address().to_string())
    })
    .unwrap();
    let _pin = prefill.offer(ID, 0..4);
    assert_eq!(taken(&peer, ID, &keys(0..4)), 0);
    assert_eq!(peer.why(), "carrier is \"tcp\" there, and \"nixl\" here");
    assert_eq!(peer.memory(), None);
}
