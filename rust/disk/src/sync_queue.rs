//! What a lane has to do: copies, the blocks of them that threads are at, and what waits for a sync. All of
//! it is under the lane's one lock, and nothing here touches a file.

use crate::blocks::Family;
use crate::breaker::Breaker;
use crate::flight::{Copy, Direction, Flying, Landed, Memory, Short};
use crate::record::Record;
use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a lane has done since it was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Blocks that were written and are durable.
    pub written: u64,
    /// Blocks that were read and are what was asked for.
    pub read: u64,
    /// Group commits.
    pub syncs: u64,
    /// Blocks and group commits that the system has refused.
    pub failed: u64,
    /// Blocks that were asked for and are not there, torn, or have flipped bits.
    pub doubted: u64,
    /// Copies that the disk did not answer in time.
    pub given_up: u64,
    /// How often it has begun to rest.
    pub rests: u64,
}

/// What a lane is at now.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct LaneState {
    /// Copies that have not ended.
    pub flying: usize,
    /// Slots that threads write, or may still write after their copy was given up.
    pub held: usize,
    /// Of these, slots whose copy was given up: their threads hang.
    pub hung: usize,
    /// Whether copies down, and up, fail at once, until the disk is tried again.
    pub rests: [bool; 2],
    /// Whether copies down, or copies up while none went down, have failed for so long that the disk counts
    /// as dead.
    pub dead: bool,
    /// Whether something was cleared that a crash now would bring back.
    pub clearing: bool,
}

/// A block for a thread.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) number: u64,
    pub(crate) at: usize,
    pub(crate) flying: Arc<Flying>,
    /// Whether it fails at once.
    pub(crate) rests: bool,
}

/// What was written since the last sync.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) copies: Vec<u64>,
    bytes: u64,
    since: Option<Instant>,
}

/// When a group is synced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    Now,
    In(Duration),
    Never,
}

#[derive(Debug)]
pub(crate) struct Queue {
    copies: HashMap<u64, Entry>,
    waiting: [VecDeque<u64>; 2],
    breakers: [Breaker; 2],
    /// Slots that threads write, or whose records are on their way: no other copy begins one of them, or
    /// what comes late would be written over what was acknowledged. INV-27
    held: HashSet<u32>,
    /// Whether a copy was passed over for such a slot.
    blocked: bool,
    /// Blocks that threads write now.
    writing: usize,
    group: Group,
    landed: Vec<Landed>,
    /// Records to be voided, by number; and when that is tried again, where it has failed.
    voids: VecDeque<(u64, Arc<Family>)>,
    retry: Option<Instant>,
    next: u64,
    /// What has a smaller stamp was cleared; and what of that is durable. INV-31
    floor: u64,
    durable_floor: u64,
    counts: Counts,
    pub(crate) closing: bool,
}

#[derive(Debug)]
struct Entry {
    flying: Arc<Flying>,
    /// The next block that a thread takes.
    next: usize,
    /// Blocks that threads work on.
    busy: usize,
    /// Blocks before the first that has failed.
    good: usize,
    short: Option<Short>,
    /// What was written, by its place in the copy.
    records: Vec<(usize, Record)>,
    committing: bool,
    landed: bool,
}

impl Entry {
    fn cut(&mut self, at: usize, short: Short) {
        if at < self.good {
            (self.good, self.short) = (at, Some(short));
        }
    }
}

impl Queue {
    pub(crate) fn new(breaker: Breaker) -> Self {
        Self {
            copies: HashMap::new(),
            waiting: [VecDeque::new(), VecDeque::new()],
            breakers: [breaker; 2],
            held: HashSet::new(),
            blocked: false,
            writing: 0,
            group: Group::default(),
            landed: Vec::new(),
            voids: VecDeque::new(),
            retry: None,
            next: 0,
            floor: 0,
            durable_floor: 0,
            counts: Counts::default(),
            closing: false,
        }
    }

    pub(crate) fn submit(&mut self, copy: Copy, plan: u32, memory: Arc<dyn Memory>) -> u64 {
        let (good, direction) = (copy.blocks(), copy.direction());
        let number = self.next;
        self.next += 1;
        if good == 0 || self.closing {
            let short = self.closing.then_some(Short::GivenUp);
            self.landed.push(Landed {
                number,
                good: 0,
                short,
            });
            return number;
        }
        let entry = Entry {
            flying: Arc::new(Flying::new(copy, plan, memory)),
            next: 0,
            busy: 0,
            good,
            short: None,
            records: Vec::new(),
            committing: false,
            landed: false,
        };
        self.copies.insert(number, entry);
        self.waiting[direction as usize].push_back(number);
        number
    }

    /// Takes records to be voided; returns their number.
    pub(crate) fn submit_void(&mut self, family: Family) -> u64 {
        let number = self.next;
        self.next += 1;
        if self.closing {
            self.land_void(number, false);
        } else {
            self.voids.push_back((number, Arc::new(family)));
        }
        number
    }

