//! The thread of a peer: it connects where there is something to say, and ends what was asked on a connection that is
//! lost.

use crate::desk::Desk;
use crate::frame::Frame;
use crate::greeting::{Wish, connect};
use crate::link::{Lost, wait_for};
use crate::wire::{Asked, LOOK, PeerOptions, Shared, Wire};
use std::collections::VecDeque;
use std::mem;
use std::sync::MutexGuard;
use std::thread;
use std::time::Instant;

/// Says that the thread has ended, whatever way.
struct Ending<'shared>(&'shared Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut desk = self.0.desk();
        desk.fail_all();
        desk.runs = false;
        drop(desk);
        self.0.landed.notify_all();
    }
}

pub(crate) fn run(shared: &Shared) {
    let _ends = Ending(shared);
    let mut carrier = Carrier { shared, wire: None };
    while carrier.turn() {}
}

/// The thread of a peer.
struct Carrier<'shared> {
    shared: &'shared Shared,
    wire: Option<Wire>,
}

impl Carrier<'_> {
    /// Does what there is to do, and waits; returns whether it goes on.
    fn turn(&mut self) -> bool {
        let mut desk = self.shared.desk();
        if mem::take(&mut desk.cut) && self.wire.as_ref().is_some_and(Wire::is_asked) {
            drop(desk);
            self.lost(None);
            return true;
        }
        if desk.rest_begun {
            desk.fail_all();
            self.shared.landed.notify_all();
        }
        if desk.closing {
            drop(desk);
            self.part();
            return false;
        }
        let has_words = !desk.work.is_empty() || desk.is_due();
        let rests = desk.rests();
        drop(desk);
        if self.wire.is_none() && has_words && !rests {
            self.meet();
            return true;
        }
        let Some(wire) = &mut self.wire else {
            if wait_for([], Some(&self.shared.wake), Instant::now() + LOOK).is_err() {
                thread::sleep(LOOK);
            }
            return true;
        };
        if let Err(lost) = wire.work(self.shared) {
            self.lost(Some(&lost));
        }
        true
    }

    fn meet(&mut self) {
        let PeerOptions {
            address,
            identity,
            rank,
            bytes,
            timeout,
            carrier,
            ..
        } = &self.shared.options;
        let wish = Wish {
            address,
            identity,
            rank: *rank,
            bytes: *bytes,
            carrier: carrier.as_deref(),
        };
        match connect(&wish, *timeout) {
            Ok((link, other)) => {
                let mut desk = self.shared.desk();
                desk.counts.connected += 1;
                desk.met(other.boot);
                desk.memory = Some((other.boot, other.memory.into()));
                drop(desk);
                self.shared.carrier.wake();
                self.wire = Some(Wire {
                    link,
                    boot: other.boot,
                    asked: VecDeque::new(),
                    next: 1,
                    ahead: 0,
                    body: None,
                    until: None,
                });
            }
            Err(lost) => {
                let mut desk = self.failed(&lost.to_string());
                // What waited for it is not to be had.
                desk.fail_all();
                drop(desk);
                self.shared.landed.notify_all();
            }
        }
    }

    fn failed(&self, why: &str) -> MutexGuard<'_, Desk> {
        let mut desk = self.shared.desk();
        desk.counts.failed += 1;
        why.clone_into(&mut desk.why);
        desk.note(false);
        desk
    }

    /// The connection has ended: what was asked on it fails. Where nothing was, that is no failure.
    ///
    /// # Arguments
    /// `lost` is `None` where it is known already that it has failed.
    fn lost(&mut self, lost: Option<&Lost>) {
        let Some(wire) = self.wire.take() else {
            return;
        };
        let was_asked = wire.is_asked();
        let mut desk = self.shared.desk();
        for asked in wire.asked {
            match asked {
                Asked::Take { take, .. } => desk.fail_take(take.number),
                Asked::Read { number, .. } => desk.fail(number),
            }
        }
        if let Some(body) = wire.body {
            desk.fail(body.number);
        }
        drop(desk);
        if let Some(lost) = lost
            && (was_asked || !matches!(lost, Lost::Closed))
        {
            drop(self.failed(&lost.to_string()));
        }
        self.shared.landed.notify_all();
    }

    /// Says that all is done, as far as that goes at once.
    fn part(&mut self) {
        let leases = self.shared.desk().leases();
        if let Some(wire) = &mut self.wire {
            for (id, reader) in leases {
                wire.link.say(&Frame::Done { id, reader });
            }
            let _ = wire.link.flush(Instant::now() + LOOK);
        }
        self.lost(None);
    }
}
