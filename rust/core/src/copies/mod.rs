//! Copies between tiers: plans and outcomes as they are sent, the flight of each plan until its end is
//! known, and whether a load pays.
//!
//! layer: plan cost
//! layer: flight

mod cost;
mod flight;
mod plan;

pub use cost::Speeds;
pub use plan::{End, Outcome, Plan, Run};

pub(crate) use flight::{Flight, Move, Purpose};
