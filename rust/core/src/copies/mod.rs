//! Copies between tiers: plans and outcomes as they are sent, the flight of each plan until its end is
//! known, and whether a load pays.
//!
//! layer: `load_cost` plan
//! layer: flight

mod flight;
mod load_cost;
mod plan;

pub use load_cost::BlockCosts;
pub use plan::{End, Outcome, Plan, Run};

pub(crate) use flight::{Flight, Move, Purpose};
