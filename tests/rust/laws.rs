//! The laws of the core, one example at a time: each says which of `docs/laws.md` it shows.

#[path = "laws/adopting.rs"]
mod adopting;
#[path = "laws/ahead.rs"]
mod ahead;
#[path = "laws/asking.rs"]
mod asking;
#[path = "laws/beginning.rs"]
mod beginning;
#[path = "laws/chains.rs"]
mod chains;
#[path = "laws/clearing.rs"]
mod clearing;
#[path = "laws/copies.rs"]
mod copies;
#[path = "laws/digest.rs"]
mod digest;
#[path = "laws/down.rs"]
mod down;
#[path = "laws/engine.rs"]
mod engine;
#[path = "laws/evicting.rs"]
mod evicting;
#[path = "laws/flushing.rs"]
mod flushing;
#[path = "laws/forgetting.rs"]
mod forgetting;
#[path = "laws/headroom.rs"]
mod headroom;
#[path = "laws/hints.rs"]
mod hints;
#[path = "laws/holding.rs"]
mod holding;
#[path = "laws/homes.rs"]
mod homes;
#[path = "laws/keys.rs"]
mod keys;
#[path = "support/listener.rs"]
mod listener;
#[path = "laws/losing.rs"]
mod losing;
#[path = "laws/order.rs"]
mod order;
#[path = "laws/parking.rs"]
mod parking;
#[path = "laws/paths.rs"]
mod paths;
#[path = "laws/plans.rs"]
mod plans;
#[path = "laws/pools.rs"]
mod pools;
#[path = "laws/promises.rs"]
mod promises;
#[path = "laws/replay.rs"]
mod replay;
#[path = "laws/resizing.rs"]
mod resizing;
#[path = "laws/restoring.rs"]
mod restoring;
#[path = "laws/runs.rs"]
mod runs;
#[path = "laws/sealing.rs"]
mod sealing;
#[path = "laws/sets.rs"]
mod sets;
#[path = "laws/slots.rs"]
mod slots;
#[path = "laws/spare.rs"]
mod spare;
#[path = "laws/store_copies.rs"]
mod store_copies;
#[path = "laws/store_keeps.rs"]
mod store_keeps;
#[path = "laws/stores.rs"]
mod stores;
#[path = "laws/telling.rs"]
mod telling;
#[path = "laws/tickets.rs"]
mod tickets;
#[path = "laws/tiers.rs"]
mod tiers;
#[path = "laws/tree.rs"]
mod tree;
#[path = "laws/up.rs"]
mod up;
mod verbs;
#[path = "laws/withdrawing.rs"]
mod withdrawing;
#[path = "laws/writing.rs"]
mod writing;
#[path = "laws/yard.rs"]
mod yard;
