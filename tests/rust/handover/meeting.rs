//! How two sides meet, or do not. INV-36g

use crate::support::{
    BOOT, BYTES, ID, LONG, Prefill, Slots, answer, identity, keys, landed, options, taken, until,
};
use crate::wire::{MEMORY, NONCE, PROOF, Prefiller, Raw, WHERE, frame, hello, nonce};
use blockyard_handover::{Identity, Limits, OfferServer, Peer, PeerOptions, Secret};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

const SECRET: &[u8] = b"what both of them know";

fn with(prefill: &Prefill, identity: Identity) -> Peer {
    Peer::new(PeerOptions {
        identity,
        ..prefill.options()
    })
    .unwrap()
}

/// Takes in vain; returns why.
fn why_not(peer: &Peer) -> String {
    peer.take(1, ID, BOOT, &keys(0..4), 0);
    let found = answer(peer);
    assert_eq!((found.blocks, found.why.as_str()), (0, "failed"));
    assert!(peer.close(LONG));
    peer.why()
}

/// Law: INV-36g
#[test]
fn inv_36g_two_sides_with_one_secret_meet() {
    let prefill = Prefill::with(identity(BOOT, Some(SECRET)), Limits::default());
    prefill.offer(ID, 0..4);
    let peer = with(&prefill, identity(5, Some(SECRET)));
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    let number = peer.submit(&keys(0..4), Slots::new(4));
    assert_eq!(landed(&peer, number), (4, None));
}

/// Law: INV-36g
#[test]
fn inv_36g_with_another_secret_or_none_they_do_not() {
    let prefill = Prefill::with(identity(BOOT, Some(SECRET)), Limits::default());
    let other = identity(5, Some(b"what one of them knows"));
    assert!(why_not(&with(&prefill, other)).contains("another secret: give both sides the same"));
    assert!(why_not(&with(&prefill, identity(5, None))).contains("wants a secret"));
    let open = Prefill::new();
    assert!(why_not(&with(&open, identity(5, Some(SECRET)))).contains("has no secret"));
    until("it is counted", || {
        (prefill.server.served().unproved == 2).then_some(())
    });
}

/// Law: INV-36g
#[test]
fn inv_36g_who_proves_nothing_is_told_a_random_number_and_nothing_else() {
    let prefill = Prefill::with(identity(BOOT, Some(SECRET)), Limits::default());
    for last in [
        frame(PROOF, &[&[0; 32]]),
        hello(),
        frame(PROOF, &[&[0; 31]]),
        frame(WHERE, &[]),
        [frame(PROOF, &[&[0; 32]]), hello(), frame(WHERE, &[])].concat(),
    ] {
        let mut raw = Raw::to(prefill.server.address());
        raw.say(&nonce(1, true, 5));
        let (kind, content) = raw.hear().unwrap();
        assert_eq!((kind, content.len()), (NONCE, 38));
        raw.say(&last);
        assert!(raw.is_closed());
    }
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let mut raw = Raw::to(prefill.server.address());
        raw.say(&nonce(1, true, 5));
        numbers.push(raw.hear().unwrap().1);
    }
    assert_ne!(numbers[0], numbers[1]);
}

/// Law: INV-36g
#[test]
fn inv_36g_where_the_memory_is_is_told_behind_the_meeting_and_not_before() {
    let prefill = Prefill::new();
    let mut raw = Raw::to(prefill.server.address());
    raw.say(&nonce(1, false, 5));
    assert_eq!(raw.hear().unwrap().0, NONCE);
    raw.say(&frame(WHERE, &[]));
    assert!(raw.is_closed());
    let mut raw = Raw::welcomed(prefill.server.address());
    raw.say(&frame(WHERE, &[&[0]]));
    assert!(raw.is_closed(), "it is longer than its kind");
    let mut raw = Raw::welcomed(prefill.server.address());
    raw.say(&frame(WHERE, &[]));
    let said = [&11_u32.to_le_bytes()[..], b"where it is"].concat();
    assert_eq!(raw.hear().unwrap(), (MEMORY, said));
    raw.say(&frame(MEMORY, &[&[0; 4]]));
    assert!(raw.is_closed(), "a decode side has no such word");
}

/// Law: INV-36g
#[test]
fn inv_36g_a_proof_that_was_overheard_is_good_for_nobody() {
    // A prefill side that sends what it hears back to where it came from.
    let mirror = Prefiller::raw(|raw| {
        raw.hear();
        raw.say(&nonce(0, true, BOOT));
        let (_, proof) = raw.hear().unwrap();
        raw.say(&frame(PROOF, &[&proof]));
        raw.hear();
    });
    let peer = Peer::new(PeerOptions {
        identity: identity(5, Some(SECRET)),
        ..options(mirror.address.to_string())
    });
    assert!(why_not(&peer.unwrap()).contains("it has another secret"));
}