    /// The records that are to be voided now.
    pub(crate) fn due_void(&self, now: Instant) -> Option<(u64, Arc<Family>)> {
        let waits = self.retry.is_some_and(|retry| now < retry) && !self.closing;
        self.voids.front().filter(|_| !waits).cloned()
    }

    /// When voiding is tried again; `None` where nothing is to be voided.
    pub(crate) fn next_void(&self, now: Instant) -> Option<Duration> {
        let retry = self.retry.filter(|_| !self.voids.is_empty())?;
        Some(retry.saturating_duration_since(now))
    }

    /// The first records are voided, and that is durable; or it has failed, and is tried again later.
    pub(crate) fn end_void(&mut self, number: u64, done: bool, retry: Instant) {
        self.retry = Some(retry).filter(|_| !done);
        self.counts.failed += u64::from(!done);
        if self.voids.front().is_none_or(|first| first.0 != number) {
            return;
        }
        if done || self.closing {
            self.voids.pop_front();
            self.land_void(number, done);
        }
    }

    fn land_void(&mut self, number: u64, done: bool) {
        let short = Some(Short::GivenUp).filter(|_| !done);
        let good = usize::from(done);
        self.landed.push(Landed {
            number,
            good,
            short,
        });
    }

    /// Gives voiding up, where that is what the number is of.
    pub(crate) fn give_up_void(&mut self, number: u64) -> bool {
        let place = self.voids.iter().position(|one| one.0 == number);
        if let Some(place) = place {
            self.voids.remove(place);
            self.land_void(number, false);
        }
        place.is_some()
    }

    pub(crate) fn take_landed(&mut self) -> Vec<Landed> {
        mem::take(&mut self.landed)
    }

    /// The next block of the oldest copy whose slot nobody is at.
    pub(crate) fn next_block(&mut self, direction: Direction, now: Instant) -> Option<Task> {
        let rests = self.breakers[direction as usize].rests(now);
        let mut place = 0;
        while let Some(&number) = self.waiting[direction as usize].get(place) {
            let entry = self.copies.get_mut(&number);
            // Behind a block that has failed none is good.
            let Some(entry) = entry.filter(|entry| entry.next < entry.good) else {
                self.waiting[direction as usize].remove(place);
                continue;
            };
            let at = entry.next;
            if let Copy::Down(blocks) = &entry.flying.copy {
                if !self.held.insert(blocks[at].slot) {
                    self.blocked = true;
                    place += 1;
                    continue;
                }
                self.writing += 1;
            }
            entry.next += 1;
            entry.busy += 1;
            let flying = Arc::clone(&entry.flying);
            // Nothing is left of it for others: a lone write does not wait for its window.
            if entry.next >= entry.good {
                self.waiting[direction as usize].remove(place);
            }
            return Some(Task {
                number,
                at,
                flying,
                rests,
            });
        }
        None
    }

    /// Whether a copy down was passed over, for a slot that may be free by now.
    pub(crate) fn take_blocked(&mut self) -> bool {
        mem::take(&mut self.blocked)
    }

    /// Takes what has become of a block; it was written where there is a record. Returns whether it is time
    /// to look when the group is synced.
    pub(crate) fn end_block(
        &mut self,
        task: &Task,
        done: Result<Option<Record>, Short>,
        stride: usize,
        now: Instant,
    ) -> bool {
        let (direction, number, at) = (task.flying.copy.direction(), task.number, task.at);
        let failed = done == Err(Short::Failed);
        // Whether it has taken what was written, only the sync says.
        if !task.rests && (failed || direction == Direction::Up) {
            self.note(direction, !failed, now);
        }
        self.counts.doubted += u64::from(matches!(done, Err(Short::Doubt(_))));
        let fresh = self.group.since.is_none();
        let Some(entry) = self.copies.get_mut(&number) else {
            return false;
        };
        entry.busy -= 1;
        if let Copy::Down(blocks) = &task.flying.copy {
            self.writing -= 1;
            if done.is_err() {
                self.held.remove(&blocks[at].slot);
            }
        }
        match done {
            Ok(record) => entry.records.extend(record.map(|record| (at, record))),
            Err(short) => entry.cut(at, short),
        }
        let ended = entry.busy == 0 && (entry.next >= entry.good || entry.landed);
        if ended && direction == Direction::Down && entry.good > 0 && !entry.landed {
            entry.committing = true;
            self.group.bytes += entry.good as u64 * stride as u64;
            self.group.copies.push(number);
            self.group.since.get_or_insert(now);
        } else if ended {
            self.land(number);
        }
        direction == Direction::Down && self.group.since.is_some() && (fresh || self.is_alone())
    }

    /// Whether nothing is written, or waits to be.
    fn is_alone(&self) -> bool {
        self.writing == 0 && self.waiting[Direction::Down as usize].is_empty()
    }

