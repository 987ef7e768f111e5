//! Jobs: what a thread asks of a store, and its word on what came of it.

use crate::flight::{Copy, Flying, Short};
use crate::health::Way;
use crate::queue::Task;
use crate::shared::Shared;
use crate::value::valued;
use blockyard_disk::{Buffer, Key, Owner};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a thread is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Put the value in the buffer; a partial block has a number instead of a key, and lives for a while only.
    Put(Owner),
    /// Get the value of a key.
    Get(Key),
    /// Delete the values of some keys in one store.
    Delete(usize, Arc<[Key]>),
}

/// A staging buffer in a client's hands. It is free again when this is dropped.
#[derive(Debug)]
pub struct Room {
    buffer: Option<Buffer>,
    way: Way,
    lane: Arc<Shared>,
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.buffer = None;
        // Who has just looked in vain, and is about to wait, has the lock.
        drop(self.lane.queue());
        self.lane.wake(self.way);
    }
}

/// A job that a thread has. It ends with `done`, `fail`, `missing` or a `landed` that is true; dropped before,
/// it has failed.
#[derive(Debug)]
pub struct Job {
    lane: Arc<Shared>,
    number: u64,
    task: Task,
    /// The value of a put, or room for that of a get: it is a client's until it is dropped, which may be later
    /// than the end of the job.
    pub room: Option<Room>,
    /// Where its buffer begins in memory.
    place: usize,
    doubted: AtomicBool,
    over: AtomicBool,
}

impl Job {
    pub(crate) fn new(lane: Arc<Shared>, number: u64, task: Task, buffer: Option<Buffer>) -> Self {
        let room = buffer.map(|buffer| Room {
            buffer: Some(buffer),
            way: task.way(),
            lane: Arc::clone(&lane),
        });
        Self {
            lane,
            number,
            task,
            place: room.as_ref().map_or(0, |room| room.as_ptr().addr()),
            room,
            doubted: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }
    }

    /// Of a put: whose block it is, which of its copy, and that.
    pub(crate) fn written(&self) -> Option<(Owner, usize, Arc<Flying>)> {
        match &self.task {
            Task::Block { at, flying, .. } => match &flying.copy {
                Copy::Down(blocks) => Some((blocks[*at], *at, Arc::clone(flying))),
                Copy::Up(_) => None,
            },
            Task::Erase(_) => None,
        }
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        match &self.task {
            Task::Erase(task) => Kind::Delete(task.store, Arc::clone(&task.keys)),
            Task::Block { at, flying, .. } => match &flying.copy {
                Copy::Down(blocks) => Kind::Put(blocks[*at]),
                Copy::Up(keys) => Kind::Get(keys[*at]),
            },
        }
    }

    /// Bytes of a value.
    pub fn value_bytes(&self) -> usize {
        self.lane.shape.value_bytes()
    }

    /// Whether its buffer begins at an address.
    pub fn has_room(&self, address: usize) -> bool {
        address != 0 && address == self.place
    }

    /// Begins a call of a store; false where it is not to be asked now. `answered` or `refused` ends it.
    pub fn ask(&self, store: usize) -> bool {
        !self.over.load(Ordering::Relaxed) && self.lane.queue().ask(self.number, store)
    }

    /// The store has answered, whatever the answer is.
    pub fn answered(&self, took: Duration) {
        self.note(None, took);
    }

    /// The store has refused, or did not answer.
    pub fn refused(&self, why: &str, took: Duration) {
        self.note(Some(why), took);
    }

    fn note(&self, refused: Option<&str>, took: Duration) {
        let stirs = self.lane.queue().note(self.number, refused, took);
        if stirs {
            self.lane.wake(self.task.way());
            // Where a rest begins, copies end that no thread has.
            self.lane.landed.notify_all();
        }
    }

    /// A store has acknowledged what was put, or deleted what was to be deleted.
    pub fn done(&self) {
        self.end(Ok(()));
    }

    /// No store was to be had.
    pub fn fail(&self) {
        self.end(Err(self.doubt_or(Short::Failed)));
    }

    /// No store has it.
    pub fn missing(&self) {
        self.end(Err(self.doubt_or(Short::Missing)));
    }

    pub(crate) fn gave_up(&self) {
        self.end(Err(Short::GivenUp));
    }

    /// Takes what a store has given. Where that is what was asked for, its bytes are put where the block goes, if
    /// nobody has given it up, and the job has ended. Else it goes on with the next store. INV-35a
    pub fn landed(&self, value: &[u8]) -> bool {
        let Task::Block { at, flying, .. } = &self.task else {
            return false;
        };
        let Copy::Up(keys) = &flying.copy else {
            return false;
        };
        if self.over.load(Ordering::Relaxed) {
            return false;
        }
        let Some(payload) = valued(&self.lane.shape, &keys[*at], value) else {
            self.doubted.store(true, Ordering::Relaxed);
            self.lane.queue().count_corrupt();
            return false;
        };
        let put = flying.memory.touch(|memory| memory.scatter(*at, payload));
        self.end(put.ok_or(Short::GivenUp));
        true
    }

    fn doubt_or(&self, other: Short) -> Short {
        if self.doubted.load(Ordering::Relaxed) {
            Short::Corrupt
        } else {
            other
        }
    }

    fn end(&self, done: Result<(), Short>) {
        if !self.over.swap(true, Ordering::Relaxed) {
            self.lane.end_job(self.number, done);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.fail();
    }
}
