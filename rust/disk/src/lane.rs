//! A lane: threads that write and read blocks, and one that makes what was written durable for all at once.
//!
//! Nobody waits here but those threads. What is asked is taken at once, and reported when it has ended. A
//! copy down is reported when its payloads and records are synced, a copy up when its bytes are in memory.

use crate::blocks::Blocks;
use crate::breaker::Breaker;
use crate::flight::{Copy, Flying, Landed, Memory, Progress, Short};
use crate::record::Record;
use crate::ring::Ring;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How a lane works.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that read and write.
    pub threads: usize,
    /// What was written is synced after this long, at the latest.
    pub window: Duration,
    /// And after so many bytes.
    pub group: u64,
    /// Failures in a row after which the lane rests.
    pub failures: u32,
    /// How long it rests at first; twice as long after each try that fails.
    pub rest: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 4,
            window: Duration::from_millis(20),
            group: 64 << 20,
            failures: 3,
            rest: Duration::from_millis(500),
        }
    }
}

/// A lane over the blocks of one disk.
#[derive(Debug)]
pub struct Lane {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    blocks: Blocks,
    ring: Ring,
    options: Options,
    state: Mutex<State>,
    /// Something has come for a thread.
    work: Condvar,
    /// Something was written, or the lane closes.
    written: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Arc<Flying>>,
    /// Copies that were taken and have not landed.
    flying: Vec<Arc<Flying>>,
    group: Group,
    landed: Vec<Landed>,
    breaker: Breaker,
    next: u64,
    /// Of the next block that is to be written.
    stamp: u64,
    /// Blocks that threads work on now.
    busy: usize,
    closing: bool,
}

/// What was written since the last sync.
#[derive(Debug, Default)]
struct Group {
    copies: Vec<Arc<Flying>>,
    bytes: u64,
    since: Option<Instant>,
}

impl Lane {
    /// Starts the threads of a lane.
    ///
    /// # Arguments
    /// `stamp` is that of its first block, above all that are in the table.
    pub fn new(blocks: Blocks, stamp: u64, options: Options) -> Self {
        let threads = options.threads.max(1);
        let shared = Arc::new(Shared {
            ring: Ring::new(threads, blocks.geometry().stride()),
            blocks,
            options,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                flying: Vec::new(),
                group: Group::default(),
                landed: Vec::new(),
                breaker: Breaker::new(options.failures, options.rest),
                next: 0,
                stamp,
                busy: 0,
                closing: false,
            }),
            work: Condvar::new(),
            written: Condvar::new(),
        });
        let start = |act: fn(&Shared), shared: &Arc<Shared>| {
            let shared = Arc::clone(shared);
            thread::spawn(move || act(&shared))
        };
        let mut started: Vec<JoinHandle<()>> =
            (0..threads).map(|_| start(Shared::work, &shared)).collect();
        started.push(start(Shared::sync, &shared));
        Self {
            shared,
            threads: Mutex::new(started),
        }
    }

    /// Takes a copy; returns its number. Never waits.
    pub fn submit(&self, copy: Copy, memory: Arc<dyn Memory>) -> u64 {
        let good = copy.blocks();
        let mut state = self.shared.state();
        let number = state.next;
        state.next += 1;
        if good == 0 || state.closing {
            let short = state.closing.then_some(Short::GivenUp);
            state.landed.push(Landed {
                number,
                good: 0,
                short,
            });
            return number;
        }
        // They are given here, and not when a thread comes to it: a clear in between counts.
        let stamp = state.stamp;
        if matches!(copy, Copy::Down(_)) {
            state.stamp += good as u64;
        }
        let flying = Arc::new(Flying {
            number,
            stamp,
            copy,
            memory,
            progress: Mutex::new(Progress {
                next: 0,
                busy: 0,
                good,
                short: None,
                records: Vec::new(),
            }),
        });
        state.waiting.push_back(Arc::clone(&flying));
        state.flying.push(flying);
        self.shared.work.notify_all();
        number
    }

    /// Returns what has ended since the last call, each copy once. Never waits.
    pub fn poll(&self) -> Vec<Landed> {
        mem::take(&mut self.shared.state().landed)
    }

    /// The stamp of the next block: all that was asked for so far has smaller ones. INV-31
    pub fn next_stamp(&self) -> u64 {
        self.shared.state().stamp
    }

    /// Whether it rests: after failures in a row, all copies fail at once until it is tried again.
    pub fn rests(&self) -> bool {
        self.shared.state().breaker.rests(Instant::now())
    }

    /// Gives a copy up: when it returns, no byte of its memory is read or written any more. A thread that
    /// hangs in a read or a write hangs on, with its staging alone. INV-32
    ///
    /// What it wrote and did not sync is not reported as written. Where it went down, a thread that hangs
    /// may write its slot later: keep the slots out of use, or a block there may be lost.
    pub fn give_up(&self, number: u64) {
        let mut state = self.shared.state();
        if let Some(at) = state.flying.iter().position(|one| one.number == number) {
            let flying = Arc::clone(&state.flying[at]);
            flying.progress().cut(0, Short::GivenUp);
            state.land(&flying);
        }
    }

    /// Ends all copies, and the threads after what they are at.
    pub fn close(&self) {
        {
            let mut state = self.shared.state();
            state.closing = true;
            state.waiting.clear();
            for flying in mem::take(&mut state.flying) {
                flying.progress().cut(0, Short::GivenUp);
                state.flying.push(Arc::clone(&flying));
                state.land(&flying);
            }
        }
        self.shared.work.notify_all();
        self.shared.written.notify_all();
        let threads = self.threads.lock();
        for thread in threads.unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.close();
    }
}

