//! Blocks on their way from an engine that has computed a prompt to one that goes on with it. The prefill side offers
//! blocks that its yard holds, and serves their bytes; the decode side takes an offer, and has the bytes of its own
//! keys received into slots that it has claimed. Between them is one connection of TCP, a peer and a rank.
//!
//! Each side ends alone: an offer by the clock of the side that made it, a flight by that of the side that wants it. No
//! clock is compared with another's, and nothing is counted that could be lost. INV-36d
//!
//! Safety is the check: a block is good only where key, slot, generation and length are those that were offered, the
//! generation is the same after the bytes were read, and the bytes have the sum that was sent. INV-35a
//!
//! A file may use only what stands above it; names on one line are strangers:
//! layer: places offers served landed
//! layer: frame flight
//! layer: encoding secret
//! layer: link
//! layer: greeting desk sending
//! layer: serve wire
//! layer: carrier
//! layer: peer

#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "its threads wait for a socket, and never under a yard's lock"
)]

mod carrier;
mod desk;
mod encoding;
mod flight;
mod frame;
mod greeting;
mod landed;
mod link;
mod offers;
mod peer;
mod places;
mod secret;
mod sending;
mod serve;
mod served;
mod wire;

pub use blockyard_store::{Condition, Landed, Short};
pub use flight::Known;
pub use greeting::{Identity, is_loopback};
pub use landed::{Answer, Bell, Counts, PeerState};
pub use offers::{
    End, Gone, Held, Hold, Holding, MOST_BLOCKS, OfferId, Offers, Refused, Taken, Tally,
};
pub use peer::Peer;
pub use places::{Pieces, Receiving, Sending};
pub use secret::{LEAST_SECRET, Secret};
pub use serve::{OfferServer, RankMemory, SharedOffers, monotonic};
pub use served::{Limits, Served};
pub use wire::PeerOptions;
