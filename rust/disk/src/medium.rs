//! What is asked of a file of blocks. `files.rs` has those of a system, `crashing_disk.rs` one that loses what was
//! not synced.

use std::fmt::Debug;
use std::io;

/// A file of a fixed length, which several threads read and write.
pub trait Medium: Send + Sync + Debug {
    /// Reads bytes from `at` on, all of them.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes bytes from `at` on, all of them. Another process that reads sees them at once; a power cut
    /// may lose any sector of them before [`Self::sync`].
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()>;

    /// Makes durable what was written before.
    fn sync(&self) -> io::Result<()>;

    /// Closes it, when nobody reads or writes it any more. Later calls fail.
    fn close(&self) {}
}

/// Where it is noted what was cleared.
pub trait Epochs: Send + Sync + Debug {
    /// Clears all blocks whose stamp is smaller: when it returns, no restart brings them back.
    fn raise(&self, floor: u64) -> io::Result<()>;

    /// Checks that the next owner will find what this one writes: nobody has removed or replaced a file.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// Closes it, and gives the blocks to the next owner.
    fn close(&self) {}
}
