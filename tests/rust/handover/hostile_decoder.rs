//! Decode sides that lie, are slow, or many: the others are served on, and what they hold ends.

use crate::support::{
    BOOT, BYTES, ID, LONG, Pin, Prefill, Slots, held, identity, keys, landed, payload, taken, until,
};
use crate::wire::{
    BLOCK, BLOCKS, DONE, GONE, READ, RENEW, Raw, SUM, TAKE, frame, hello, nonce, numbers,
};
use blockyard_handover::{End, Hold, Limits, Pieces, Receiving, Sending, monotonic};
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const READER: u64 = 42;
/// Bytes that are read at a time.
const PIECE: usize = 100_000;

fn take(ask: u32, first: u32) -> Vec<u8> {
    let last = numbers(&[BOOT, first]);
    frame(
        TAKE,
        &[&ask.to_le_bytes(), &ID, &READER.to_le_bytes(), &last],
    )
}

fn read(ask: u32, first: u32, count: u32) -> Vec<u8> {
    let last = numbers(&[first, count]);
    frame(
        READ,
        &[&ask.to_le_bytes(), &ID, &READER.to_le_bytes(), &last],
    )
}

/// Whether another reader is served.
fn serves(prefill: &Prefill) {
    let (id, peer) = ([9; 16], prefill.peer());
    prefill.offer(id, 0..2);
    assert_eq!(taken(&peer, id, &keys(0..2)), 2);
    let memory = Slots::new(2);
    let number = peer.submit(&keys(0..2), memory.clone());
    assert_eq!(landed(&peer, number), (2, None));
    assert!(memory.read(1) == payload(1));
    assert!(prefill.offers.lock().unwrap().end(&id, End::Closed));
    assert!(peer.close(LONG));
}

fn quick() -> Limits {
    Limits {
        patience: Duration::from_millis(400),
        idle: Duration::from_millis(900),
        finish: Duration::from_millis(200),
        ..Limits::default()
    }
}

#[test]
fn questions_beyond_the_end_are_answered_with_gone_and_the_connection_goes_on() {
    let prefill = Prefill::new();
    prefill.offer(ID, 0..2);
    let mut raw = Raw::welcomed(prefill.server.address());
    raw.say(&read(1, 0, 1));
    assert_eq!(raw.hear().unwrap().0, GONE, "it has not taken it");
    raw.say(&take(2, u32::MAX));
    let (kind, content) = raw.hear().unwrap();
    assert_eq!(
        (kind, content.len()),
        (BLOCKS, 16),
        "no blocks from there on"
    );
    for (first, count) in [(2, 1), (u32::MAX, u32::MAX), (7, 0)] {
        raw.say(&read(3, first, count));
        if count > 0 {
            let (kind, content) = raw.hear().unwrap();
            assert_eq!((kind, &content[..4]), (GONE, &[3, 0, 0, 0][..]));
        }
    }
    // Of more than there are, those that are there.
    raw.say(&read(4, 1, u32::MAX));
    let (kind, content) = raw.hear().unwrap();
    assert_eq!((kind, &content[4..8]), (BLOCK, &[1, 0, 0, 0][..]));
    assert!(raw.bytes(BYTES) == payload(1));
    assert_eq!(raw.hear().unwrap().0, SUM);
    assert_eq!(raw.hear().unwrap().0, GONE);
    raw.say(&frame(RENEW, &[&[1; 16], &READER.to_le_bytes()]));
    raw.say(&frame(DONE, &[&[1; 16], &READER.to_le_bytes()]));
    raw.say(&take(5, 0));
    assert_eq!(raw.hear().unwrap().0, BLOCKS);
    assert_eq!(prefill.server.served().faulty, 0);
}

#[test]
fn a_slot_beyond_the_memory_is_never_read() {
    let prefill = Prefill::new();
    let (held, _pin) = held(14..18);
    prefill
        .offers
        .lock()
        .unwrap()
        .offer(ID, held, monotonic())
        .unwrap();
    let mut raw = Raw::welcomed(prefill.server.address());
    raw.say(&take(1, 0));
    assert_eq!(raw.hear().unwrap().0, BLOCKS);
    raw.say(&read(2, 1, 3));
    assert_eq!(raw.hear().unwrap().0, BLOCK);
    assert!(raw.bytes(BYTES) == payload(15));
    assert_eq!(raw.hear().unwrap().0, SUM);
    let (kind, content) = raw.hear().unwrap();
    assert_eq!((kind, content[20]), (GONE, 2));
}

