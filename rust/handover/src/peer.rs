//! The decode side: one prefiller, and what is to be had from it. Who gives a flight up waits for no socket.
//! INV-36c

use crate::carrier::run;
use crate::desk::{Desk, Take, Work};
use crate::flight::{Known, Landing};
use crate::landed::{Answer, Counts, PeerState};
use crate::link::Wake;
use crate::offers::OfferId;
use crate::places::{Pieces, copy_block};
use crate::secret::fresh;
use crate::wire::{PeerOptions, Shared};
use blockyard_disk::Key;
use blockyard_store::{Landed, Short};
use std::os::fd::RawFd;
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// One prefiller, as a rank of a decoder sees it. Any thread may call it, and no call waits for a socket.
#[derive(Debug)]
pub struct Peer {
    shared: Arc<Shared>,
    process: u32,
}

impl Peer {
    /// Makes one. Its thread begins with the first call that needs it.
    ///
    /// # Errors
    /// The system has no descriptor.
    pub fn new(options: PeerOptions) -> std::io::Result<Self> {
        let (bell, tells) = (options.bell.clone(), options.carrier.is_some());
        let desk = Desk::new(options.failures, options.rest, tells, bell);
        Ok(Self {
            shared: Arc::new(Shared {
                desk: Mutex::new(desk),
                options,
                landed: Condvar::new(),
                wake: Wake::new()?,
                carrier: Wake::new()?,
            }),
            process: process::id(),
        })
    }

    /// What it was made with.
    pub fn options(&self) -> &PeerOptions {
        &self.shared.options
    }

