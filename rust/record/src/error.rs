//! What can be wrong with the path of a recording.

use std::io;
use std::path::PathBuf;

/// Why nothing can be recorded there. Each says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refuses.
    #[error("record = '{}': it cannot be written: {source}; give the path of a file, new or of a recording", path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Something else is there.
    #[error("record = '{}': it is there already and is no recording, and nothing is overwritten: give another path", path.display())]
    Foreign {
        /// The path.
        path: PathBuf,
    },
    /// It is of another cache.
    #[error("record = '{}': it is a recording of blocks of {there} tokens, and this cache has {own}: give another path", path.display())]
    Blocks {
        /// The path.
        path: PathBuf,
        /// Tokens per block of the recording.
        there: u32,
        /// Tokens per block of the cache.
        own: u32,
    },
    /// Another version has begun it.
    #[error(
        "record = '{}': it is a recording of format {there}, and Blockyard {} knows {known}: give another path, or start \
         the version that has begun it", path.display(), env!("CARGO_PKG_VERSION")
    )]
    Format {
        /// The path.
        path: PathBuf,
        /// The format of the recording.
        there: u32,
        /// The format that is known here.
        known: u32,
    },
    /// Another cache writes it.
    #[error("record = '{}': another cache is recording into it, here or in another process: give each a path of its own", path.display())]
    Owned {
        /// The path.
        path: PathBuf,
    },
}

/// A result with an [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
