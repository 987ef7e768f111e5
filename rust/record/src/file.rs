//! The file of a recording: opened and checked once, and then only appended to.

use crate::error::{Error, Result};
use crate::frame::{HEADER, Header, MAGIC, VERSION};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Opens it, or makes it for its owner alone, and takes its lock.
pub(crate) fn open(path: &Path, block_size: u32) -> Result<File> {
    let refused = |source: io::Error| Error::System {
        path: path.to_owned(),
        source,
    };
    // Reading too: a pipe that nobody reads yet would hold up the start otherwise.
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    let mut file = options.open(path).map_err(refused)?;
    // Some network file systems have no locks: then nobody is refused.
    if let Err(Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        return Err(Error::Owned {
            path: path.to_owned(),
        });
    }
    if file.metadata().map_err(refused)?.is_file() {
        let mut head = Vec::with_capacity(HEADER);
        let mut first = (&mut file).take(HEADER as u64);
        first.read_to_end(&mut head).map_err(refused)?;
        check(path, &head, block_size)?;
        // One that was there may be open to others.
        file.set_permissions(Permissions::from_mode(0o600))
            .map_err(refused)?;
    }
    Ok(file)
}

/// Checks what the file begins with. A header that a crash has torn is a recording's, too.
fn check(path: &Path, head: &[u8], own: u32) -> Result<()> {
    if head[..head.len().min(MAGIC.len())] != MAGIC[..head.len().min(MAGIC.len())] {
        return Err(Error::Foreign {
            path: path.to_owned(),
        });
    }
    if let Some(there) = Header::version(head).filter(|&there| there != VERSION) {
        return Err(Error::Format {
            path: path.to_owned(),
            there,
            known: VERSION,
        });
    }
    match Header::of(head) {
        Some(header) if header.block_size != own => Err(Error::Blocks {
            path: path.to_owned(),
            there: header.block_size,
            own,
        }),
        _ => Ok(()),
    }
}
