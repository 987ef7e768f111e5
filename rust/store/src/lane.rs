//! A lane: the copies between the memory of a rank and its stores. Nobody waits here but the threads that ask
//! the stores, and those are not its own: each takes a job, and says what came of it.

use crate::flight::{Copy, Landed};
use crate::health::Way;
use crate::job::Job;
use crate::options::Options;
use crate::queue::{Counts, LaneState, Task};
use crate::shared::Shared;
use crate::value::{Shape, seal};
use blockyard_disk::{Key, Memory, RECORD};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A lane between the memory of one rank and its stores. Any thread may call it.
#[derive(Debug)]
pub struct Lane(Arc<Shared>);

impl Lane {
    /// Makes a lane.
    pub fn new(shape: Shape, options: &Options) -> Self {
        Self(Arc::new(Shared::new(shape, options)))
    }

    /// What its values have in common.
    pub fn shape(&self) -> Shape {
        self.0.shape
    }

    /// Takes what time it is, as `poll` does.
    pub fn turn(&self, now: f64) {
        self.0.queue().turn(now);
    }

    /// Whether a copy that way would fail at once.
    pub fn is_shut(&self, way: Way) -> bool {
        self.0.queue().is_shut(way)
    }

    /// Takes a copy; returns its number. Never waits. It has failed at once where all stores rest, and a put
    /// from its first block on whose key is being deleted.
    pub fn submit(&self, copy: Copy, memory: Arc<dyn Memory>) -> u64 {
        let way = copy.way();
        let number = self.0.queue().submit(copy, memory);
        self.0.wake(way);
        number
    }

    /// Takes keys that every store is to delete; returns a number as of a copy, which ends when each has
    /// answered. A failure is tried again. Puts of the lane that may still write one of the keys end first, so
    /// that none brings back what was deleted; later ones fail until it has ended. Never waits. INV-42
    pub fn delete(&self, keys: &[Key]) -> u64 {
        let number = self.0.queue().submit_delete(keys);
        self.0.wake(Way::Down);
        number
    }

    /// Waits for a job, for so long at most, and takes what time it is, as `poll`. What was given up is not handed
    /// out any more, and a put has the bytes that its memory had at this moment.
    pub fn take(&self, way: Way, patience: Duration, now: f64) -> Option<Job> {
        let until = Instant::now() + patience;
        let mut queue = self.0.queue();
        queue.turn(now);
        loop {
            let buffer = self.0.try_buffer(way);
            if let Some((number, task)) = queue.next_job(way, buffer.is_some()) {
                drop(queue);
                let buffer = buffer.filter(|_| matches!(task, Task::Block { .. }));
                let mut job = Job::new(Arc::clone(&self.0), number, task, buffer);
                if self.gather(&mut job) {
                    return Some(job);
                }
                job.gave_up();
                // Its buffer wakes those who wait for one, and takes the lock for that.
                drop(job);
                queue = self.0.queue();
                continue;
            }
            drop(buffer);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || (queue.is_closing() && queue.deleting().is_empty()) {
                return None;
            }
            queue = self.0.await_work(queue, way, left);
        }
    }

    /// Fills the buffer of a put; returns whether its copy was not given up.
    fn gather(&self, job: &mut Job) -> bool {
        let Some((owner, at, flying)) = job.written() else {
            return true;
        };
        let Some(value) = job.room.as_deref_mut() else {
            return false;
        };
        let value = &mut value[..self.0.shape.value_bytes()];
        let gathered = flying
            .memory
            .touch(|memory| memory.gather(at, &mut value[RECORD..]));
        seal(&self.0.shape, owner, value);
        gathered.is_some()
    }

    /// Takes what time it is, in seconds of any clock, and returns what has ended since the last call, each copy
    /// once. Never waits.
    pub fn poll(&self, now: f64) -> Vec<Landed> {
        let mut queue = self.0.queue();
        let has_work = queue.turn(now);
        let landed = queue.take_landed();
        drop(queue);
        if has_work {
            self.0.wake(Way::Down);
            self.0.wake(Way::Up);
        }
        landed
    }

    /// Gives a copy up: when it returns, no byte of its memory is read or written any more. It waits for
    /// threads that touch that memory, and for none that is in a call of a client: such a one goes on with its
    /// buffer alone, and has that until it ends. INV-32
    ///
    /// # Arguments
    /// `late` says that the stores did not answer in time, which counts as a failure of those that are asked.
    pub fn give_up(&self, number: u64, late: bool) {
        let flying = self.0.queue().give_up(number);
        if let Some(flying) = flying {
            flying.memory.leave();
            self.0.queue().left(number, late);
        }
        self.0.wake_all();
    }

    /// Waits until a copy or a delete has ended, for so long at most; returns whether it has.
    pub fn wait(&self, number: u64, patience: Duration) -> bool {
        let queue = self.0.queue();
        let waited = self
            .0
            .landed
            .wait_timeout_while(queue, patience, |queue| queue.flies(number));
        !waited
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .flies(number)
    }

    /// What it has done since it was made.
    pub fn counts(&self) -> Counts {
        self.0.queue().counts()
    }

    /// What it is at now.
    pub fn state(&self) -> LaneState {
        let queue = self.0.queue();
        queue.state(self.0.out())
    }

    /// How many buffers it has.
    pub fn buffers(&self) -> usize {
        self.0.buffers()
    }

    /// Why each store has refused last; empty where it never has.
    pub fn why(&self) -> Vec<String> {
        self.0.queue().why().to_vec()
    }

    /// Whether it takes nothing more.
    pub fn is_closed(&self) -> bool {
        self.0.queue().is_closing()
    }

    /// Fails all copies that come from now on: what they would write is not what its identity says.
    pub fn stop(&self) {
        self.0.queue().stop();
    }

    /// Ends all copies and takes no more. Deletes are tried once more; what stores have not answered in time is
    /// given up. Threads find no job from then on; one that hangs in a client has its buffer still.
    ///
    /// # Arguments
    /// `patience` is how long it waits for deletes.
    ///
    /// # Returns
    /// For each store, how many keys it has not deleted.
    pub fn close(&self, patience: Duration) -> Vec<usize> {
        let flying = {
            let mut queue = self.0.queue();
            queue.close();
            queue.flying()
        };
        for number in flying {
            self.give_up(number, false);
        }
        self.0.wake_all();
        let queue = self.0.queue();
        let waited = self
            .0
            .landed
            .wait_timeout_while(queue, patience, |queue| queue.may_delete());
        let queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        let (left, undeleted) = (queue.deleting(), queue.undeleted());
        drop(queue);
        for number in left {
            self.give_up(number, false);
        }
        undeleted
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}