#[test]
fn a_field_that_differs_is_named_on_both_sides() {
    let prefill = Prefill::new();
    let mut other = identity(5, None);
    other.fields[1].1 = "float8".into();
    let why = why_not(&with(&prefill, other));
    assert_eq!(why, "dtype is \"float16\" there, and \"float8\" here");
    let mut more = identity(5, None);
    more.fields.push(("weights".into(), "v2".into()));
    assert!(why_not(&with(&prefill, more)).contains("weights is \"\" there"));
    let of = |rank, bytes| {
        let peer = Peer::new(PeerOptions {
            rank,
            bytes,
            ..prefill.options()
        });
        why_not(&peer.unwrap())
    };
    assert!(of(1, BYTES as u32).contains("ranks is \"1\" there"));
    assert_eq!(
        of(0, 4096),
        "block_bytes is \"700000\" there, and \"4096\" here"
    );
    until("they are counted", || {
        (prefill.server.served().differing == 4).then_some(())
    });
}

#[test]
fn a_side_of_another_version_or_role_or_without_a_boot_is_named() {
    for (bytes, word) in [
        (
            [&[0, 0, 0, 0, 2, 1, 0, 0], &nonce(0, false, 7)[8..]].concat(),
            "version 2",
        ),
        (nonce(1, false, 7), "nobody asked for"),
        (nonce(0, false, 0), "nobody asked for"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "version"),
        (frame(NONCE, &[&[0; 5000]]), "5000 bytes"),
        (frame(NONCE, &[&[0; 5]]), "that is none"),
    ] {
        let prefiller = Prefiller::raw(move |raw| {
            raw.hear();
            raw.say(&bytes);
            raw.is_closed();
        });
        let peer = Peer::new(options(prefiller.address.to_string())).unwrap();
        let why = why_not(&peer);
        assert!(why.contains(word), "{why}");
    }
    let prefill = Prefill::new();
    for bytes in [
        nonce(1, false, 0),
        nonce(0, false, 5),
        frame(NONCE, &[&[0; 4097]]),
    ] {
        let mut raw = Raw::to(prefill.server.address());
        raw.say(&bytes);
        assert!(raw.is_closed());
    }
}

#[test]
fn a_hello_or_a_nonce_that_comes_twice_ends_the_connection() {
    let prefill = Prefill::new();
    for again in [hello(), nonce(1, false, 5), frame(PROOF, &[&[0; 32]])] {
        let mut raw = Raw::welcomed(prefill.server.address());
        raw.say(&again);
        assert!(raw.is_closed());
    }
    until("they are counted", || {
        (prefill.server.served().faulty == 3).then_some(())
    });
}

#[test]
fn those_who_have_proved_nothing_are_few_and_end_soon() {
    let limits = Limits {
        unproved: 4,
        patience: Duration::from_millis(400),
        ..Limits::default()
    };
    let prefill = Prefill::with(identity(BOOT, None), limits);
    prefill.offer(ID, 0..4);
    let mut silent: Vec<_> = (0..40).map(|_| Raw::to(prefill.server.address())).collect();
    until("they are refused", || {
        (prefill.server.served().refused > 0).then_some(())
    });
    assert!(silent.iter_mut().all(Raw::is_closed));
    until("their threads end", || {
        (prefill.server.served().connections == 0).then_some(())
    });
    let peer = prefill.peer();
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    assert!(prefill.server.close(LONG));
}

#[test]
fn a_port_that_is_taken_is_an_error_and_nobody_is_hurt() {
    let prefill = Prefill::new();
    let address = prefill.server.address().to_string();
    let offers = Arc::clone(&prefill.offers);
    let again = OfferServer::open(
        offers,
        &address,
        identity(1, None),
        vec![],
        Limits::default(),
    );
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AddrInUse);
    prefill.offer(ID, 0..4);
    assert_eq!(taken(&prefill.peer(), ID, &keys(0..4)), 4);
}

#[test]
fn a_secret_is_in_no_word_that_is_shown() {
    let peer = Peer::new(PeerOptions {
        identity: identity(5, Some(SECRET)),
        ..options("127.0.0.1:1".into())
    });
    let shown = format!("{:?}", peer.unwrap().options());
    assert!(
        shown.contains("Secret") && !shown.contains("both"),
        "{shown}"
    );
    assert!(Secret::new(b"short").is_none());
}
