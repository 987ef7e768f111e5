//! A lane: threads that write and read blocks, and one that makes what was written durable for all at once.
//!
//! Nobody waits here but those threads. What is asked is taken at once, and reported when it has ended. A
//! copy down is reported when its payloads and records are synced, a copy up when its bytes are in memory.

use crate::blocks::{Blocks, Family};
use crate::breaker::Breaker;
use crate::flight::{Copy, Direction, Flying, Landed, Memory, Short, Written};
use crate::medium::Epochs;
use crate::record::Record;
use crate::staging::Staging;
use crate::sync_queue::{Counts, Due, LaneState, Queue, Task};
use std::io;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How a lane works.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that read, and as many that write.
    pub threads: usize,
    /// What was written is synced after this long, at the latest.
    pub window: Duration,
    /// And after so many bytes.
    pub group: u64,
    /// Failures in a row after which copies of one way rest.
    pub failures: u32,
    /// How long they rest at first; twice as long after each try that fails.
    pub rest: Duration,
    /// Says what time it is for rests and windows: a test gives a clock that it turns.
    pub clock: fn() -> Instant,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 4,
            window: Duration::from_millis(20),
            group: 64 << 20,
            failures: 3,
            rest: Duration::from_millis(500),
            clock: Instant::now,
        }
    }
}

/// A lane over the blocks of one disk.
#[derive(Debug)]
pub struct Lane {
    shared: Arc<Shared>,
    /// Threads do not come along where a process is forked.
    process: u32,
}

#[derive(Debug)]
struct Shared {
    blocks: Blocks,
    floor: Arc<dyn Epochs>,
    ring: Staging,
    options: Options,
    queue: Mutex<Queue>,
    /// Something has come for a thread of either direction.
    work: [Condvar; 2],
    /// Something was written or cleared, or the lane closes.
    written: Condvar,
    /// A copy may have landed.
    landed: Condvar,
    /// What was cleared is durable.
    cleared: Condvar,
    /// Threads that may still be at a file, and threads that have not ended.
    working: AtomicUsize,
    threads: Mutex<usize>,
    /// Why the disk has refused last; empty where it never has.
    why: Mutex<String>,
    /// A thread has ended.
    ended: Condvar,
}

