//! Prefill sides that lie, break off, or say what is none: no block of theirs counts as landed.

use crate::support::{
    BYTES, ID, LONG, Slots, answer, key, keys, landed, options, payload, taken, until,
};
use crate::wire::{
    BLOCKS, GENERATION, GONE, MEMORY, Prefiller, Raw, SLOT, asked, block, frame, hello, nonce,
    numbers, sum, tell, told,
};
use blockyard_handover::{Condition, Peer, PeerOptions, Short};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use twox_hash::XxHash3_128;

const BOOT: u32 = crate::support::BOOT;
const LENGTH: u32 = BYTES as u32;

/// What a prefiller says in place of an answer, by the number of the question.
type Lie = Box<dyn Fn([u8; 4]) -> Vec<u8> + Send + Sync>;
/// What it does then.
type Act = fn(&mut Raw, [u8; 4]);

fn peer(prefiller: &Prefiller) -> Peer {
    Peer::new(PeerOptions {
        timeout: Duration::from_millis(700),
        ..options(prefiller.address.to_string())
    })
    .unwrap()
}

/// Sends a whole block, as it was asked for.
fn send(raw: &mut Raw, ask: [u8; 4], at: u32) {
    let bytes = payload(at as usize);
    raw.say(&block(ask, at, SLOT, LENGTH, GENERATION));
    raw.say(&bytes);
    raw.say(&sum(XxHash3_128::oneshot(&bytes), GENERATION));
}

/// How a flight of three blocks ends whose second one comes like this, and what is said of the peer then.
fn second(
    lie: impl Fn(&mut Raw, [u8; 4]) + Send + Sync + 'static,
) -> ((usize, Option<Short>), Peer, Prefiller) {
    let prefiller = Prefiller::new(BOOT, move |raw| {
        tell(raw, 4);
        if let Some((ask, first, _)) = asked(raw) {
            assert_eq!(first, 0);
            send(raw, ask, 0);
            lie(raw, ask);
            while raw.hear().is_some() {}
        }
    });
    let peer = peer(&prefiller);
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    let memory = Slots::new(3);
    let number = peer.submit(&keys(0..3), memory.clone());
    let how = landed(&peer, number);
    assert!(memory.read(0) == payload(0));
    peer.close(LONG);
    (how, peer, prefiller)
}

/// Law: INV-35a
#[test]
fn inv_35a_a_block_with_another_sum_is_corrupt() {
    let (how, peer, _prefiller) = second(|raw, ask| {
        let mut bytes = payload(1);
        let right = XxHash3_128::oneshot(&bytes);
        bytes[BYTES / 2] ^= 1;
        raw.say(&block(ask, 1, SLOT, LENGTH, GENERATION));
        raw.say(&bytes);
        raw.say(&sum(right, GENERATION));
    });
    assert_eq!(how, (1, Some(Short::Corrupt)));
    assert_eq!((peer.counts().corrupt, peer.counts().got), (1, 1));
}

/// Law: INV-36b
#[test]
fn inv_36b_a_block_of_another_slot_or_generation_is_missing_before_or_after() {
    for (slot, before, after) in [
        (SLOT + 1, GENERATION, GENERATION),
        (SLOT, GENERATION + 1, GENERATION + 1),
        (SLOT, GENERATION, GENERATION + 1),
        (SLOT, GENERATION, 0),
    ] {
        let (how, peer, _prefiller) = second(move |raw, ask| {
            let bytes = payload(1);
            raw.say(&block(ask, 1, slot, LENGTH, before));
            raw.say(&bytes);
            raw.say(&sum(XxHash3_128::oneshot(&bytes), after));
        });
        assert_eq!(how, (1, Some(Short::Missing)), "{slot} {before} {after}");
        assert_eq!(peer.counts().stale, 1);
    }
}

