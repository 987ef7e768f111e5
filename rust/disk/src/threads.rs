//! Threads of a disk: some that write and some that read blocks, and one that makes what was written durable.
//!
//! The lanes of a disk share them: those of all groups of layers, and of all ranks whose planes it has. A
//! thread takes a block of each lane in turn, so that none waits for another's last block.

use crate::blocks::{Blocks, Family};
use crate::breaker::Breaker;
use crate::flight::{Copy, Direction, Flying, Short, Written};
use crate::medium::Epochs;
use crate::record::Record;
use crate::staging::{Buffer, Staging};
use crate::sync_queue::{Due, Queue, Task};
use std::collections::BTreeMap;
use std::io;
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

/// The files of a lane, and how it works.
#[derive(Debug)]
pub(crate) struct LaneFiles {
    blocks: Blocks,
    floor: Arc<dyn Epochs>,
    options: Options,
    /// Why the disk has refused last; empty where it never has.
    pub(crate) why: Mutex<String>,
}

impl LaneFiles {
    pub(crate) fn new(blocks: Blocks, floor: Arc<dyn Epochs>, options: Options) -> Self {
        Self {
            blocks,
            floor,
            options,
            why: Mutex::new(String::new()),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        (self.options.clock)()
    }

    fn stride(&self) -> usize {
        self.blocks.geometry().stride()
    }

    /// Takes note of why the disk has refused, if it has.
    fn heard<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &done {
            *self.why.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
        }
        done
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
                // A block of another lane may have been staged there.
                staged[self.blocks.geometry().bytes() as usize..].fill(0);
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
}

/// The threads of a disk; they end with the last of their lanes, and begin again with the next.
#[derive(Clone, Debug)]
pub struct Threads(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Threads that read, and as many that write.
    per_way: usize,
    lanes: Mutex<Lanes>,
    /// Something has come for a thread of either direction.
    work: [Condvar; 2],
    /// Something was written or cleared, or a lane closes.
    written: Condvar,
    /// A copy may have landed.
    landed: Condvar,
    /// What was cleared is durable.
    cleared: Condvar,
    /// A lane is closed, or a thread has ended.
    ended: Condvar,
}

/// What a thread does.
#[derive(Clone, Copy, Debug)]
enum Role {
    Down = Direction::Down as isize,
    Up = Direction::Up as isize,
    Sync = 2,
}

/// All lanes of some threads.
#[derive(Debug)]
pub(crate) struct Lanes {
    open: BTreeMap<u64, Entry>,
    made: u64,
    /// The lane that was served last, by role.
    turns: [u64; 3],
    /// Threads that have not ended, by role.
    running: [usize; 3],
}

#[derive(Debug)]
struct Entry {
    files: Arc<LaneFiles>,
    queue: Queue,
    /// Threads that are at blocks of it.
    inside: usize,
    /// When a floor that could not be noted is tried again.
    retry: Option<Instant>,
    /// Its files are closed, and no thread comes any more.
    closed: bool,
    /// Nobody asks for it any more.
    forgotten: bool,
}

/// What is to be made durable next.
#[derive(Debug)]
enum Act {
    Floor(u64),
    Void(u64, Arc<Family>),
    Commit,
    Close,
}

#[derive(Debug)]
enum Next {
    Act(u64, Arc<LaneFiles>, Act),
    /// Nothing is before so long; or before something comes.
    In(Option<Duration>),
    /// All lanes are closed.
    End,
}

impl Lanes {
    /// The queue of a lane whose handle is not dropped, or that a thread is at.
    pub(crate) fn queue(&mut self, lane: u64) -> &mut Queue {
        &mut self.entry(lane).queue
    }

    #[expect(
        clippy::expect_used,
        reason = "an entry outlives its handle and its threads"
    )]
    fn entry(&mut self, lane: u64) -> &mut Entry {
        self.open.get_mut(&lane).expect("the lane is open")
    }

    /// Lets a floor be tried at once.
    pub(crate) fn try_floor(&mut self, lane: u64) {
        self.entry(lane).retry = None;
    }

    /// Whether a lane is closed, and the threads have ended if none of their lanes is open.
    pub(crate) fn is_closed(&self, lane: u64) -> bool {
        let closed = self.open.get(&lane).is_none_or(|entry| entry.closed);
        let idle = self.open.values().all(|entry| entry.queue.closing);
        closed && (!idle || self.running == [0; 3])
    }

    /// Drops a lane when it is closed.
    pub(crate) fn forget(&mut self, lane: u64) {
        if let Some(entry) = self.open.get_mut(&lane) {
            entry.forgotten = true;
            if entry.closed {
                self.open.remove(&lane);
            }
        }
    }

    /// The lanes, from the one behind that which was served last.
    fn in_turn(&self, role: Role) -> Vec<u64> {
        let last = self.turns[role as usize];
        let (before, behind): (Vec<u64>, Vec<u64>) =
            self.open.keys().partition(|&&one| one <= last);
        behind.into_iter().chain(before).collect()
    }

    fn next_block(&mut self, direction: Direction) -> Option<(u64, Arc<LaneFiles>, Task)> {
        let role = [Role::Down, Role::Up][direction as usize];
        for lane in self.in_turn(role) {
            let entry = self.entry(lane);
            if entry.queue.closing {
                continue;
            }
            let now = entry.files.now();
            if let Some(task) = entry.queue.next_block(direction, now) {
                entry.inside += 1;
                let files = Arc::clone(&entry.files);
                self.turns[role as usize] = lane;
                return Some((lane, files, task));
            }
        }
        None
    }

    fn next_sync(&mut self) -> Next {
        let mut soonest: Option<Duration> = None;
        for lane in self.in_turn(Role::Sync) {
            let entry = self.entry(lane);
            match entry.next_sync() {
                Ok(act) => {
                    let files = Arc::clone(&entry.files);
                    self.turns[Role::Sync as usize] = lane;
                    return Next::Act(lane, files, act);
                }
                Err(left) => soonest = soonest.into_iter().chain(left).min(),
            }
        }
        if self.open.values().all(|entry| entry.closed) {
            return Next::End;
        }
        Next::In(soonest)
    }
}