    /// Whether as much was written as is synced at once.
    pub(crate) fn is_full(&self, most: u64) -> bool {
        self.group.bytes >= most
    }

    /// When what was written is to be synced.
    pub(crate) fn due(&self, window: Duration, most: u64, now: Instant) -> Due {
        let Some(since) = self.group.since else {
            return Due::Never;
        };
        let late = now >= since + window;
        if self.is_alone() || late || self.closing || self.is_full(most) {
            return Due::Now;
        }
        Due::In((since + window).saturating_duration_since(now))
    }

    /// What is to be synced now, and its records.
    pub(crate) fn take_group(&mut self) -> (Group, Vec<Record>) {
        let group = mem::take(&mut self.group);
        let mut records = Vec::new();
        for number in &group.copies {
            if let Some(entry) = self.copies.get(number) {
                let good = entry.records.iter().filter(|(at, _)| *at < entry.good);
                records.extend(good.map(|(_, record)| record.clone()));
            }
        }
        (group, records)
    }

    pub(crate) fn end_group(&mut self, group: &Group, done: bool, now: Instant) {
        self.note(Direction::Down, done, now);
        self.counts.syncs += u64::from(done);
        for &number in &group.copies {
            if let Some(entry) = self.copies.get_mut(&number) {
                entry.committing = false;
                if !done {
                    entry.cut(0, Short::Failed);
                }
                self.land(number);
            }
        }
    }

    /// Gives a copy up; returns what it flies with, whose memory is to be left before it lands.
    pub(crate) fn give_up(&mut self, number: u64) -> Option<Arc<Flying>> {
        let entry = self.copies.get_mut(&number).filter(|entry| !entry.landed)?;
        entry.cut(0, Short::GivenUp);
        Some(Arc::clone(&entry.flying))
    }

    fn hung(&self) -> usize {
        let gone = self.copies.values().filter(|one| one.landed);
        let down = gone.filter(|one| one.flying.copy.direction() == Direction::Down);
        down.map(|one| one.busy).sum()
    }

    /// Whether a copy has not landed.
    pub(crate) fn flies(&self, number: u64) -> bool {
        let voids = self.voids.iter().any(|one| one.0 == number);
        voids || self.copies.get(&number).is_some_and(|entry| !entry.landed)
    }

    /// All that have not landed.
    pub(crate) fn flying(&self) -> Vec<u64> {
        let flying = self.copies.iter().filter(|(_, entry)| !entry.landed);
        flying.map(|(&number, _)| number).collect()
    }

    /// Reports a copy, once; its slots are held until no thread is at them.
    pub(crate) fn land(&mut self, number: u64) {
        let Some(entry) = self.copies.get_mut(&number) else {
            return;
        };
        if !mem::replace(&mut entry.landed, true) {
            let blocks = match entry.flying.copy.direction() {
                Direction::Down => &mut self.counts.written,
                Direction::Up => &mut self.counts.read,
            };
            *blocks += entry.good as u64;
            self.landed.push(Landed {
                number,
                good: entry.good,
                short: entry.short,
            });
        }
        if entry.busy == 0 && !entry.committing {
            for (_, record) in &entry.records {
                self.held.remove(&record.slot);
            }
            self.copies.remove(&number);
        }
    }

    /// Takes note that there was no answer in time.
    pub(crate) fn note_late(&mut self, direction: Direction, now: Instant) {
        self.counts.given_up += 1;
        self.tell(direction, false, now);
    }

    fn note(&mut self, direction: Direction, good: bool, now: Instant) {
        self.counts.failed += u64::from(!good);
        self.tell(direction, good, now);
    }

    fn tell(&mut self, direction: Direction, good: bool, now: Instant) {
        let breaker = &mut self.breakers[direction as usize];
        let before = breaker.rests(now);
        breaker.note(good, now);
        self.counts.rests += u64::from(!before && breaker.rests(now));
        // One bad sector that is read again and again is no dead disk; one that takes no writes is of no use.
        if good && direction == Direction::Down {
            self.breakers[Direction::Up as usize].hope();
        }
    }

    /// Clears what has a smaller stamp.
    pub(crate) fn clear(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
    }

    /// The floor that is not durable yet.
    pub(crate) fn pending_floor(&self) -> Option<u64> {
        (self.durable_floor < self.floor).then_some(self.floor)
    }

    pub(crate) fn floor_is_durable(&mut self, floor: u64) {
        self.durable_floor = self.durable_floor.max(floor);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn state(&self, now: Instant) -> LaneState {
        LaneState {
            flying: self.copies.values().filter(|one| !one.landed).count() + self.voids.len(),
            held: self.held.len(),
            hung: self.hung(),
            rests: self.breakers.map(|breaker| breaker.rests(now)),
            dead: self.breakers.iter().any(Breaker::is_dead),
            clearing: self.pending_floor().is_some(),
        }
    }
}

#[cfg(test)]
mod tests;
