//! Flights that are given up, and sides that close with all of it in the air. INV-36c, INV-36d

use crate::support::{
    BYTES, ID, LONG, Prefill, Slots, all_landed, answer, key, keys, landed, options, payload,
    taken, until,
};
use crate::wire::{GENERATION, Prefiller, SLOT, asked, block, sum, tell};
use blockyard_handover::{Condition, Peer, PeerOptions, Short};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use twox_hash::XxHash3_128;

const BOOT: u32 = crate::support::BOOT;

/// A prefiller that stops within the first block of the first flight until it is told to go on, and a peer of it
/// with its memory. It says how many connections it has had.
struct Stopped {
    peer: Peer,
    memory: Arc<Slots>,
    number: u64,
    go_on: std::sync::mpsc::Sender<()>,
    _prefiller: Prefiller,
}

fn stopped() -> Stopped {
    let (go_on, wait) = channel::<()>();
    let (wait, first) = (Mutex::new(wait), AtomicBool::new(true));
    let prefiller = Prefiller::new(BOOT, move |raw| {
        if first.swap(false, Ordering::SeqCst) {
            tell(raw, 4);
        }
        while let Some((ask, from, count)) = asked(raw) {
            for at in from..from + count {
                let bytes = payload(at as usize);
                raw.say(&block(ask, at, SLOT, BYTES as u32, GENERATION));
                raw.say(&bytes[..BYTES / 2]);
                wait_for(&wait);
                if std::io::Write::write_all(&mut raw.0, &bytes[BYTES / 2..]).is_err() {
                    return;
                }
                raw.say(&sum(XxHash3_128::oneshot(&bytes), GENERATION));
            }
        }
    });
    let peer = Peer::new(options(prefiller.address.to_string())).unwrap();
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    let memory = Slots::new(2);
    let number = peer.submit(&keys(0..2), memory.clone());
    until("half a block comes", || {
        (memory.read(0)[BYTES / 2 - 1] == payload(0)[BYTES / 2 - 1]).then_some(())
    });
    Stopped {
        peer,
        memory,
        number,
        go_on,
        _prefiller: prefiller,
    }
}

/// Waits once; when nobody can tell it any more, it never waits again.
fn wait_for(wait: &Mutex<Receiver<()>>) {
    let _ = wait.lock().unwrap().recv();
}

/// Law: INV-36c
#[test]
fn inv_36c_what_was_given_up_is_touched_no_more_though_its_bytes_come() {
    let test = stopped();
    // The other side waits: so this does for no socket.
    test.peer.give_up(test.number, false);
    test.memory.left.store(true, Ordering::SeqCst);
    let before = test.memory.read(0);
    assert_eq!(landed(&test.peer, test.number), (0, Some(Short::GivenUp)));
    drop(test.go_on);
    let memory = Slots::new(2);
    let number = test.peer.submit(&[key(2), key(3)], memory.clone());
    assert_eq!(landed(&test.peer, number), (2, None));
    assert!(memory.read(1) == payload(3), "on the same connection");
    assert!(test.memory.read(0) == before);
    let counts = test.peer.counts();
    assert_eq!((counts.connected, counts.got, counts.failed), (1, 2, 0));
    assert!(test.peer.poll(0.0).is_empty(), "it is told once");
}

/// Law: INV-36c
#[test]
fn inv_36c_a_flight_that_is_late_ends_the_connection_which_is_an_end() {
    let test = stopped();
    let behind = test.peer.submit(&[key(2)], Slots::new(1));
    test.peer.give_up(test.number, true);
    test.memory.left.store(true, Ordering::SeqCst);
    drop(test.go_on);
    let ended = all_landed(&test.peer, &[test.number, behind]);
    assert_eq!(ended[0], (0, Some(Short::GivenUp)));
    // The other was asked for on that connection, or comes by the next one.
    assert!([(0, Some(Short::Failed)), (1, None)].contains(&ended[1]));
    let number = test.peer.submit(&[key(2)], Slots::new(1));
    assert_eq!(landed(&test.peer, number), (1, None));
    let counts = test.peer.counts();
    assert_eq!((counts.connected, counts.given_up), (2, 1));
    assert_eq!(test.peer.state().condition, Condition::Well);
}

