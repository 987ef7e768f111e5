//! What a lane has to do: copies and deletes, the jobs of them that threads are at, and the state of each store.
//! All of it is under the lane's one lock, and nothing here touches a client or a byte of a block.

use crate::erasures::{Erasure, Erasures};
use crate::flight::{Copy, Flying, Landed, Short};
use crate::health::{Ask, Condition, Health, Way};
use crate::options::Options;
use blockyard_disk::{Clock, Key, Memory, Owner};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// What a lane has done since it was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Blocks of copies that a store has acknowledged.
    pub put: u64,
    /// Blocks that came and are what was asked for.
    pub got: u64,
    /// Keys that all stores have deleted.
    pub deleted: u64,
    /// Calls that a store has refused, or has not answered.
    pub failed: u64,
    /// Values that were not what was asked for.
    pub corrupt: u64,
    /// Blocks that no store had.
    pub missing: u64,
    /// Copies that the stores did not answer in time.
    pub given_up: u64,
    /// How often a store has begun to rest.
    pub rests: u64,
}

/// What a lane is at now.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct LaneState {
    /// Copies and deletes that have not ended.
    pub flying: usize,
    /// Jobs that threads are at.
    pub busy: usize,
    /// Of these, jobs whose copy was given up: their threads hang.
    pub hung: usize,
    /// Buffers that clients have, of copies that were given up, or beyond the end of their call.
    pub held: usize,
    /// The state of each store: for puts and deletes, and for gets.
    pub stores: Vec<[Condition; 2]>,
    /// For each store, keys that it has not said to be deleted.
    pub undeleted: Vec<usize>,
}

/// What a thread has to do.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Block {
        number: u64,
        at: usize,
        flying: Arc<Flying>,
    },
    Erase(Erasure),
}

impl Task {
    pub(crate) fn way(&self) -> Way {
        match self {
            Self::Block { flying, .. } => flying.copy.way(),
            Self::Erase(_) => Way::Down,
        }
    }
}

/// A job that a thread is at.
#[derive(Debug)]
struct Busy {
    task: Task,
    asking: Option<Ask>,
    /// The store that it did not hear of in time.
    hung: Option<usize>,
}

#[derive(Debug)]
struct Entry {
    flying: Arc<Flying>,
    /// The next block that a thread takes.
    next: usize,
    /// Blocks that threads are at.
    busy: usize,
    good: usize,
    short: Option<Short>,
    landed: bool,
}

#[derive(Debug)]
pub(crate) struct Queue {
    copies: BTreeMap<u64, Entry>,
    waiting: [VecDeque<u64>; 2],
    erasures: Erasures,
    busy: BTreeMap<u64, Busy>,
    /// Keys that puts may still write, also those that were given up: no delete of them begins. INV-42
    puts: HashMap<Key, usize>,
    health: Vec<[Health; 2]>,
    /// Why each store has refused last.
    why: Vec<String>,
    landed: Vec<Landed>,
    /// The next number of a copy or delete, and of a job.
    next: u64,
    jobs: u64,
    clock: Clock,
    rest: Duration,
    counts: Counts,
    /// Whether copies fail at once from now on.
    stopped: bool,
    closing: bool,
}

impl Queue {
    pub(crate) fn new(options: &Options) -> Self {
        let health = Health::new(options.failures, options.rest, options.limit);
        Self {
            copies: BTreeMap::new(),
            waiting: [VecDeque::new(), VecDeque::new()],
            erasures: Erasures::new(options.stores),
            busy: BTreeMap::new(),
            puts: HashMap::new(),
            health: vec![[health; 2]; options.stores],
            why: vec![String::new(); options.stores],
            landed: Vec::new(),
            next: 0,
            jobs: 0,
            clock: Clock::new(),
            rest: options.rest,
            counts: Counts::default(),
            stopped: false,
            closing: false,
        }
    }

