//! The eviction order at a clean close, which the next owner of a folder begins with. Without one, as after
//! a kill, stamps stand in for it.
//!
//! ```text
//!   0  magic, version   4      8  slots          4
//!   4  run of the owner 4     12  slots, the next to be evicted first: 4 each, and XXH3-64 of all before
//! ```

use crate::error::{Error, Result};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use twox_hash::XxHash3_64;

pub(crate) const MAGIC: [u8; 4] = *b"BYO1";
pub(crate) const NAME: &str = "order";
/// No link is followed, and a pipe in its place waits for nobody.
const SAFE: OFlags = OFlags::CLOEXEC
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK);

/// Notes an order in a folder.
pub(crate) fn write(folder: &Path, run: u32, slots: &[u32]) -> Result<()> {
    let mut bytes = Vec::with_capacity(20 + 4 * slots.len());
    bytes.extend(MAGIC);
    bytes.extend(run.to_le_bytes());
    bytes.extend((slots.len() as u32).to_le_bytes());
    bytes.extend(slots.iter().flat_map(|slot| slot.to_le_bytes()));
    bytes.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
    let path = folder.join(NAME);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | SAFE;
    let opened = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(opened.map_err(|error| Error::system(&path, "open")(error.into()))?);
    file.write_all(&bytes)
        .and_then(|()| file.sync_all())
        .map_err(Error::system(&path, "write"))
}

/// Takes the order that the owner of a run has noted: it is gone then. None where that owner did not come so
/// far, or this version does not know it.
pub(crate) fn take(folder: &Path, run: u32) -> Option<Vec<u32>> {
    let path = folder.join(NAME);
    let mut bytes = Vec::new();
    File::from(rustix::fs::open(&path, OFlags::RDONLY | SAFE, Mode::empty()).ok()?)
        .read_to_end(&mut bytes)
        .ok()?;
    fs::remove_file(&path).ok()?;
    let (rest, check) = bytes.split_last_chunk::<8>()?;
    if rest.len() < 12
        || u64::from_le_bytes(*check) != XxHash3_64::oneshot(rest)
        || rest[..4] != MAGIC
    {
        return None;
    }
    let number = |at: usize| rest[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let slots: &[[u8; 4]] = rest[12..].as_chunks().0;
    if number(4)? != run || number(8)? as usize != slots.len() {
        return None;
    }
    Some(slots.iter().map(|&slot| u32::from_le_bytes(slot)).collect())
}
