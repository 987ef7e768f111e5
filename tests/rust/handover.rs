//! Blocks handed over between two sides: each ends alone, nothing is read that was not offered, and nothing that does
//! not agree with the offer counts as landed, whatever the other side says or does. INV-35a, INV-36a to INV-36g

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]
#![expect(
    clippy::disallowed_methods,
    reason = "no yard is here whose lock it could be"
)]

#[path = "handover/carried.rs"]
mod carried;
#[path = "handover/ending.rs"]
mod ending;
#[path = "handover/hostile_decoder.rs"]
mod hostile_decoder;
#[path = "handover/hostile_prefiller.rs"]
mod hostile_prefiller;
#[path = "handover/meeting.rs"]
mod meeting;
#[path = "handover/offers.rs"]
mod offers;
#[path = "handover/reading.rs"]
mod reading;
#[path = "handover/support.rs"]
mod support;
#[path = "handover/wire.rs"]
mod wire;