impl State {
    /// Reports a copy, once.
    fn land(&mut self, flying: &Arc<Flying>) {
        let Some(at) = self.flying.iter().position(|one| Arc::ptr_eq(one, flying)) else {
            return;
        };
        self.flying.remove(at);
        self.waiting.retain(|one| !Arc::ptr_eq(one, flying));
        let progress = flying.progress();
        self.landed.push(Landed {
            number: flying.number,
            good: progress.good,
            short: progress.short,
        });
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does: the next block of the oldest copy, again and again.
    fn work(&self) {
        let mut staged = self.ring.take();
        while let Some((flying, at)) = self.next_block() {
            let rests = self.state().breaker.rests(Instant::now());
            let done = if rests {
                Err(Short::Failed)
            } else {
                self.carry(&flying, at, &mut staged)
            };
            self.end_block(&flying, at, done, rests);
        }
    }

    fn next_block(&self) -> Option<(Arc<Flying>, usize)> {
        let mut state = self.state();
        loop {
            if state.closing {
                return None;
            }
            while let Some(flying) = state.waiting.front().cloned() {
                let mut progress = flying.progress();
                let at = progress.next;
                // Behind a block that has failed none is good.
                if at < progress.good {
                    progress.next += 1;
                    progress.busy += 1;
                    drop(progress);
                    state.busy += 1;
                    return Some((flying, at));
                }
                drop(progress);
                state.waiting.pop_front();
            }
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Copies a block; its record where it went down.
    fn carry(
        &self,
        flying: &Flying,
        at: usize,
        staged: &mut [u8],
    ) -> Result<Option<Record>, Short> {
        match &flying.copy {
            Copy::Down(blocks) => {
                let (slot, owner) = blocks[at];
                {
                    // While this is held the copy is not given up: its memory is there.
                    let progress = flying.progress();
                    if at >= progress.good {
                        return Err(Short::GivenUp);
                    }
                    flying.memory.gather(at, staged);
                }
                let stamp = flying.stamp + at as u64;
                let record = self.blocks.write(slot, owner, stamp, staged);
                record.map(Some).map_err(|_| Short::Failed)
            }
            Copy::Up(blocks) => {
                let found = self.blocks.read(&blocks[at], staged);
                found.map_err(|_| Short::Failed)?.map_err(Short::Doubt)?;
                let progress = flying.progress();
                if at < progress.good {
                    flying.memory.scatter(at, staged);
                }
                Ok(None)
            }
        }
    }

    fn end_block(
        &self,
        flying: &Arc<Flying>,
        at: usize,
        done: Result<Option<Record>, Short>,
        rested: bool,
    ) {
        let mut state = self.state();
        state.busy -= 1;
        if !rested {
            state
                .breaker
                .note(done != Err(Short::Failed), Instant::now());
        }
        let ended = {
            let mut progress = flying.progress();
            progress.busy -= 1;
            match done {
                Ok(record) => progress.records.extend(record),
                Err(short) => progress.cut(at, short),
            }
            progress.busy == 0 && progress.next >= progress.good
        };
        if ended {
            let down = matches!(flying.copy, Copy::Down(_));
            let written = down && flying.progress().good > 0;
            if written && state.flying.iter().any(|one| Arc::ptr_eq(one, flying)) {
                let bytes = flying.progress().good as u64 * self.blocks.geometry().stride() as u64;
                state.group.copies.push(Arc::clone(flying));
                state.group.bytes += bytes;
                state.group.since.get_or_insert_with(Instant::now);
            } else {
                state.land(flying);
            }
        }
        self.written.notify_all();
    }

    /// What the other thread does: syncs what was written, when its time has come.
    fn sync(&self) {
        loop {
            let Some(group) = self.next_group() else {
                return;
            };
            let records: Vec<Record> = group
                .copies
                .iter()
                .flat_map(|flying| {
                    let progress = flying.progress();
                    let Copy::Down(blocks) = &flying.copy else {
                        return Vec::new();
                    };
                    let good = &blocks[..progress.good];
                    let is_good =
                        |record: &&Record| good.iter().any(|&(slot, _)| slot == record.slot);
                    progress.records.iter().filter(is_good).cloned().collect()
                })
                .collect();
            let done = self.blocks.commit(&records).is_ok();
            let mut state = self.state();
            state.breaker.note(done, Instant::now());
            for flying in &group.copies {
                if !done {
                    flying.progress().cut(0, Short::Failed);
                }
                state.land(flying);
            }
        }
    }

    /// Waits until there is something to sync, and its window is over or nothing else comes.
    fn next_group(&self) -> Option<Group> {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            if let Some(since) = state.group.since {
                let alone = state.busy == 0 && state.waiting.is_empty();
                let late = now >= since + self.options.window;
                if alone || late || state.group.bytes >= self.options.group || state.closing {
                    return Some(mem::take(&mut state.group));
                }
                let left = (since + self.options.window).saturating_duration_since(now);
                let waited = self.written.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else if state.closing {
                return None;
            } else {
                state = self
                    .written
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
