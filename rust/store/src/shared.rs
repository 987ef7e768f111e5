//! What a lane and its jobs share: the queue under its one lock, the buffers, and who waits.

use crate::flight::Short;
use crate::health::Way;
use crate::options::Options;
use crate::queue::Queue;
use crate::value::Shape;
use blockyard_disk::{Buffer, Staging};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) shape: Shape,
    queue: Mutex<Queue>,
    /// Buffers of each way, and how many there are.
    staging: [Staging; 2],
    buffers: [usize; 2],
    /// Something has come for a thread of either way.
    work: [Condvar; 2],
    /// Threads that wait for that.
    idle: [AtomicUsize; 2],
    /// A copy or a delete may have ended.
    pub(crate) landed: Condvar,
}

impl Shared {
    pub(crate) fn new(shape: Shape, options: &Options) -> Self {
        let up = (options.buffers / 2).max(1);
        let buffers = [options.buffers.saturating_sub(up).max(1), up];
        let bytes = shape.value_bytes();
        Self {
            shape,
            queue: Mutex::new(Queue::new(options)),
            staging: buffers.map(|count| Staging::new(count, bytes)),
            buffers,
            work: [Condvar::new(), Condvar::new()],
            idle: [AtomicUsize::new(0), AtomicUsize::new(0)],
            landed: Condvar::new(),
        }
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has become of a job.
    pub(crate) fn end_job(&self, job: u64, done: Result<(), Short>) {
        let (stirs, landed) = self.queue().end_job(job, done);
        if stirs {
            self.wake(Way::Down);
        }
        if landed {
            self.landed.notify_all();
        }
    }

    /// Wakes threads for which there may be something now.
    pub(crate) fn wake(&self, way: Way) {
        // Who is about to wait has the lock, and looks before.
        if self.idle[way as usize].load(Ordering::SeqCst) > 0 {
            self.work[way as usize].notify_all();
        }
    }

    pub(crate) fn wake_all(&self) {
        self.wake(Way::Down);
        self.wake(Way::Up);
        self.landed.notify_all();
    }

    /// A buffer, if one of that way is free.
    pub(crate) fn try_buffer(&self, way: Way) -> Option<Buffer> {
        self.staging[way as usize].try_take()
    }

    /// Waits for something to do, for so long at most.
    pub(crate) fn await_work<'queue>(
        &self,
        queue: MutexGuard<'queue, Queue>,
        way: Way,
        left: Duration,
    ) -> MutexGuard<'queue, Queue> {
        self.idle[way as usize].fetch_add(1, Ordering::SeqCst);
        let waited = self.work[way as usize].wait_timeout(queue, left);
        let queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        self.idle[way as usize].fetch_sub(1, Ordering::SeqCst);
        queue
    }

    pub(crate) fn buffers(&self) -> usize {
        self.buffers.iter().sum()
    }

    /// Buffers that are not free.
    pub(crate) fn out(&self) -> usize {
        let free: usize = self.staging.iter().map(Staging::free).sum();
        self.buffers() - free
    }
}