#[test]
fn what_nobody_asked_for_or_is_no_frame_ends_the_connection() {
    let gone = |ask: [u8; 4]| frame(GONE, &[&ask, &ID, &[0]]);
    let lies: [(&'static str, Lie); 10] = [
        (
            "another block",
            Box::new(|ask| block(ask, 2, SLOT, LENGTH, GENERATION)),
        ),
        (
            "the same again",
            Box::new(|ask| block(ask, 0, SLOT, LENGTH, GENERATION)),
        ),
        (
            "another question",
            Box::new(|_| block([9; 4], 1, SLOT, LENGTH, GENERATION)),
        ),
        (
            "another length",
            Box::new(|ask| block(ask, 1, SLOT, LENGTH + 1, GENERATION)),
        ),
        (
            "no length",
            Box::new(|ask| block(ask, 1, SLOT, 0, GENERATION)),
        ),
        ("a sum of nothing", Box::new(|_| sum(1, GENERATION))),
        ("gone, of another question", Box::new(move |_| gone([9; 4]))),
        ("a second hello", Box::new(|_| hello())),
        (
            "a frame of 2 MiB",
            Box::new(|_| [&(2_u32 << 20).to_le_bytes()[..], &[1, 8, 0, 0]].concat()),
        ),
        ("no frame", Box::new(|_| vec![0xa5; 4096])),
    ];
    for (what, lie) in lies {
        let (how, peer, _prefiller) = second(move |raw, ask| raw.say(&lie(ask)));
        assert_eq!(how, (1, Some(Short::Failed)), "{what}");
        assert_eq!((peer.counts().failed, peer.counts().got), (1, 1), "{what}");
        assert!(!peer.why().is_empty());
    }
}

#[test]
fn an_unknown_kind_of_frame_is_passed_over() {
    let (how, _peer, _prefiller) = second(|raw, ask| {
        raw.say(&frame(200, &[&[7; 100]]));
        send(raw, ask, 1);
        send(raw, ask, 2);
    });
    assert_eq!(how, (3, None));
}

#[test]
fn a_block_that_is_gone_ends_the_flight_and_the_connection_goes_on() {
    let (how, peer, _prefiller) = second(|raw, ask| raw.say(&frame(GONE, &[&ask, &ID, &[1]])));
    assert_eq!(how, (1, Some(Short::Missing)));
    assert_eq!((peer.counts().failed, peer.counts().missing), (0, 1));
    assert_eq!(peer.state().offers, 0);
}

#[test]
fn a_side_that_breaks_off_or_says_nothing_more_fails_the_flight() {
    let ends: [(&'static str, Act); 3] = [
        ("half a block, and no more", |raw, ask| {
            raw.say(&block(ask, 1, SLOT, LENGTH, GENERATION));
            raw.say(&payload(1)[..BYTES / 2]);
        }),
        ("nothing", |_, _| {}),
        ("half a block, and the end", |raw, ask| {
            raw.say(&block(ask, 1, SLOT, LENGTH, GENERATION));
            raw.say(&payload(1)[..BYTES / 2]);
            raw.0.shutdown(std::net::Shutdown::Both).unwrap();
        }),
    ];
    for (what, end) in ends {
        let (how, peer, _prefiller) = second(end);
        assert_eq!(how, (1, Some(Short::Failed)), "{what}");
        assert_eq!(peer.counts().failed, 1, "{what}");
    }
}

#[test]
fn a_side_that_sends_a_byte_now_and_then_is_left() {
    let (how, peer, _prefiller) = second(|raw, ask| {
        raw.say(&block(ask, 1, SLOT, LENGTH, GENERATION));
        for byte in payload(1) {
            std::thread::sleep(Duration::from_millis(20));
            if std::io::Write::write_all(&mut raw.0, &[byte]).is_err() {
                break;
            }
        }
    });
    assert_eq!(how, (1, Some(Short::Failed)));
    assert!(peer.why().contains("in time"), "{}", peer.why());
}

/// What becomes of a take that is answered like this.
fn told_so(blocks: Vec<u8>, count: u32, more: u32) -> (usize, String, Peer, Prefiller) {
    let prefiller = Prefiller::new(BOOT, move |raw| {
        let (_, content) = raw.hear().unwrap();
        let numbers = numbers(&[more, 30_000, count]);
        raw.say(&frame(BLOCKS, &[&content[..4], &numbers, &blocks]));
        while raw.hear().is_some() {}
    });
    let peer = peer(&prefiller);
    peer.take(1, ID, BOOT, &keys(0..4), 0);
    let answer = answer(&peer);
    peer.close(LONG);
    (answer.blocks, answer.why, peer, prefiller)
}

#[test]
fn an_offer_that_is_no_path_is_refused_in_whole() {
    let chain = |pairs: &[([u8; 32], [u8; 32])]| -> Vec<u8> {
        pairs
            .iter()
            .flat_map(|&(key, parent)| told(key, parent))
            .collect()
    };
    let (a, b, none) = (key(0), key(1), [0; 32]);
    for (blocks, count, word) in [
        (Vec::new(), 0, "0 blocks"),
        (chain(&[(a, none), (a, a)]), 2, "block 1 has the key"),
        (
            chain(&[(a, none), (b, a), (a, b)]),
            3,
            "block 2 has the key",
        ),
        (chain(&[(a, a)]), 1, "block 0 has the key"),
        (
            chain(&[(a, none), (b, [7; 32])]),
            2,
            "block 1 does not follow",
        ),
    ] {
        let (found, why, peer, _prefiller) = told_so(blocks, count, 0);
        assert_eq!(found, 0, "{why}");
        assert!(why.starts_with("wrong: ") && why.contains(word), "{why}");
        assert_eq!(peer.counts().failed, 0);
    }
}

#[test]
fn more_blocks_than_an_offer_may_have_end_the_connection_before_they_come() {
    for (count, more) in [(1, 65_536), (1, u32::MAX), (0, 5), (2, 0)] {
        let (found, why, peer, _prefiller) = told_so(told(key(0), [0; 32]), count, more);
        assert_eq!((found, why.as_str()), (0, "failed"), "{count} {more}");
        assert_eq!(peer.counts().failed, 1);
    }
}

#[test]
fn a_prefiller_that_was_started_again_has_none_of_the_offers_of_before() {
    let boot = AtomicU32::new(BOOT);
    let prefiller = Prefiller::raw(move |raw| {
        if raw.hear().is_none() {
            return;
        }
        let boot = boot.fetch_add(1, Ordering::SeqCst);
        raw.say(&nonce(0, false, boot));
        if raw.hear().is_none() {
            return;
        }
        raw.say(&hello());
        if boot == BOOT {
            tell(raw, 4);
            // It dies at the first question.
            asked(raw);
        } else {
            while raw.hear().is_some() {}
        }
    });
    let peer = peer(&prefiller);
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    let number = peer.submit(&keys(0..4), Slots::new(4));
    assert_eq!(landed(&peer, number), (0, Some(Short::Failed)));
    assert_eq!(peer.has(&[key(0)]), [true], "it may live still");
    let number = peer.submit(&keys(0..4), Slots::new(4));
    assert_ne!(landed(&peer, number).1, None);
    until("it meets the other", || {
        (peer.state().offers == 0).then_some(())
    });
    assert_eq!(peer.state().leases, 0);
    assert_eq!(peer.has(&[key(0)]), [false]);
}

#[test]
fn a_side_that_fails_three_times_rests_and_is_tried_again() {
    let prefiller = Prefiller::raw(|_| {});
    let peer = peer(&prefiller);
    peer.poll(0.0);
    for count in 1..4 {
        peer.take(count, ID, BOOT, &keys(0..4), 0);
        assert_eq!(answer(&peer).why, "failed");
    }
    assert_eq!(peer.state().condition, Condition::Resting);
    assert_eq!((peer.counts().failed, peer.counts().rests), (3, 1));
    peer.take(9, ID, BOOT, &keys(0..4), 0);
    let at_once = peer.answers();
    assert_eq!((at_once.len(), at_once[0].why.as_str()), (1, "failed"));
    let number = peer.submit(&keys(0..2), Slots::new(2));
    let landed = peer.poll(0.1);
    assert_eq!(
        (landed[0].number, landed[0].short),
        (number, Some(Short::Failed))
    );
    assert_eq!(peer.counts().failed, 3, "it was not asked");
    peer.options().bell.look(0.6);
    assert_eq!(peer.state().condition, Condition::Trying);
    assert!(!peer.is_shut(0.6));
    peer.take(10, ID, BOOT, &keys(0..4), 0);
    answer(&peer);
    assert!(peer.is_shut(0.6), "one failure is enough then");
    assert_eq!(peer.counts().failed, 4);
}

#[test]
fn random_bytes_of_a_prefiller_do_no_harm() {
    let mut seed = 1_u64;
    let mut chance = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    for _ in 0..40 {
        let mut answers = [
            block([2, 0, 0, 0], 1, SLOT, LENGTH, GENERATION),
            payload(1),
            sum(XxHash3_128::oneshot(&payload(1)), GENERATION),
            frame(GONE, &[&[2, 0, 0, 0], &ID, &[0]]),
        ]
        .to_vec();
        match chance() % 4 {
            0 => answers.swap(chance() % 4, chance() % 4),
            1 => answers.push(answers[chance() % 4].clone()),
            2 => drop(answers.remove(chance() % 3)),
            _ => {
                let some = chance() % 4;
                let end = chance() % answers[some].len();
                answers[some].truncate(end);
            }
        }
        let mut bytes = answers.concat();
        let at = chance() % bytes.len().min(60);
        bytes[at] ^= 1 << (chance() % 8);
        let ((good, short), peer, _prefiller) = second(move |raw, _| {
            let _ = std::io::Write::write_all(&mut raw.0, &bytes);
            let _ = raw.0.shutdown(std::net::Shutdown::Both);
        });
        assert!(
            good <= 2 && short.is_some(),
            "{good} {short:?} {}",
            peer.why()
        );
    }
}

/// Law: INV-35a
#[test]
fn inv_35a_sums_that_are_none_land_nothing_that_another_carrier_brings() {
    type Sums = fn([u8; 4]) -> Vec<u8>;
    let lies: [(Sums, Option<Short>); 6] = [
        // The sum of another block, of a slot that has changed since, or of another slot.
        (
            |ask| [block(ask, 0, SLOT, 0, GENERATION), sum(1, GENERATION)].concat(),
            Some(Short::Corrupt),
        ),
        (
            |ask| [block(ask, 0, SLOT, 0, GENERATION), sum(1, GENERATION + 1)].concat(),
            Some(Short::Missing),
        ),
        (
            |ask| [block(ask, 0, SLOT + 1, 0, GENERATION), sum(1, GENERATION)].concat(),
            Some(Short::Missing),
        ),
        // Bytes that nobody has asked for, a sum of no block, and a block that is not the first.
        (
            |ask| block(ask, 0, SLOT, LENGTH, GENERATION),
            Some(Short::Failed),
        ),
        (|_| sum(1, GENERATION), Some(Short::Failed)),
        (
            |ask| [block(ask, 1, SLOT, 0, GENERATION), sum(1, GENERATION)].concat(),
            Some(Short::Failed),
        ),
    ];
    for (at, (lie, short)) in lies.into_iter().enumerate() {
        let prefiller = Prefiller::new(BOOT, move |raw| {
            if raw.hear().is_none() {
                return;
            }
            raw.say(&frame(MEMORY, &[&numbers(&[1]), b"x"]));
            tell(raw, 1);
            if let Some((ask, ..)) = asked(raw) {
                raw.say(&lie(ask));
            }
            while raw.hear().is_some() {}
        });
        let options = options(prefiller.address.to_string());
        let peer = Peer::new(PeerOptions {
            carrier: Some("nixl".into()),
            ..options
        })
        .unwrap();
        assert_eq!(taken(&peer, ID, &keys(0..1)), 1);
        let number = peer.submit(&keys(0..1), Slots::new(1));
        let staging = Slots::filled(1);
        until("it lands, or has ended", || {
            peer.land(number, 0, &*staging, &[GENERATION]).then_some(())
        });
        assert_eq!(landed(&peer, number), (0, short), "lie {at}");
        assert_eq!(peer.counts().got, 0);
        peer.close(LONG);
    }
}