impl Lane {
    /// Starts the threads of a lane.
    ///
    /// # Arguments
    /// `floor` is where it notes what was cleared.
    pub fn new(blocks: Blocks, floor: Arc<dyn Epochs>, options: Options) -> Self {
        let threads = options.threads.max(1);
        let breaker = Breaker::new(options.failures, options.rest);
        let shared = Arc::new(Shared {
            ring: Staging::new(2 * threads, blocks.geometry().stride()),
            blocks,
            floor,
            options,
            queue: Mutex::new(Queue::new(breaker)),
            work: [Condvar::new(), Condvar::new()],
            written: Condvar::new(),
            landed: Condvar::new(),
            cleared: Condvar::new(),
            working: AtomicUsize::new(2 * threads + 1),
            threads: Mutex::new(2 * threads + 1),
            why: Mutex::new(String::new()),
            ended: Condvar::new(),
        });
        let start = |act: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                act(&shared);
                if shared.working.fetch_sub(1, Ordering::AcqRel) == 1 {
                    shared.blocks.close();
                    shared.floor.close();
                }
                *shared.threads() -= 1;
                shared.ended.notify_all();
            });
        };
        for _ in 0..threads {
            start(|shared| shared.work(Direction::Down));
            start(|shared| shared.work(Direction::Up));
        }
        start(Shared::sync);
        Self {
            shared,
            process: process::id(),
        }
    }

    /// Takes a copy; returns its number. Never waits.
    pub fn submit(&self, copy: Copy, memory: Arc<dyn Memory>) -> u64 {
        self.submit_of(0, copy, memory)
    }

    /// The same, of the plan that has this number: all ranks give it the same one.
    pub fn submit_of(&self, plan: u32, copy: Copy, memory: Arc<dyn Memory>) -> u64 {
        let work = &self.shared.work[copy.direction() as usize];
        let number = self.shared.queue().submit(copy, plan, memory);
        work.notify_all();
        number
    }

    /// Takes records to be voided; returns a number as of a copy, which has 1 good block when that is durable:
    /// no restart brings anything back then. Never waits. Copies down that may still write such a record must
    /// have landed, or have a later stamp. A failure is tried again. INV-42
    pub fn void(&self, family: Family) -> u64 {
        let number = self.shared.queue().submit_void(family);
        self.shared.written.notify_all();
        number
    }

    /// Returns what has ended since the last call, each copy once. Never waits.
    pub fn poll(&self) -> Vec<Landed> {
        self.shared.queue().take_landed()
    }

    /// Waits until a copy has landed, for so long at most; returns whether it has. `poll` says how.
    pub fn wait(&self, number: u64, patience: Duration) -> bool {
        let begun = Instant::now();
        let mut queue = self.shared.queue();
        while queue.flies(number) {
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.landed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// What it has done since it was made.
    pub fn counts(&self) -> Counts {
        self.shared.queue().counts()
    }

    /// Why the disk has refused last; empty where it never has.
    pub fn why(&self) -> String {
        self.shared
            .why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What it is at now.
    pub fn state(&self) -> LaneState {
        self.shared.queue().state(self.shared.now())
    }

    /// Gives a copy up: when it returns, no byte of its memory is read or written any more. It waits for
    /// threads that touch that memory, and for none that hangs in a read or a write: such a one hangs on,
    /// with its staging alone. INV-32
    ///
    /// What it wrote and did not sync is not reported as written. A slot that a thread is still at is not
    /// written for any other copy before that thread has ended. INV-27
    pub fn give_up(&self, number: u64) {
        let mut queue = self.shared.queue();
        if queue.give_up_void(number) {
            return;
        }
        let flying = queue.give_up(number);
        drop(queue);
        if let Some(flying) = flying {
            flying.leave();
            let mut queue = self.shared.queue();
            queue.land(number);
            self.shared.free(queue);
        }
    }

    /// Gives a copy up that the disk did not answer in time, which counts as a failure.
    pub fn give_up_late(&self, number: u64) {
        let mut queue = self.shared.queue();
        if queue.give_up_void(number) {
            return;
        }
        let flying = queue.give_up(number);
        drop(queue);
        if let Some(flying) = flying {
            flying.leave();
            let mut queue = self.shared.queue();
            queue.note_late(flying.copy.direction(), self.shared.now());
            queue.land(number);
            self.shared.free(queue);
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
        let mut queue = self.shared.queue();
        queue.clear(floor);
        self.shared.written.notify_all();
        while queue.pending_floor().is_some_and(|least| least <= floor) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.cleared.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Ends all copies, and the threads after what they are at. The last of them closes all files.
    ///
    /// # Arguments
    /// `patience` is how long it waits for threads.
    ///
    /// # Returns
    /// Whether all have ended. One that hangs in the system may still write to its slot.
    pub fn close(&self, patience: Duration) -> bool {
        if self.process != process::id() {
            return false;
        }
        let until = Instant::now() + patience;
        let flying = {
            let mut queue = self.shared.queue();
            queue.closing = true;
            queue.flying()
        };
        for number in flying {
            self.give_up(number);
        }
        for work in &self.shared.work {
            work.notify_all();
        }
        self.shared.written.notify_all();
        let mut threads = self.shared.threads();
        while *threads > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.ended.wait_timeout(threads, left);
            threads = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl Shared {
    fn now(&self) -> Instant {
        (self.options.clock)()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self) -> MutexGuard<'_, usize> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of why the disk has refused, if it has.
    fn heard<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &done {
            *self.why.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
        }
        done
    }

    /// Lets go of the queue, and wakes who waits for a copy, and the threads that a slot may be free for now.
    fn free(&self, mut queue: MutexGuard<'_, Queue>) {
        let blocked = queue.take_blocked();
        drop(queue);
        self.landed.notify_all();
        if blocked {
            self.work[Direction::Down as usize].notify_all();
        }
    }

    /// What a thread does: the next block of the oldest copy of its way, again and again.
    fn work(&self, direction: Direction) {
        let mut staged = self.ring.take();
        let stride = self.blocks.geometry().stride();
        while let Some(task) = self.next_block(direction) {
            let done = if task.rests {
                Err(Short::Failed)
            } else {
                self.carry(&task.flying, task.at, &mut staged)
            };
            let mut queue = self.queue();
            let syncs = queue.end_block(&task, done, stride, self.now());
            let full = queue.is_full(self.options.group);
            self.free(queue);
            if syncs || full {
                self.written.notify_one();
            }
        }
    }

    fn next_block(&self, direction: Direction) -> Option<Task> {
        let mut queue = self.queue();
        loop {
            if queue.closing {
                return None;
            }
            if let Some(task) = queue.next_block(direction, self.now()) {
                return Some(task);
            }
            let waited = self.work[direction as usize].wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Copies a block; returns its record where it went down.
    fn carry(
        &self,
        flying: &Flying,
        at: usize,
        staged: &mut [u8],
    ) -> Result<Option<Record>, Short> {
        match &flying.copy {
            Copy::Down(blocks) => {
                let Written { slot, owner, stamp } = blocks[at];
                flying.touch(|memory| memory.gather(at, staged))?;
                let record = self.heard(self.blocks.write(slot, owner, stamp, staged));
                let plan = flying.plan;
                record
                    .map(|record| Some(Record { plan, ..record }))
                    .map_err(|_| Short::Failed)
            }
            Copy::Up(blocks) => {
                let found = self.heard(self.blocks.read(&blocks[at], staged));
                found.map_err(|_| Short::Failed)?.map_err(Short::Doubt)?;
                flying.touch(|memory| memory.scatter(at, staged))?;
                Ok(None)
            }
        }
    }

    /// Waits until something was written, or so long.
    fn await_written<'queue>(
        &self,
        queue: MutexGuard<'queue, Queue>,
        left: Duration,
    ) -> MutexGuard<'queue, Queue> {
        let waited = self.written.wait_timeout(queue, left);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// What the last thread does: makes durable what was cleared, and then what was written.
    fn sync(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(floor) = queue.pending_floor() {
                drop(queue);
                let done = self.heard(self.floor.raise(floor)).is_ok();
                queue = self.queue();
                if done {
                    queue.floor_is_durable(floor);
                    self.cleared.notify_all();
                    continue;
                }
                let (group, _) = queue.take_group();
                queue.end_group(&group, false, self.now());
                self.free(queue);
                queue = self.queue();
                if queue.closing {
                    return;
                }
                queue = self.await_written(queue, self.options.rest);
                continue;
            }
            if let Some((number, family)) = queue.due_void(self.now()) {
                drop(queue);
                let done = self.blocks.void_family(&family);
                let done = self.heard(done.and_then(|_| self.floor.check())).is_ok();
                queue = self.queue();
                queue.end_void(number, done, self.now() + self.options.rest);
                self.free(queue);
                queue = self.queue();
                continue;
            }
            match queue.due(self.options.window, self.options.group, self.now()) {
                Due::Now => {
                    let (group, records) = queue.take_group();
                    drop(queue);
                    let done = self.blocks.commit(&records);
                    let done = self.heard(done.and_then(|()| self.floor.check())).is_ok();
                    queue = self.queue();
                    queue.end_group(&group, done, self.now());
                    self.free(queue);
                    queue = self.queue();
                }
                Due::In(left) => {
                    let left = queue
                        .next_void(self.now())
                        .map_or(left, |next| left.min(next));
                    queue = self.await_written(queue, left);
                }
                Due::Never if queue.closing => return,
                Due::Never if queue.next_void(self.now()).is_some() => {
                    let left = queue.next_void(self.now()).unwrap_or_default();
                    queue = self.await_written(queue, left);
                }
                Due::Never => {
                    let waited = self.written.wait(queue);
                    queue = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}
