//! A small disk in memory, and what it was given.

use blockyard_disk::{Asked, Blocks, CrashingDisk, Doubt, Geometry, Key, Medium};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) const SLOTS: u32 = 8;
/// Three sectors, and not the whole of a fourth.
pub(crate) const BYTES: u32 = 1700;
pub(crate) const IDENTITY: u64 = 77;

/// A stream of numbers by seed: `SplitMix64`.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub(crate) fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap()
    }
}

pub(crate) fn geometry() -> Geometry {
    Geometry::new(SLOTS, BYTES).unwrap()
}

pub(crate) fn key(number: u64) -> Key {
    let mut key = [1; 32];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

/// The bytes of a block: each sector says whose it is.
pub(crate) fn payload(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; geometry().stride()];
    for (at, byte) in bytes.iter_mut().take(BYTES as usize).enumerate() {
        *byte = (number.wrapping_mul(31).wrapping_add(at as u64 / 64) % 251) as u8;
    }
    bytes
}

pub(crate) fn over(payloads: impl Medium + 'static, table: impl Medium + 'static) -> Blocks {
    Blocks::new(Arc::new(payloads), Arc::new(table), geometry(), IDENTITY, 0)
}

pub(crate) fn crashing_disk() -> (CrashingDisk, CrashingDisk) {
    let geometry = geometry();
    let bytes = [geometry.payload_bytes(), geometry.table_bytes()];
    let [payloads, table] = bytes.map(|bytes| CrashingDisk::new(usize::try_from(bytes).unwrap()));
    (payloads, table)
}

/// A file that is synced by hand alone.
#[derive(Debug)]
pub(crate) struct ByHand(pub(crate) CrashingDisk);

impl Medium for ByHand {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read(at, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.0.write(at, from)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// What was written to each slot, and what of it was acknowledged and not begun to be overwritten.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) of: HashMap<u32, Vec<u64>>,
    pub(crate) safe: HashMap<u32, u64>,
}

impl Written {
    /// Checks what a disk that was found may return; returns how many blocks it has, and how many torn.
    pub(crate) fn check(&self, found: &Blocks, what: &str) -> (usize, usize) {
        let (mut served, mut torn) = (0, 0);
        let mut staged = vec![0; geometry().stride()];
        for slot in 0..SLOTS {
            for &number in self.of.get(&slot).into_iter().flatten() {
                let asked = Asked {
                    slot,
                    key: key(number),
                };
                match found.read(&asked, &mut staged).unwrap() {
                    Ok(_) => {
                        assert_eq!(
                            staged[..BYTES as usize],
                            payload(number)[..BYTES as usize],
                            "{what}: slot {slot}"
                        );
                        served += 1;
                    }
                    Err(doubt) => {
                        torn += usize::from(doubt == Doubt::Sum);
                        let safe = self.safe.get(&slot) == Some(&number);
                        assert!(
                            !safe,
                            "{what}: {number} was acknowledged in slot {slot}: {doubt:?}"
                        );
                    }
                }
            }
        }
        let restored = found.restore().unwrap();
        for record in restored {
            let known = &self.of[&record.slot];
            let number = u64::from_le_bytes(record.owner.key()[..8].try_into().unwrap());
            assert!(
                known.contains(&number),
                "{what}: nobody has written {record:?}"
            );
        }
        (served, torn)
    }
}

pub(crate) fn cut(
    chance: &mut Chance,
    payloads: &CrashingDisk,
    table: &CrashingDisk,
    written: &Written,
    sums: (usize, usize),
) -> (usize, usize) {
    let [payloads, table] = [payloads, table]
        .map(|crashing_disk| CrashingDisk::holding(crashing_disk.cut(|most| chance.below(most))));
    let (served, torn) = written.check(&over(payloads, table), "after a power cut");
    (sums.0 + served, sums.1 + torn)
}

/// A folder of a test, which goes with it.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("blockyard-disk-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