impl Entry {
    /// What is to be made durable now; or how long nothing is, if that is known.
    fn next_sync(&mut self) -> Result<Act, Option<Duration>> {
        let close = if self.queue.closing && self.inside == 0 && !self.closed {
            Ok(Act::Close)
        } else {
            Err(None)
        };
        if self.closed {
            return Err(None);
        }
        if let Some(floor) = self.queue.pending_floor() {
            let left = self
                .retry
                .map(|retry| retry.saturating_duration_since(Instant::now()))
                .filter(|left| !left.is_zero());
            return match left {
                None => Ok(Act::Floor(floor)),
                Some(_) if close.is_ok() => close,
                Some(left) => Err(Some(left)),
            };
        }
        let now = self.files.now();
        if let Some((number, family)) = self.queue.due_void(now) {
            return Ok(Act::Void(number, family));
        }
        let void = self.queue.next_void(now);
        let Options { window, group, .. } = self.files.options;
        match self.queue.due(window, group, now) {
            Due::Now => Ok(Act::Commit),
            Due::In(left) => Err(Some(void.map_or(left, |void| left.min(void)))),
            Due::Never if close.is_ok() => close,
            Due::Never => Err(void),
        }
    }
}

impl Threads {
    /// Threads that begin with the first lane: so many that read, as many that write, and one that syncs.
    pub fn new(per_way: usize) -> Self {
        Self(Arc::new(Shared {
            per_way: per_way.max(1),
            lanes: Mutex::new(Lanes {
                open: BTreeMap::new(),
                made: 0,
                turns: [0; 3],
                running: [0; 3],
            }),
            work: [Condvar::new(), Condvar::new()],
            written: Condvar::new(),
            landed: Condvar::new(),
            cleared: Condvar::new(),
            ended: Condvar::new(),
        }))
    }

    /// Adds a lane; returns its number.
    pub(crate) fn join(&self, files: Arc<LaneFiles>) -> u64 {
        let options = files.options;
        let breaker = Breaker::new(options.failures, options.rest);
        let mut lanes = self.lanes();
        lanes.made += 1;
        let lane = lanes.made;
        let entry = Entry {
            files,
            queue: Queue::new(breaker),
            inside: 0,
            retry: None,
            closed: false,
            forgotten: false,
        };
        lanes.open.insert(lane, entry);
        let most = self.0.per_way;
        for (role, most) in [(Role::Down, most), (Role::Up, most), (Role::Sync, 1)] {
            while lanes.running[role as usize] < most {
                lanes.running[role as usize] += 1;
                let shared = Arc::clone(&self.0);
                thread::spawn(move || {
                    match role {
                        Role::Down => shared.work(Direction::Down),
                        Role::Up => shared.work(Direction::Up),
                        Role::Sync => shared.sync(),
                    }
                    shared.ended.notify_all();
                });
            }
        }
        lane
    }

    pub(crate) fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.0.lanes()
    }

    /// Lets go of the lanes, and wakes who waits for a copy, and the threads that a slot may be free for now.
    pub(crate) fn free(&self, lanes: MutexGuard<'_, Lanes>, lane: u64) {
        self.0.free(lanes, lane);
    }

    pub(crate) fn has_work(&self, direction: Direction) {
        self.0.work[direction as usize].notify_all();
    }

    pub(crate) fn has_written(&self) {
        self.0.written.notify_all();
    }

    /// Wakes all threads, as a lane closes.
    pub(crate) fn wake(&self) {
        for work in &self.0.work {
            work.notify_all();
        }
        self.has_written();
    }

    pub(crate) fn await_landed<'lanes>(
        &self,
        lanes: MutexGuard<'lanes, Lanes>,
        left: Duration,
    ) -> MutexGuard<'lanes, Lanes> {
        await_some(&self.0.landed, lanes, left)
    }

    pub(crate) fn await_cleared<'lanes>(
        &self,
        lanes: MutexGuard<'lanes, Lanes>,
        left: Duration,
    ) -> MutexGuard<'lanes, Lanes> {
        await_some(&self.0.cleared, lanes, left)
    }

    pub(crate) fn await_ended<'lanes>(
        &self,
        lanes: MutexGuard<'lanes, Lanes>,
        left: Duration,
    ) -> MutexGuard<'lanes, Lanes> {
        await_some(&self.0.ended, lanes, left)
    }
}