#[test]
fn frames_that_are_cut_doubled_reordered_huge_or_random_end_their_connection_alone() {
    let prefill = Prefill::with(identity(BOOT, None), quick());
    prefill.offer(ID, 0..2);
    let mut seed = 7_u64;
    let mut chance = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    for round in 0..300 {
        let mut frames = vec![
            nonce(1, false, 5),
            hello(),
            take(1, 0),
            read(2, 0, 2),
            frame(RENEW, &[&ID, &READER.to_le_bytes()]),
            frame(200, &[&[1; 30]]),
        ];
        let (one, other) = (chance() % 6, chance() % 6);
        match round % 5 {
            0 => frames.swap(one, other),
            1 => frames.insert(one, frames[other].clone()),
            2 => {
                let end = chance() % frames[one].len();
                frames[one].truncate(end);
            }
            3 => {
                let at = chance() % frames[one].len();
                frames[one][at] ^= 1 << (chance() % 8);
            }
            _ => frames[one] = (0..chance() % 2000).map(|_| chance() as u8).collect(),
        }
        let mut raw = Raw::to(prefill.server.address());
        let _ = raw.0.write_all(&frames.concat());
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        raw.0.set_nonblocking(true).unwrap();
    }
    until("they end", || {
        (prefill.server.served().connections == 0).then_some(())
    });
    assert!(prefill.server.served().faulty > 0);
    serves(&prefill);
    assert!(prefill.server.close(LONG));
}

#[test]
fn who_says_nothing_or_a_byte_now_and_then_is_left_and_whoever_renews_is_not() {
    let prefill = Prefill::with(identity(BOOT, None), quick());
    prefill.offer(ID, 0..2);
    let (mut silent, mut slow) = (
        Raw::welcomed(prefill.server.address()),
        Raw::welcomed(prefill.server.address()),
    );
    let mut good = Raw::welcomed(prefill.server.address());
    let renew = frame(RENEW, &[&ID, &READER.to_le_bytes()]);
    let mut slow_ended = false;
    for byte in take(1, 0) {
        good.say(&renew);
        slow_ended |= slow.0.write_all(&[byte]).is_err();
        std::thread::sleep(Duration::from_millis(40));
    }
    assert!(slow_ended || slow.is_closed());
    assert!(silent.is_closed());
    good.say(&take(2, 0));
    assert_eq!(good.hear().unwrap().0, BLOCKS);
    let served = prefill.server.served();
    assert_eq!(
        served.faulty, 1,
        "who is silent has done no wrong: it comes again"
    );
}

#[test]
fn a_reader_that_does_not_read_is_left_and_holds_nobody_up() {
    let prefill = Prefill::with(identity(BOOT, None), quick());
    let pin = prefill.offer(ID, 0..8);
    let mut raw = Raw::welcomed(prefill.server.address());
    raw.say(&take(1, 0));
    assert_eq!(raw.hear().unwrap().0, BLOCKS);
    for ask in 0..20 {
        raw.say(&read(ask, 0, 8));
    }
    serves(&prefill);
    until("it is left", || {
        (prefill.server.served().faulty == 1).then_some(())
    });
    assert!(prefill.offers.lock().unwrap().end(&ID, End::Aborted));
    assert_eq!(pin.releases(), 1);
}

