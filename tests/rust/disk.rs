//! Blocks in slot files: whatever a power cut, a kill or a flipped bit leaves, nothing wrong is served, and
//! nothing acknowledged is lost. INV-26 to INV-31, INV-37

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]
#![expect(
    clippy::disallowed_methods,
    reason = "no yard is here whose lock it could be"
)]

#[path = "disk/blocks.rs"]
mod blocks;
#[path = "disk/clear.rs"]
mod clear;
#[path = "disk/folder.rs"]
mod folder;
#[path = "disk/lane.rs"]
mod lane;
#[path = "disk/shared_threads.rs"]
mod shared_threads;
#[path = "disk/support.rs"]
mod support;
#[path = "disk/void.rs"]
mod void;
