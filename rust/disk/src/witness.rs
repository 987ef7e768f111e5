//! What says that an `identity` is older than its blocks, as after a backup of which a part was put back: the
//! file `floor`, which has the numbers once more, and the stamps in the table.

use crate::identity::{NUMBERS_BYTES, Numbers, read_some};
use crate::record::{Found, RECORD, Record, later_record};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The name of the file that has the numbers once more.
pub(crate) const FLOOR: &str = "floor";
/// Records that are read at once.
const AT_ONCE: usize = 8192;

/// The numbers that a file has, where they are whole.
pub(crate) fn numbers(file: &File) -> Option<Numbers> {
    let mut bytes = [0; NUMBERS_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Numbers::decode(&bytes)
}

/// Notes numbers.
pub(crate) fn note(file: &File, numbers: Numbers) -> io::Result<()> {
    file.write_all_at(&numbers.encode(), 0)?;
    file.sync_all()
}

/// What a table says of its folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Table {
    /// Whether it has nothing but zeros: no block was ever written.
    pub(crate) is_void: bool,
    /// The number of the last owner that has written a record of this identity and rank.
    pub(crate) run: u32,
    /// The format of a record that a later version has written; 0 where there is none.
    pub(crate) later: u32,
}

impl Table {
    /// What a table says that is not there.
    pub(crate) const VOID: Self = Self {
        is_void: true,
        run: 0,
        later: 0,
    };

    /// Reads a whole table.
    pub(crate) fn read(file: &File, identity: u64, rank: u16) -> io::Result<Self> {
        let mut found = Self::VOID;
        let mut bytes = vec![0; AT_ONCE * RECORD];
        for at in (0..file.metadata()?.len()).step_by(bytes.len()) {
            let have = read_some(file, &mut bytes, at)?;
            found.is_void &= bytes[..have].iter().all(|&byte| byte == 0);
            for place in bytes[..have].as_chunks().0 {
                match Record::decode(place) {
                    Found::Record(record) if (record.identity, record.rank) == (identity, rank) => {
                        found.run = found.run.max((record.stamp >> 32) as u32);
                    }
                    Found::Broken => found.later = found.later.max(later_record(place)),
                    _ => {}
                }
            }
        }
        Ok(found)
    }
}
