//! Staging: aligned memory that bytes pass through on their way, so that a sum is of the very bytes that
//! were written, and a hung read holds this and nothing of anybody else's.

use crate::files::ALIGNED;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A few buffers of one size.
#[derive(Clone, Debug)]
pub struct Staging(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    free: Mutex<Vec<Aligned>>,
    returned: Condvar,
}

/// Bytes whose first one is at a multiple of [`ALIGNED`].
#[derive(Debug)]
struct Aligned {
    memory: Vec<u8>,
    first: usize,
    length: usize,
}

/// A buffer, which goes back when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    ring: Staging,
    aligned: Option<Aligned>,
}

impl Staging {
    /// Makes buffers of so many bytes, zero at first.
    pub fn new(buffers: usize, bytes: usize) -> Self {
        let made = || {
            let memory = vec![0; bytes + ALIGNED];
            let first = memory.as_ptr().addr().next_multiple_of(ALIGNED) - memory.as_ptr().addr();
            Aligned {
                memory,
                first,
                length: bytes,
            }
        };
        Self(Arc::new(Shared {
            free: Mutex::new((0..buffers).map(|_| made()).collect()),
            returned: Condvar::new(),
        }))
    }

    /// A buffer, if one is free now.
    pub fn try_take(&self) -> Option<Buffer> {
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        let aligned = Some(free.pop()?);
        let ring = self.clone();
        Some(Buffer { ring, aligned })
    }

    /// How many buffers are free.
    pub fn free(&self) -> usize {
        let free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.len()
    }

    /// Waits for a buffer; for a thread that has nothing else to do.
    pub fn take(&self) -> Buffer {
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(aligned) = free.pop() {
                return Buffer {
                    ring: self.clone(),
                    aligned: Some(aligned),
                };
            }
            free = self
                .0
                .returned
                .wait(free)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let shared = &self.ring.0;
        let mut free = shared.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.aligned.take());
        shared.returned.notify_one();
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let aligned = self.aligned.as_ref();
        aligned.map_or(&[], |one| &one.memory[one.first..one.first + one.length])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let aligned = self.aligned.as_mut();
        aligned.map_or(&mut [], |one| {
            &mut one.memory[one.first..one.first + one.length]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_buffer_is_aligned_and_goes_back() {
        let ring = Staging::new(2, 5 * ALIGNED);
        let (mut one, two) = (ring.take(), ring.take());
        assert_eq!((one.as_ptr().addr() % ALIGNED, one.len()), (0, 5 * ALIGNED));
        assert_ne!(one.as_ptr(), two.as_ptr());
        one[5 * ALIGNED - 1] = 9;
        let waiting = thread::spawn({
            let ring = ring.clone();
            move || ring.take().len()
        });
        drop(one);
        assert_eq!(waiting.join().expect("it ends"), 5 * ALIGNED);
    }
}
