//! A lane: the copies from and to the blocks of one folder. Lanes of one disk share the threads of `threads.rs`.
//!
//! Nobody waits here but those threads. What is asked is taken at once, and reported when it has ended. A
//! copy down is reported when its payloads and records are synced, a copy up when its bytes are in memory.

use crate::blocks::{Blocks, Family};
use crate::flight::{Copy, Landed, Memory};
use crate::medium::Epochs;
use crate::sync_queue::{Counts, LaneState};
use crate::threads::{LaneFiles, Options, Threads};
use std::process;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A lane over the blocks of one folder.
#[derive(Debug)]
pub struct Lane {
    threads: Threads,
    /// Which of the threads' lanes it is.
    number: u64,
    files: Arc<LaneFiles>,
    /// Threads do not come along where a process is forked.
    process: u32,
}

impl Lane {
    /// Makes a lane with threads of its own.
    ///
    /// # Arguments
    /// `floor` is where it notes what was cleared.
    pub fn new(blocks: Blocks, floor: Arc<dyn Epochs>, options: Options) -> Self {
        Self::of(&Threads::new(options.threads), blocks, floor, options)
    }

    /// Makes a lane that shares threads with others of one disk.
    pub fn of(threads: &Threads, blocks: Blocks, floor: Arc<dyn Epochs>, options: Options) -> Self {
        let files = Arc::new(LaneFiles::new(blocks, floor, options));
        Self {
            number: threads.join(Arc::clone(&files)),
            threads: threads.clone(),
            files,
            process: process::id(),
        }
    }

    /// Takes a copy; returns its number. Never waits.
    pub fn submit(&self, copy: Copy, memory: Arc<dyn Memory>) -> u64 {
        self.submit_of(0, copy, memory)
    }

    /// The same, of the plan that has this number: all ranks give it the same one.
    pub fn submit_of(&self, plan: u32, copy: Copy, memory: Arc<dyn Memory>) -> u64 {
        let way = copy.direction();
        let number = self
            .threads
            .lanes()
            .queue(self.number)
            .submit(copy, plan, memory);
        self.threads.has_work(way);
        number
    }

    /// Takes records to be voided; returns a number as of a copy, which has 1 good block when that is durable:
    /// no restart brings anything back then. Never waits. Copies down that may still write such a record must
    /// have landed, or have a later stamp. A failure is tried again. INV-42
    pub fn void(&self, family: Family) -> u64 {
        let number = self.threads.lanes().queue(self.number).submit_void(family);
        self.threads.has_written();
        number
    }

    /// Returns what has ended since the last call, each copy once. Never waits.
    pub fn poll(&self) -> Vec<Landed> {
        self.threads.lanes().queue(self.number).take_landed()
    }

    /// Waits until a copy has landed, for so long at most; returns whether it has. `poll` says how.
    pub fn wait(&self, number: u64, patience: Duration) -> bool {
        let begun = Instant::now();
        let mut lanes = self.threads.lanes();
        while lanes.queue(self.number).flies(number) {
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            lanes = self.threads.await_landed(lanes, left);
        }
        true
    }

    /// What it has done since it was made.
    pub fn counts(&self) -> Counts {
        self.threads.lanes().queue(self.number).counts()
    }

    /// Why the disk has refused last; empty where it never has.
    pub fn why(&self) -> String {
        let why = self.files.why.lock();
        why.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What it is at now.
    pub fn state(&self) -> LaneState {
        let now = self.files.now();
        self.threads.lanes().queue(self.number).state(now)
    }

    /// Gives a copy up: when it returns, no byte of its memory is read or written any more. It waits for
    /// threads that touch that memory, and for none that hangs in a read or a write: such a one hangs on,
    /// with its staging alone. INV-32
    ///
    /// What it wrote and did not sync is not reported as written. A slot that a thread is still at is not
    /// written for any other copy before that thread has ended. INV-27
    pub fn give_up(&self, number: u64) {
        self.leave(number, false);
    }

    /// Gives a copy up that the disk did not answer in time, which counts as a failure.
    pub fn give_up_late(&self, number: u64) {
        self.leave(number, true);
    }

    fn leave(&self, number: u64, late: bool) {
        let mut lanes = self.threads.lanes();
        let queue = lanes.queue(self.number);
        if queue.give_up_void(number) {
            return;
        }
        let flying = queue.give_up(number);
        drop(lanes);
        if let Some(flying) = flying {
            flying.leave();
            let mut lanes = self.threads.lanes();
            let queue = lanes.queue(self.number);
            if late {
                queue.note_late(flying.copy.direction(), self.files.now());
            }
            queue.land(number);
            self.threads.free(lanes, self.number);
        }
    }

    /// Clears what has a smaller stamp. From now on nothing is reported as written before that is durable.
    /// INV-31
    ///
    /// # Arguments
    /// `floor` is the next stamp; `patience` is how long it waits for that.
    ///
    /// # Returns
    /// Whether it is durable: no restart brings anything back. Where not, the lane goes on trying.
    pub fn clear(&self, floor: u64, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut lanes = self.threads.lanes();
        lanes.queue(self.number).clear(floor);
        lanes.try_floor(self.number);
        self.threads.has_written();
        while lanes
            .queue(self.number)
            .pending_floor()
            .is_some_and(|least| least <= floor)
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            lanes = self.threads.await_cleared(lanes, left);
        }
        true
    }

    /// Ends all copies. When no thread is at the files any more, they are closed; the threads end with the
    /// last of their lanes.
    ///
    /// # Arguments
    /// `patience` is how long it waits for threads.
    ///
    /// # Returns
    /// Whether all have left. One that hangs in the system may still write to its slot.
    pub fn close(&self, patience: Duration) -> bool {
        if self.process != process::id() {
            return false;
        }
        let until = Instant::now() + patience;
        let flying = {
            let mut lanes = self.threads.lanes();
            lanes.try_floor(self.number);
            let queue = lanes.queue(self.number);
            queue.closing = true;
            queue.flying()
        };
        for number in flying {
            self.give_up(number);
        }
        self.threads.wake();
        let mut lanes = self.threads.lanes();
        while !lanes.is_closed(self.number) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            lanes = self.threads.await_ended(lanes, left);
        }
        true
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
        if self.process == process::id() {
            self.threads.lanes().forget(self.number);
        }
    }
}
