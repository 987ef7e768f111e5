//! Blocks on their way to and from shared stores: whatever a store says or does not say, nothing wrong comes
//! into memory, and nothing of a copy that was given up is touched. INV-35a, INV-35b, INV-26, INV-32, INV-42

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]
#![expect(
    clippy::disallowed_methods,
    reason = "no yard is here whose lock it could be"
)]

#[path = "store/deletes.rs"]
mod deletes;
#[path = "store/given_up.rs"]
mod given_up;
#[path = "store/landing.rs"]
mod landing;
#[path = "store/rests.rs"]
mod rests;
#[path = "store/support.rs"]
mod support;