#[test]
fn takes_without_end_whose_answers_are_not_read_cost_their_connection_alone() {
    let prefill = Prefill::with(identity(BOOT, None), quick());
    let numbers: Vec<u32> = (0..20_000).collect();
    let key = |number: u32| {
        let mut key = [3; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        key
    };
    let mut many = held(0..1).0;
    many.keys = numbers.iter().map(|&number| key(number)).collect();
    many.parents = vec![[0; 32]; numbers.len()].into();
    many.generations = vec![1; numbers.len()].into();
    many.slots = numbers.into();
    prefill
        .offers
        .lock()
        .unwrap()
        .offer(ID, many, monotonic())
        .unwrap();
    let mut raw = Raw::welcomed(prefill.server.address());
    let mut sent = 0;
    while sent < 100_000 && raw.0.write_all(&take(sent, 0)).is_ok() {
        sent += 1;
    }
    until("it is left", || {
        (prefill.server.served().connections == 0).then_some(())
    });
    assert!(sent < 100_000, "it was read on");
    serves(&prefill);
}

/// What is called before and after each read of memory: which block, from which byte on, and whether it is done.
type See = dyn Fn(usize, usize, bool) + Send + Sync;

/// Memory of a prefill side, and what happens beside its reads, each of which is short.
struct Watched {
    memory: Arc<Slots>,
    see: Box<See>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

impl Pieces for Watched {
    fn source(&self, at: usize, from: usize, most: usize, act: Sending<'_>) {
        (self.see)(at, from, false);
        self.memory.source(at, from, most.min(PIECE), act);
        (self.see)(at, from, true);
    }

    fn target(&self, at: usize, from: usize, most: usize, act: Receiving<'_>) {
        self.memory.target(at, from, most, act);
    }
}

/// A prefill side that offers eight blocks of such memory to a reader that has taken them.
fn watched(
    limits: Limits,
    see: impl Fn(&Slots, &Pin, (usize, usize), bool) + Send + Sync + 'static,
) -> (Prefill, Raw) {
    let ((held, pin), memory) = (held(0..8), Slots::filled(16));
    let own = Arc::clone(&memory);
    let memory = Arc::new(Watched {
        memory,
        see: Box::new(move |at, from, is_done| see(&own, &pin, (at, from), is_done)),
    });
    let prefill = Prefill::over(memory, identity(BOOT, None), limits);
    let mut offers = prefill.offers.lock().unwrap();
    offers.offer(ID, held, monotonic()).unwrap();
    drop(offers);
    let mut raw = Raw::welcomed(prefill.server.address());
    raw.say(&take(1, 0));
    assert_eq!(raw.hear().unwrap().0, BLOCKS);
    (prefill, raw)
}

/// Law: INV-36a
#[test]
fn inv_36a_where_a_hold_ends_within_a_block_zeros_follow_and_no_generation() {
    for ends_before in [true, false] {
        let (within, since) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (end, read_on) = (Arc::clone(&within), Arc::clone(&since));
        let limits = Limits {
            finish: LONG,
            ..Limits::default()
        };
        let (prefill, mut raw) = watched(limits, move |memory, pin, (at, from), is_done| {
            if pin.is_held() && at == 1 && from > 0 && is_done != ends_before {
                pin.end();
                (0..16).for_each(|slot| memory.write(slot, &vec![0xee; BYTES]));
                end.store(from, Ordering::SeqCst);
            } else if !pin.is_held() && !is_done {
                read_on.fetch_add(1, Ordering::SeqCst);
            }
        });
        raw.say(&read(2, 0, 8));
        let block = |raw: &mut Raw| {
            assert_eq!(raw.hear().unwrap().0, BLOCK);
            let bytes = raw.bytes(BYTES);
            let (kind, content) = raw.hear().unwrap();
            assert_eq!(kind, SUM);
            (bytes, content[16..] != [0; 8])
        };
        assert!(block(&mut raw) == (payload(0), true));
        let (bytes, has_generation) = block(&mut raw);
        assert!(!has_generation);
        // What was read beside its end may be another's; what would be read later is not sent.
        let within = within.load(Ordering::SeqCst);
        assert!(bytes[..within] == payload(1)[..within]);
        assert_eq!(bytes[within] == 0xee, ends_before);
        let rest = &bytes[within + PIECE..];
        assert!(rest.len() > PIECE && rest.iter().all(|byte| *byte == 0));
        let (kind, content) = raw.hear().unwrap();
        assert_eq!((kind, &content[..4]), (GONE, &[2, 0, 0, 0][..]));
        assert_eq!(since.load(Ordering::SeqCst), 0, "it was read on");
        let served = prefill.server.served();
        assert_eq!((served.blocks, served.stale), (2, 1));
    }
}

/// Law: INV-36d
#[test]
fn inv_36d_a_block_whose_offer_has_ended_has_a_while_to_finish_and_no_longer() {
    let limits = Limits {
        patience: LONG * 3,
        finish: Duration::from_millis(200),
        ..Limits::default()
    };
    let waits = Arc::new(AtomicBool::new(false));
    let (it_waits, last) = (Arc::clone(&waits), Mutex::new((0, 0)));
    let (prefill, mut raw) = watched(limits, move |_, _, place, is_done| {
        // Nothing of that piece has gone.
        if !is_done && std::mem::replace(&mut *last.lock().unwrap(), place) == place {
            it_waits.store(place != (0, 0), Ordering::SeqCst);
        }
    });
    // More than the system's buffers take of a reader that does not read.
    for ask in 0..20 {
        raw.say(&read(ask, 0, 8));
    }
    until("it waits within a block", || {
        waits.load(Ordering::SeqCst).then_some(())
    });
    assert_eq!(prefill.server.served().faulty, 0);
    assert!(prefill.offers.lock().unwrap().end(&ID, End::Aborted));
    until("it is left", || {
        (prefill.server.served().faulty == 1).then_some(())
    });
}

#[test]
fn a_thousand_at_once_are_served_or_refused_and_all_end() {
    let limits = Limits {
        connections: 300,
        unproved: 2000,
        ..Limits::default()
    };
    let prefill = Prefill::with(identity(BOOT, None), limits);
    prefill.offer(ID, 0..2);
    let all: Vec<Raw> = (0..1000)
        .map(|_| Raw::to(prefill.server.address()))
        .collect();
    until("each is served or refused", || {
        let served = prefill.server.served();
        (served.refused > 0 && served.refused + served.accepted == 1000).then_some(())
    });
    assert!(prefill.server.served().connections <= 300);
    drop(all);
    until("they end", || {
        (prefill.server.served().connections == 0).then_some(())
    });
    serves(&prefill);
    assert!(prefill.server.close(LONG));
}