/// Waits for a word, or so long.
fn await_some<'lanes>(
    word: &Condvar,
    lanes: MutexGuard<'lanes, Lanes>,
    left: Duration,
) -> MutexGuard<'lanes, Lanes> {
    let waited = word.wait_timeout(lanes, left);
    waited.unwrap_or_else(PoisonError::into_inner).0
}

impl Shared {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self, mut lanes: MutexGuard<'_, Lanes>, lane: u64) {
        let blocked = lanes.queue(lane).take_blocked();
        drop(lanes);
        self.landed.notify_all();
        if blocked {
            self.work[Direction::Down as usize].notify_all();
        }
    }

    /// What a thread does: the next block of a lane's oldest copy of its way, again and again.
    fn work(&self, direction: Direction) {
        let mut staged: Option<Buffer> = None;
        while let Some((lane, files, task)) = self.next_block(direction) {
            let stride = files.stride();
            let done = if task.rests {
                Err(Short::Failed)
            } else {
                let large = staged.take().filter(|buffer| buffer.len() >= stride);
                let buffer = staged.insert(large.unwrap_or_else(|| Staging::new(1, stride).take()));
                files.carry(&task.flying, task.at, &mut buffer[..stride])
            };
            let mut lanes = self.lanes();
            let entry = lanes.entry(lane);
            let syncs = entry.queue.end_block(&task, done, stride, files.now());
            let full = entry.queue.is_full(files.options.group);
            entry.inside -= 1;
            if syncs {
                // It fails at once where a floor cannot be noted still.
                entry.retry = None;
            }
            let closes = entry.queue.closing && entry.inside == 0;
            self.free(lanes, lane);
            if syncs || full || closes {
                self.written.notify_one();
            }
        }
    }

    fn next_block(&self, direction: Direction) -> Option<(u64, Arc<LaneFiles>, Task)> {
        let mut lanes = self.lanes();
        loop {
            if lanes.open.values().all(|entry| entry.queue.closing) {
                lanes.running[direction as usize] -= 1;
                return None;
            }
            if let Some(found) = lanes.next_block(direction) {
                return Some(found);
            }
            let waited = self.work[direction as usize].wait(lanes);
            lanes = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What the last thread does: makes durable what was cleared, and then what was written.
    fn sync(&self) {
        let mut lanes = self.lanes();
        loop {
            match lanes.next_sync() {
                Next::End => {
                    lanes.running[Role::Sync as usize] -= 1;
                    return;
                }
                Next::In(None) => {
                    let waited = self.written.wait(lanes);
                    lanes = waited.unwrap_or_else(PoisonError::into_inner);
                }
                Next::In(Some(left)) => lanes = await_some(&self.written, lanes, left),
                Next::Act(lane, files, act) => lanes = self.act(lanes, lane, &files, act),
            }
        }
    }

    /// Makes something of a lane durable, without the lock meanwhile.
    fn act<'shared>(
        &'shared self,
        mut lanes: MutexGuard<'shared, Lanes>,
        lane: u64,
        files: &LaneFiles,
        act: Act,
    ) -> MutexGuard<'shared, Lanes> {
        match act {
            Act::Floor(floor) => {
                drop(lanes);
                let done = files.heard(files.floor.raise(floor)).is_ok();
                lanes = self.lanes();
                let entry = lanes.entry(lane);
                if done {
                    entry.queue.floor_is_durable(floor);
                    self.cleared.notify_all();
                    return lanes;
                }
                let (group, _) = entry.queue.take_group();
                entry.queue.end_group(&group, false, files.now());
                entry.retry = Some(Instant::now() + files.options.rest);
            }
            Act::Void(number, family) => {
                drop(lanes);
                let done = files.blocks.void_family(&family);
                let done = files.heard(done.and_then(|_| files.floor.check())).is_ok();
                lanes = self.lanes();
                let retry = files.now() + files.options.rest;
                lanes.queue(lane).end_void(number, done, retry);
            }
            Act::Commit => {
                let (group, records) = lanes.queue(lane).take_group();
                drop(lanes);
                let done = files.blocks.commit(&records);
                let done = files.heard(done.and_then(|()| files.floor.check())).is_ok();
                lanes = self.lanes();
                lanes.queue(lane).end_group(&group, done, files.now());
            }
            Act::Close => {
                drop(lanes);
                files.blocks.close();
                files.floor.close();
                lanes = self.lanes();
                let entry = lanes.entry(lane);
                entry.closed = true;
                if entry.forgotten {
                    lanes.open.remove(&lane);
                }
                self.ended.notify_all();
                return lanes;
            }
        }
        self.free(lanes, lane);
        self.lanes()
    }
}
