//! What can be wrong with a folder of blocks.

use std::io;
use std::path::PathBuf;

/// A folder, a file or a request that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value is out of range.
    #[error("{name} = {value}: {help}")]
    Argument {
        /// What the value is.
        name: &'static str,
        /// The value.
        value: u64,
        /// What it must be.
        help: &'static str,
    },
    /// A later version has made it.
    #[error(
        "{}: its format is {found}{}, and Blockyard {} knows {known}: start the version that has written it, give \
         another folder, or remove its blocks: {wipe}",
        path.display(), by.as_ref().map_or(String::new(), |by| format!(" (of Blockyard {by})")), env!("CARGO_PKG_VERSION")
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The latest that is known here.
        known: u32,
        /// The version of Blockyard that has written it, where it says so.
        by: Option<String>,
        /// The command that removes its blocks.
        wipe: String,
    },
    /// The disk has no room for its files.
    #[error(
        "{}: take its room: {wanted} bytes are wanted, and {free} are free: give a smaller size or another disk",
        path.display()
    )]
    NoRoom {
        /// The file or folder.
        path: PathBuf,
        /// Bytes that its files still want.
        wanted: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The system refused.
    #[error("{}: {doing}: {source}", path.display())]
    System {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// What this crate's calls return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn system(
        path: impl Into<PathBuf>,
        doing: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::System {
            path,
            doing,
            source,
        }
    }
}
