//! A recording: one file with the requests that a cache has served, for a replay of them. It knows keys,
//! lengths and times, and no token.
//!
//! The laws: recording decides nothing, and waits for nothing. A request is handed over in one bounded
//! queue, by a thread that never waits for room, for the disk or for a lock; another thread writes. What
//! finds no room, and what the disk refuses, is dropped whole and counted. (INV-38)
//!
//! The file is only appended to. It begins with a header, and so does what each later process appends, so
//! that a reader finds its place again behind whatever a crash or a full disk has torn.
//!
//! A file may use only what stands above it; names on one line are strangers:
//! layer: error
//! layer: frame
//! layer: file
//! layer: recorder

#![forbid(unsafe_code)]

mod error;
mod file;
mod frame;
mod recorder;

pub use error::{Error, Result};
pub use frame::{HEADER, Header, MAGIC, REQUEST, Request};
pub use recorder::{Counts, MOST_BYTES, MOST_REQUESTS, Recorder, Seen};
