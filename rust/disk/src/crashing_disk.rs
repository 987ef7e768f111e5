//! A file in memory that a power cut damages: of what was written and not synced, each sector is kept or lost by itself.

use crate::medium::Medium;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are written whole or not at all.
const SECTOR: usize = 512;

/// What a sector had before each of its writes since the last sync, the oldest first.
type Lost = BTreeMap<usize, Vec<Vec<u8>>>;

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    lost: Lost,
    /// Errors to come: calls of any kind until one fails.
    failing: Option<u32>,
}

/// A file in memory, for tests. Clones are the same file.
#[derive(Clone, Debug)]
pub struct CrashingDisk(Arc<Mutex<State>>);

impl CrashingDisk {
    /// Makes a file of zeros.
    pub fn new(bytes: usize) -> Self {
        Self::holding(vec![0; bytes])
    }

    /// Makes a file with these bytes, all of them durable.
    pub fn holding(bytes: Vec<u8>) -> Self {
        let (lost, failing) = (Lost::new(), None);
        Self(Arc::new(Mutex::new(State {
            bytes,
            lost,
            failing,
        })))
    }

    /// Returns what a power cut leaves.
    ///
    /// # Arguments
    /// `choose` gets the number of versions that a sector may have, and picks one: 0 is what was synced,
    /// the last one what was written last.
    pub fn cut(&self, mut choose: impl FnMut(usize) -> usize) -> Vec<u8> {
        let state = self.state();
        let mut bytes = state.bytes.clone();
        for (&sector, versions) in &state.lost {
            if let Some(version) = versions.get(choose(versions.len() + 1)) {
                let from = sector * SECTOR;
                bytes[from..from + version.len()].copy_from_slice(version);
            }
        }
        bytes
    }

    /// Flips a bit, as memory and disks do.
    pub fn flip(&self, bit: usize) {
        self.state().bytes[bit / 8] ^= 1 << (bit % 8);
    }

    /// Lets so many calls pass, and the one after them fail.
    pub fn fail_after(&self, calls: u32) {
        self.state().failing = Some(calls);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        match state.failing {
            Some(0) => {
                state.failing = None;
                Err(io::Error::other("on purpose"))
            }
            left => {
                state.failing = left.map(|calls| calls - 1);
                Ok(state)
            }
        }
    }
}

fn span(at: u64, length: usize, all: usize) -> io::Result<std::ops::Range<usize>> {
    let from = usize::try_from(at).map_err(io::Error::other)?;
    let to = from.checked_add(length).filter(|&to| to <= all);
    to.map(|to| from..to)
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

impl Medium for CrashingDisk {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let state = self.call()?;
        into.copy_from_slice(&state.bytes[span(at, into.len(), state.bytes.len())?]);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let mut state = self.call()?;
        let span = span(at, from.len(), state.bytes.len())?;
        let state = &mut *state;
        for sector in span.start / SECTOR..span.end.div_ceil(SECTOR) {
            let end = state.bytes.len().min((sector + 1) * SECTOR);
            let old = state.bytes[sector * SECTOR..end].to_vec();
            state.lost.entry(sector).or_default().push(old);
        }
        state.bytes[span].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.call()?.lost.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_keeps_or_loses_each_sector_that_was_not_synced() {
        let crashing_disk = CrashingDisk::new(4 * SECTOR);
        crashing_disk
            .write(0, &[1; 2 * SECTOR])
            .expect("there is room");
        crashing_disk.sync().expect("it does not fail");
        crashing_disk
            .write(SECTOR as u64, &[2; 2 * SECTOR])
            .expect("room");
        crashing_disk
            .write(SECTOR as u64 + 10, &[3; 5])
            .expect("room");
        let kept = crashing_disk.cut(|versions| versions - 1);
        assert_eq!(kept[SECTOR + 10..SECTOR + 15], [3; 5]);
        let lost = crashing_disk.cut(|_| 0);
        assert_eq!(lost[..2 * SECTOR], [1; 2 * SECTOR]);
        assert_eq!(lost[2 * SECTOR..], [0; 2 * SECTOR]);
        let between = crashing_disk.cut(|_| 1);
        assert_eq!(between[SECTOR..3 * SECTOR], [2; 2 * SECTOR]);
        assert_eq!(
            crashing_disk.cut(|versions| versions - 1),
            kept,
            "it is as it was"
        );
    }

    #[test]
    fn beyond_its_end_there_is_nothing() {
        let crashing_disk = CrashingDisk::new(SECTOR);
        assert!(crashing_disk.read(SECTOR as u64, &mut [0]).is_err());
        assert!(crashing_disk.write(SECTOR as u64 - 1, &[0; 2]).is_err());
        assert!(crashing_disk.write(u64::MAX, &[0]).is_err());
        crashing_disk.fail_after(1);
        assert!(crashing_disk.sync().is_ok());
        assert!(crashing_disk.sync().is_err());
        assert!(crashing_disk.sync().is_ok());
    }
}
