//! The formats of all files in a folder. What another version has written is refused before anything of it is
//! changed: `identity` says its format in clear text, the others by the fourth of their first bytes.

use crate::error::Result;
use crate::eviction_order;
use crate::identity::{Identity, other_format};
use crate::record::{self, version_in};
use crate::witness::Table;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What vLLM's scheduler notes in the folder of an identity: what was cleared, and the order of a clean end.
const NOTES: [(&str, [u8; 4]); 2] = [("cleared", *b"BYC1"), ("order", *b"BYE1")];

/// Refuses a rank's folder that another version has written. What is not there, or cannot be read, is for later.
pub(crate) fn check(folder: &Path) -> Result<()> {
    let identity = folder.join("identity");
    let read = look(&identity).and_then(|file| Identity::read(&file).ok());
    let writer = read.as_ref().and_then(Identity::writer);
    if let Some(found) = &read {
        found.check_format(&identity)?;
    }
    let notes = NOTES.map(|(name, magic)| (folder.with_file_name(name), magic));
    let order = [(folder.join(eviction_order::NAME), eviction_order::MAGIC)];
    for (path, magic) in order.into_iter().chain(notes) {
        let mut head = [0; 4];
        let read = look(&path).and_then(|file| file.read_exact_at(&mut head, 0).ok());
        let (found, known) = (version_in(&head, magic), version_in(&magic, magic));
        if read.is_some() && found > known {
            return Err(other_format(&path, found, known, writer));
        }
    }
    Ok(())
}

/// Refuses a table in which a later version has written.
pub(crate) fn check_table(folder: &Path, found: Table) -> Result<()> {
    if found.later == 0 {
        return Ok(());
    }
    let read = look(&folder.join("identity")).and_then(|file| Identity::read(&file).ok());
    let writer = read.and_then(|identity| identity.writer());
    let table = folder.join("table");
    Err(other_format(&table, found.later, record::VERSION, writer))
}

fn look(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty())
        .ok()
        .map(File::from)
}