    /// Fails further copies at once.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Lets nothing new come, and what is to be deleted be tried at once.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.erasures.hurry();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn report(&mut self, number: u64, good: usize, short: Option<Short>) {
        self.landed.push(Landed {
            number,
            good,
            short,
        });
    }

    pub(crate) fn submit(&mut self, mut copy: Copy, memory: Arc<dyn Memory>) -> u64 {
        let deleted = self.leave_out_deleted(&mut copy);
        let (number, good) = (self.number(), copy.blocks());
        let way = copy.way();
        let short = if self.closing {
            Some(Short::GivenUp)
        } else {
            self.is_shut(way).then_some(Short::Failed)
        };
        if good == 0 || short.is_some() {
            self.report(number, 0, short.filter(|_| good > 0).or(deleted));
            return number;
        }
        if let Copy::Down(blocks) = &copy {
            for owner in blocks {
                *self.puts.entry(owner.key()).or_default() += 1;
            }
        }
        let entry = Entry {
            flying: Arc::new(Flying::new(copy, memory)),
            next: 0,
            busy: 0,
            good,
            short: deleted,
            landed: false,
        };
        self.copies.insert(number, entry);
        self.waiting[way as usize].push_back(number);
        number
    }

    /// Cuts a put before the first block whose key is being deleted: that delete would take it, too, and this
    /// yard would believe that it is there.
    fn leave_out_deleted(&self, copy: &mut Copy) -> Option<Short> {
        let Copy::Down(blocks) = copy else {
            return None;
        };
        let is_deleted = |owner: &Owner| self.erasures.has(&owner.key());
        let first = blocks.iter().position(is_deleted)?;
        blocks.truncate(first);
        Some(Short::Failed)
    }

    /// Takes keys that all stores are to delete; returns their number.
    pub(crate) fn submit_delete(&mut self, keys: &[Key]) -> u64 {
        let number = self.number();
        if keys.is_empty() || self.closing {
            let short = (!keys.is_empty()).then_some(Short::GivenUp);
            self.report(number, 0, short);
        } else {
            self.erasures.submit(number, keys);
        }
        number
    }

    /// Takes what time it is; returns whether threads may have something to do now.
    pub(crate) fn turn(&mut self, now: f64) -> bool {
        self.clock.turn(now);
        let waits = self.waiting.iter().any(|waiting| !waiting.is_empty());
        waits || !self.erasures.is_empty()
    }

    pub(crate) fn take_landed(&mut self) -> Vec<Landed> {
        mem::take(&mut self.landed)
    }

    /// The next job for a thread: a delete, or a block of the oldest copy where it has a buffer for it.
    pub(crate) fn next_job(&mut self, way: Way, buffer: bool) -> Option<(u64, Task)> {
        let now = self.clock.now();
        let task = match way {
            Way::Down => {
                let (health, puts, closing) = (&self.health, &self.puts, self.closing);
                let is_open = |store: usize| closing || health[store][0].is_open(now);
                let may = |task: &Erasure| !task.keys.iter().any(|key| puts.contains_key(key));
                self.erasures.next(now, is_open, may).map(Task::Erase)
            }
            Way::Up => None,
        };
        let open = |health: &[Health; 2]| health[way as usize].is_open(now);
        let task = match task {
            None if buffer && self.health.iter().any(open) => self.next_block(way)?,
            other => other?,
        };
        let job = self.jobs;
        self.jobs += 1;
        let busy = Busy {
            task: task.clone(),
            asking: None,
            hung: None,
        };
        self.busy.insert(job, busy);
        Some((job, task))
    }

    fn next_block(&mut self, way: Way) -> Option<Task> {
        let waiting = &mut self.waiting[way as usize];
        while let Some(&number) = waiting.front() {
            let entry = self.copies.get_mut(&number);
            // Behind a block that has failed none is good.
            let Some(entry) = entry.filter(|entry| entry.next < entry.good) else {
                waiting.pop_front();
                continue;
            };
            let at = entry.next;
            entry.next += 1;
            entry.busy += 1;
            let flying = Arc::clone(&entry.flying);
            return Some(Task::Block { number, at, flying });
        }
        None
    }

    /// Begins a call of a job, where its store may be asked now.
    pub(crate) fn ask(&mut self, job: u64, store: usize) -> bool {
        let now = self.clock.now();
        self.forget_call(job);
        let Some(busy) = self.busy.get_mut(&job) else {
            return false;
        };
        let Some(health) = self.health.get_mut(store) else {
            return false;
        };
        busy.asking = health[busy.task.way() as usize].ask(store, now);
        busy.asking.is_some()
    }

    /// Takes how the call of a job has ended; returns whether threads that wait may have something to do now, or
    /// copies have ended.
    pub(crate) fn note(&mut self, job: u64, refused: Option<&str>, took: Duration) -> bool {
        let now = self.clock.now();
        let Some(busy) = self.busy.get_mut(&job) else {
            return false;
        };
        let way = busy.task.way();
        busy.hung = None;
        let Some(ask) = busy.asking.take() else {
            return false;
        };
        if let Some(why) = refused {
            self.counts.failed += 1;
            why.clone_into(&mut self.why[ask.store]);
        }
        let began = self.health[ask.store][way as usize].note(ask, refused.is_none(), took, now);
        if began {
            if refused.is_none() {
                "its calls take too long".clone_into(&mut self.why[ask.store]);
            }
            self.rest_begins(way);
        }
        ask.is_try || began
    }

    /// A call of which nothing was said has failed.
    fn forget_call(&mut self, job: u64) -> bool {
        let asks = self.busy.get(&job).is_some_and(|one| one.asking.is_some());
        asks && self.note(job, Some("its call was interrupted"), Duration::ZERO)
    }

    /// Whether copies that way fail at once: they were stopped, or all stores rest.
    pub(crate) fn is_shut(&self, way: Way) -> bool {
        self.stopped || self.all_rest(way)
    }

    fn all_rest(&self, way: Way) -> bool {
        let now = self.clock.now();
        self.health.iter().all(|one| one[way as usize].rests(now))
    }

    /// Fails what waits, where no store is left to ask.
    fn rest_begins(&mut self, way: Way) {
        self.counts.rests += 1;
        if !self.all_rest(way) {
            return;
        }
        for number in mem::take(&mut self.waiting[way as usize]) {
            let next = self.copies.get(&number).map(|entry| entry.next);
            self.cut(number, next.unwrap_or(0), Short::Failed);
            self.settle(number);
        }
    }

    /// Takes what has become of a job; returns whether threads that wait for deletes may have something to do
    /// now, and whether something has ended.
    pub(crate) fn end_job(&mut self, job: u64, done: Result<(), Short>) -> (bool, bool) {
        let before = self.landed.len();
        let tried = self.forget_call(job);
        let Some(busy) = self.busy.remove(&job) else {
            return (tried, true);
        };
        self.counts.missing += u64::from(done == Err(Short::Missing));
        match busy.task {
            Task::Erase(task) => {
                let retry = (!self.closing).then(|| self.clock.now() + self.rest);
                if let Some(keys) = self.erasures.end(&task, done.is_ok(), retry) {
                    self.counts.deleted += keys as u64;
                    self.report(task.number, keys, None);
                }
            }
            Task::Block { number, at, flying } => {
                if let Copy::Down(blocks) = &flying.copy {
                    self.release(blocks[at].key());
                }
                if let Some(entry) = self.copies.get_mut(&number) {
                    entry.busy -= 1;
                }
                if let Err(short) = done {
                    self.cut(number, at, short);
                }
                self.settle(number);
            }
        }
        let stirs = tried || !self.erasures.is_empty();
        (stirs, self.landed.len() > before || self.closing)
    }

    /// Counts a value that was not what was asked for.
    pub(crate) fn count_corrupt(&mut self) {
        self.counts.corrupt += 1;
    }

    fn release(&mut self, key: Key) {
        if let Some(count) = self.puts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.puts.remove(&key);
            }
        }
    }

    /// Lets nothing of a copy be good from a block on, and no further block of it begin.
    fn cut(&mut self, number: u64, at: usize, short: Short) {
        let Some(entry) = self.copies.get_mut(&number) else {
            return;
        };
        if at < entry.good {
            (entry.good, entry.short) = (at, Some(short));
        }
        let first = mem::replace(&mut entry.next, usize::MAX);
        let flying = Arc::clone(&entry.flying);
        if let Copy::Down(blocks) = &flying.copy {
            for owner in blocks.iter().skip(first) {
                self.release(owner.key());
            }
        }
    }

    /// Reports a copy when no thread is at it any more.
    fn settle(&mut self, number: u64) {
        let Some(entry) = self.copies.get(&number) else {
            return;
        };
        if entry.busy == 0 && entry.next >= entry.good {
            self.land(number);
        }
    }

    /// Reports a copy, once; it is remembered until no thread is at it.
    fn land(&mut self, number: u64) {
        let Some(entry) = self.copies.get_mut(&number) else {
            return;
        };
        let (good, short) = (entry.good, entry.short);
        if !mem::replace(&mut entry.landed, true) {
            match entry.flying.copy.way() {
                Way::Down => self.counts.put += good as u64,
                Way::Up => self.counts.got += good as u64,
            }
            self.report(number, good, short);
        }
        if self.copies.get(&number).is_some_and(|one| one.busy == 0) {
            self.copies.remove(&number);
        }
    }

    /// Gives a copy up, whose memory is to be left then and before `left`; or a delete, which is nothing more.
    pub(crate) fn give_up(&mut self, number: u64) -> Option<Arc<Flying>> {
        if self.erasures.give_up(number) {
            self.report(number, 0, Some(Short::GivenUp));
        }
        let entry = self.copies.get(&number).filter(|entry| !entry.landed)?;
        let flying = Arc::clone(&entry.flying);
        self.cut(number, 0, Short::GivenUp);
        Some(flying)
    }

    /// Takes note that the memory of a copy was left: nothing of it is read or written any more.
    pub(crate) fn left(&mut self, number: u64, late: bool) {
        let entry = self.copies.get(&number).filter(|_| late);
        if let Some(way) = entry.map(|entry| entry.flying.copy.way()) {
            self.counts.given_up += 1;
            self.note_late(number, way);
        }
        self.land(number);
    }

    /// Blames the stores that threads of a late copy ask; where none does, as no thread is left, those in
    /// which threads hang.
    fn note_late(&mut self, number: u64, way: Way) {
        let now = self.clock.now();
        let mut asked = Vec::new();
        for busy in self.busy.values_mut() {
            if matches!(busy.task, Task::Block { number: of, .. } if of == number)
                && let Some(ask) = busy.asking.take()
            {
                busy.hung = Some(ask.store);
                asked.push(ask);
            }
        }
        let mut began = false;
        for ask in &asked {
            self.counts.failed += 1;
            "it does not answer in time".clone_into(&mut self.why[ask.store]);
            began |= self.health[ask.store][way as usize].note(*ask, false, Duration::ZERO, now);
        }
        if asked.is_empty() {
            for busy in self.busy.values().filter(|busy| busy.task.way() == way) {
                if let Some(store) = busy.hung {
                    began |= self.health[store][way as usize].note_hung(now);
                }
            }
        }
        if began {
            self.rest_begins(way);
        }
    }

    /// Whether something has not ended.
    pub(crate) fn flies(&self, number: u64) -> bool {
        let flies = self.copies.get(&number).is_some_and(|entry| !entry.landed);
        flies || self.erasures.is_open(number)
    }

    /// All copies that have not ended.
    pub(crate) fn flying(&self) -> Vec<u64> {
        let flying = self.copies.iter().filter(|(_, entry)| !entry.landed);
        flying.map(|(&number, _)| number).collect()
    }

    /// All deletes that have not ended.
    pub(crate) fn deleting(&self) -> Vec<u64> {
        self.erasures.open()
    }

    /// For each store, keys that it has not said to be deleted.
    pub(crate) fn undeleted(&self) -> Vec<usize> {
        self.erasures.undone()
    }

    /// Whether threads are at deletes, or could be.
    pub(crate) fn may_delete(&self) -> bool {
        let now = self.clock.now();
        let mut waits = self.erasures.waits(now);
        waits.any(|task| !task.keys.iter().any(|key| self.puts.contains_key(key)))
            || self
                .busy
                .values()
                .any(|busy| matches!(busy.task, Task::Erase(_)))
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Why a store has refused last.
    pub(crate) fn why(&self) -> &[String] {
        &self.why
    }

    /// What it is at now.
    ///
    /// # Arguments
    /// `out` is how many buffers are not free.
    pub(crate) fn state(&self, out: usize) -> LaneState {
        let now = self.clock.now();
        let gone = |busy: &Busy| match busy.task {
            Task::Block { number, .. } => !self.flies(number),
            Task::Erase(_) => false,
        };
        let hung = self.busy.values().filter(|busy| gone(busy)).count();
        let blocks = |busy: &&Busy| matches!(busy.task, Task::Block { .. });
        let at_work = self.busy.values().filter(blocks).count() - hung;
        LaneState {
            flying: self.flying().len() + self.erasures.open().len(),
            busy: self.busy.len(),
            hung,
            held: out.saturating_sub(at_work),
            stores: self
                .health
                .iter()
                .map(|ways| ways.each_ref().map(|one| one.condition(now)))
                .collect(),
            undeleted: self.erasures.undone(),
        }
    }
}