    /// Begins the thread where there is none.
    fn start(&self, desk: &mut Desk) {
        if desk.runs || desk.closing {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("blockyard-peer".into());
        desk.runs = true;
        if let Err(error) = thread.spawn(move || run(&shared)) {
            desk.runs = false;
            desk.why = format!("no thread: {error}");
            desk.fail_all();
        }
    }

    fn submitted(&self, mut desk: MutexGuard<'_, Desk>) {
        if !desk.work.is_empty() {
            self.start(&mut desk);
        }
        drop(desk);
        self.shared.wake.wake();
        self.shared.carrier.wake();
    }

    /// Asks for an offer; `answers` says what it has. Never waits.
    ///
    /// # Arguments
    /// `number` is the caller's. Of `keys` those are taken that the offer has one after the other, from `first` on.
    pub fn take(&self, number: u64, id: OfferId, boot: u32, keys: &[Key], first: usize) {
        let reader = fresh().map_or(0, u64::from_le_bytes);
        let mut desk = self.shared.desk();
        if desk.closing || desk.rests() {
            desk.fail_take(number);
            return;
        }
        desk.takes(Take {
            number,
            id,
            boot,
            reader,
            keys: keys.to_vec(),
            first,
        });
        self.submitted(desk);
    }

    /// What has become of takes since the last call, each once.
    pub fn answers(&self) -> Vec<Answer> {
        self.shared.desk().take_answers()
    }

    /// What is known of an offer that was taken, and the number of its reader: for the peers of other ranks.
    pub fn known(&self, id: &OfferId) -> Option<(Known, u64)> {
        let desk = self.shared.desk();
        desk.known(id)
            .map(|(known, reader)| (known.clone(), reader))
    }

    /// Tells it of an offer that another rank's peer has taken, for the same reader.
    pub fn learn(&self, id: OfferId, reader: u64, known: Known) {
        let mut desk = self.shared.desk();
        if !desk.closing {
            // As nobody has told how long it is: soon, and then as often.
            desk.learn(id, reader, known, Duration::from_secs(1));
            self.start(&mut desk);
        }
        drop(desk);
        self.shared.wake.wake();
    }

    /// Which of these keys an offer has that was taken here.
    pub fn has(&self, keys: &[Key]) -> Vec<bool> {
        self.shared.desk().has(keys)
    }

    /// Whether an offer that was taken here has blocks.
    pub fn is_offering(&self) -> bool {
        self.shared.desk().is_offering()
    }

    /// Takes what time it is, and whether a flight would fail at once.
    pub fn is_shut(&self, now: f64) -> bool {
        let mut desk = self.shared.desk();
        desk.turn(now);
        desk.rests()
    }

    /// Takes a flight; returns its number. Never waits. It has failed at once where the other side rests; behind the
    /// first block that no offer here has, its blocks are missing.
    pub fn submit(&self, keys: &[Key], memory: Arc<dyn Pieces>) -> u64 {
        let mut desk = self.shared.desk();
        let number = desk.submit(keys, memory);
        self.submitted(desk);
        number
    }

    /// Takes what time it is, in seconds of any clock, by which rests end; returns the flights that have ended since
    /// the last call, each once. Never waits.
    pub fn poll(&self, now: f64) -> Vec<Landed> {
        let mut desk = self.shared.desk();
        desk.turn(now);
        desk.take_landed()
    }

    /// Waits until a flight has ended, for so long at most; returns whether it has.
    pub fn wait(&self, number: u64, patience: Duration) -> bool {
        let desk = self.shared.desk();
        let waited = self
            .shared
            .landed
            .wait_timeout_while(desk, patience, |desk| desk.flies(number));
        !waited
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .flies(number)
    }

    /// Where the memory of the other side is, and the process that has said so: for the carrier that reads it. `None`
    /// before the first connection.
    pub fn memory(&self) -> Option<(u32, Arc<[u8]>)> {
        self.shared.desk().memory.clone()
    }

    /// A descriptor that can be read when there is something to do for the carrier that brings the bytes.
    pub fn signal(&self) -> RawFd {
        self.shared.carrier.descriptor()
    }

    /// Flights that were taken since the last call, for that carrier.
    pub fn begun(&self) -> Vec<u64> {
        self.shared.carrier.clear();
        self.shared.desk().take_begun()
    }

    /// The process, slot and generation of each block that a flight wants; none where it has ended.
    pub fn wanted(&self, number: u64) -> Vec<(u32, u32, u64)> {
        let flying = self.shared.desk().flying(number);
        let wanted = flying.iter().flat_map(|flying| &flying.wanted);
        wanted
            .map(|one| (one.boot, one.slot, one.generation))
            .collect()
    }

    /// Takes blocks of a flight that another carrier has read into `staging`: checks each, and copies those that are
    /// what was offered. INV-35a, INV-36c
    ///
    /// # Arguments
    /// Block `row` of the flight is block 0 of the staging; `generations` are those that its slots had after all bytes
    /// were read.
    ///
    /// # Returns
    /// Whether the staging is not needed any more. Else the sums, or blocks before these, are not there yet.
    pub fn land(&self, number: u64, row: usize, staging: &dyn Pieces, generations: &[u64]) -> bool {
        let (flying, sums) = match self.shared.desk().landing(number, row, generations.len()) {
            Landing::Over => return true,
            Landing::Later => return false,
            Landing::Now(flying, sums) => (flying, sums),
        };
        let bytes = self.shared.options.bytes as usize;
        for (at, (&sum, &generation)) in sums.iter().zip(generations).enumerate() {
            let this = row + at;
            let is_same = generation == flying.wanted[this].generation;
            let came = is_same.then(|| copy_block(staging, at, &flying.memory, this, bytes));
            if came == Some(None) {
                // It was given up.
                return true;
            }
            let mut desk = self.shared.desk();
            let how = match came.flatten() {
                None => {
                    desk.counts.stale += 1;
                    Err(Short::Missing)
                }
                Some(came) if came != sum => {
                    desk.counts.corrupt += 1;
                    Err(Short::Corrupt)
                }
                Some(_) => Ok(()),
            };
            if !desk.flies(number) {
                return true;
            }
            if desk.came(number, this, how) {
                drop(desk);
                self.shared.landed.notify_all();
            }
            if how.is_err() {
                return true;
            }
        }
        true
    }

    /// The other carrier has failed: a flight ends as far as it has come.
    pub fn fail(&self, number: u64, why: &str) {
        let mut desk = self.shared.desk();
        if desk.flies(number) {
            desk.counts.failed += 1;
            why.clone_into(&mut desk.why);
            desk.fail(number);
            desk.note(false);
        }
        drop(desk);
        self.shared.landed.notify_all();
        self.shared.wake.wake();
    }

    /// Gives a flight up: when it returns, no byte of its memory is written any more. It waits for no socket: what
    /// still comes is thrown away. INV-36c
    ///
    /// # Arguments
    /// `late` says that the other side did not answer in time, which is a failure; the connection is closed.
    pub fn give_up(&self, number: u64, late: bool) {
        let flying = self.shared.desk().flying(number);
        if let Some(flying) = flying {
            flying.memory.leave();
            self.shared.desk().left(number, late);
        }
        self.shared.landed.notify_all();
        self.shared.wake.wake();
        self.shared.carrier.wake();
    }

    /// A request here has what it needs of an offer. It is said behind what was asked before.
    pub fn done(&self, id: OfferId) {
        let mut desk = self.shared.desk();
        match desk.leave_offer(&id) {
            Some(reader) => desk.work.push_back(Work::Done { id, reader }),
            None => drop(desk.abandon(&id)),
        }
        self.submitted(desk);
    }

    /// A request here does not take an offer, or needs it no more.
    pub fn refuse(&self, id: OfferId, why: &str) {
        let mut desk = self.shared.desk();
        let taken = desk.leave_offer(&id);
        if taken.is_none() && desk.abandon(&id) {
            return;
        }
        // Of one that was taken here the lease would be renewed, once the other side is asked again.
        if desk.closing || (taken.is_none() && desk.rests()) {
            return;
        }
        let reader = taken.or_else(|| fresh().ok().map(u64::from_le_bytes));
        desk.work.push_back(Work::Refuse {
            id,
            reader: reader.unwrap_or(0),
            why: why.to_owned(),
        });
        self.submitted(desk);
    }

    /// What it has done since it was made.
    pub fn counts(&self) -> Counts {
        self.shared.desk().counts
    }

    /// What it is at now.
    pub fn state(&self) -> PeerState {
        self.shared.desk().state()
    }

    /// Why the other side has failed last; empty where it never has.
    pub fn why(&self) -> String {
        self.shared.desk().why.clone()
    }

    /// Whether it takes nothing more.
    pub fn is_closed(&self) -> bool {
        self.shared.desk().closing
    }

    /// Ends all flights, says that its offers are done where that is possible at once, and takes no more.
    ///
    /// # Returns
    /// Whether the thread has ended within that patience. Else it does so by its own deadline, and touches no memory.
    pub fn close(&self, patience: Duration) -> bool {
        let flying = {
            let mut desk = self.shared.desk();
            desk.closing = true;
            desk.all()
        };
        for number in flying {
            self.give_up(number, false);
        }
        self.shared.wake.wake();
        let desk = self.shared.desk();
        let waited = self
            .shared
            .landed
            .wait_timeout_while(desk, patience, |desk| desk.runs);
        !waited.unwrap_or_else(PoisonError::into_inner).0.runs
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A forked child has no thread.
        if self.process == process::id() {
            self.close(Duration::ZERO);
        }
    }
}