#[test]
fn three_flights_that_are_late_in_a_row_let_the_other_side_rest() {
    let told = AtomicBool::new(false);
    let prefiller = Prefiller::new(BOOT, move |raw| {
        if !told.swap(true, Ordering::SeqCst) {
            tell(raw, 4);
        }
        while raw.hear().is_some() {}
    });
    let peer = Peer::new(options(prefiller.address.to_string())).unwrap();
    assert_eq!(taken(&peer, ID, &keys(0..4)), 4);
    let mut behind = Vec::new();
    while !peer.is_shut(f64::NAN) {
        let late = peer.submit(&[key(1)], Slots::new(1));
        behind.push(peer.submit(&[key(2)], Slots::new(1)));
        peer.give_up(late, true);
    }
    let ended = all_landed(&peer, &behind);
    assert!(
        ended.iter().all(|one| *one == (0, Some(Short::Failed))),
        "{ended:?}"
    );
    assert_eq!((peer.counts().rests, peer.counts().given_up), (1, 3));
    assert_eq!(peer.state().condition, Condition::Resting);
}

#[test]
fn a_peer_that_closes_in_the_air_ends_its_flights_and_touches_nothing() {
    let test = stopped();
    let waits = test.peer.submit(&[key(2)], Slots::new(1));
    test.peer.take(9, [1; 16], BOOT, &keys(0..1), 0);
    assert!(test.peer.close(LONG), "its thread waits for no socket");
    test.memory.left.store(true, Ordering::SeqCst);
    let given_up = (0, Some(Short::GivenUp));
    assert_eq!(all_landed(&test.peer, &[test.number, waits]), [given_up; 2]);
    assert_eq!(answer(&test.peer).number, 9);
    drop(test.go_on);
    let late = test.peer.submit(&[key(2)], Slots::new(1));
    assert_eq!(test.peer.poll(0.0)[0].short, Some(Short::GivenUp));
    assert!(test.peer.wait(late, Duration::ZERO));
    test.peer.take(10, ID, BOOT, &keys(0..1), 0);
    assert_eq!(answer(&test.peer).why, "given up");
    assert!(test.peer.is_closed() && test.peer.close(Duration::ZERO));
}

#[test]
fn a_server_that_closes_in_the_air_reads_no_memory_afterwards() {
    let prefill = Prefill::new();
    prefill.offer(ID, 0..8);
    let peer = prefill.peer();
    assert_eq!(taken(&peer, ID, &keys(0..8)), 8);
    let numbers: Vec<_> = (0..20)
        .map(|_| peer.submit(&keys(0..8), Slots::new(8)))
        .collect();
    until("it sends", || {
        (prefill.server.served().blocks > 2).then_some(())
    });
    assert!(prefill.server.close(LONG));
    prefill.memory.left.store(true, Ordering::SeqCst);
    for (good, short) in all_landed(&peer, &numbers) {
        let fails = [Some(Short::Failed), Some(Short::Missing)];
        assert!(good == 8 && short.is_none() || good < 8 && fails.contains(&short));
    }
    assert!(prefill.server.is_closed() && prefill.server.close(Duration::ZERO));
    assert_eq!(prefill.server.served().connections, 0);
}

#[test]
fn nobody_there_is_a_failure_and_a_name_that_is_none_as_well() {
    for address in ["127.0.0.1:1", "no such host:1", "localhost"] {
        let peer = Peer::new(PeerOptions {
            timeout: Duration::from_secs(2),
            ..options(address.into())
        });
        let peer = peer.unwrap();
        peer.take(1, ID, BOOT, &keys(0..1), 0);
        assert_eq!(answer(&peer).why, "failed", "{address}");
        assert!(!peer.why().is_empty());
        assert!(peer.close(LONG));
    }
}

#[test]
fn no_thread_begins_before_something_is_asked() {
    let peer = Peer::new(options("127.0.0.1:1".into())).unwrap();
    assert_eq!(peer.submit(&keys(0..2), Slots::new(2)), 0);
    assert_eq!(landed(&peer, 0), (0, Some(Short::Missing)));
    let number = peer.submit(&[], Slots::new(0));
    assert_eq!(landed(&peer, number), (0, None));
    assert_eq!((peer.counts().failed, peer.state().flying), (0, 0));
    assert!(peer.close(Duration::ZERO), "there is none to wait for");
}

/// One that was closed may listen there again at once.
#[test]
fn a_server_that_has_closed_listens_no_more() {
    for _ in 0..100 {
        let server = Prefill::new().server;
        assert!(server.close(LONG));
        let refused = TcpStream::connect(server.address()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
