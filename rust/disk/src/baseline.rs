//! The floor: how fast a disk writes and reads the same blocks with nothing else, that is without records,
//! sums, copies and acknowledgements. What a lane reaches is told as a part of it.

use crate::blocks::Geometry;
use crate::error::{Error, Result};
use crate::files::{Files, Way};
use crate::medium::Medium;
use crate::staging::{Buffer, Staging};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A file that threads write and read, one block at a time, in an order without order.
#[derive(Debug)]
pub struct Baseline {
    file: Files,
    ring: Staging,
    threads: usize,
    stride: usize,
    /// Where blocks begin in the file.
    places: Vec<u64>,
}

impl Baseline {
    /// Opens a file, or makes it. It has no more than the blocks.
    ///
    /// # Errors
    /// As [`Files::open`].
    pub fn open(path: &Path, geometry: Geometry, threads: usize) -> Result<Self> {
        let threads = threads.clamp(1, 64);
        let file = Files::open(path, geometry.payload_bytes(), Way::Direct)?;
        let ring = Staging::new(threads, geometry.stride());
        // Not zeros, which a disk may not write at all.
        let mut numbers = Numbers(u64::from(geometry.slots()));
        let mut all: Vec<Buffer> = (0..threads).map(|_| ring.take()).collect();
        for byte in all.iter_mut().flat_map(|one| one.iter_mut()) {
            *byte = numbers.next() as u8;
        }
        drop(all);
        let stride = geometry.stride();
        let mut places: Vec<u64> = (0..u64::from(geometry.slots()))
            .map(|slot| slot * stride as u64)
            .collect();
        for last in (1..places.len()).rev() {
            places.swap(last, (numbers.next() % (last as u64 + 1)) as usize);
        }
        Ok(Self {
            file,
            ring,
            threads,
            stride,
            places,
        })
    }

    /// How it is written and read.
    pub fn way(&self) -> Way {
        self.file.way()
    }

    /// Writes each block once, and makes all of it durable at the end.
    ///
    /// # Errors
    /// `System` with what the system says.
    pub fn write(&self) -> Result<()> {
        let done = self
            .each(|staged, at| self.file.write(at, staged))
            .and_then(|()| self.file.sync());
        done.map_err(Error::system("the floor's file", "write"))
    }

    /// Reads each block once.
    ///
    /// # Errors
    /// `System` with what the system says.
    pub fn read(&self) -> Result<()> {
        let done = self.each(|staged, at| self.file.read(at, staged));
        done.map_err(Error::system("the floor's file", "read"))
    }

    fn each(&self, act: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(Ok(()));
        let work = || {
            let mut staged = self.ring.take();
            debug_assert_eq!(staged.len(), self.stride);
            while let Some(&at) = self.places.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = act(&mut staged, at) {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
                    next.store(self.places.len(), Ordering::Relaxed);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(work);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Numbers without order: `SplitMix64`.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}
