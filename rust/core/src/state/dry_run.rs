//! Dry run: what a begin would answer now. It is the begin's own arithmetic, and changes nothing.

use super::begin::check;
use super::{Request, State, Stop};
use crate::base::{FlightId, Result, Tier};

/// What a begin would need and find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// Device slots to take or to promise.
    pub need: u64,
    /// Slots that are free.
    pub free: u64,
    /// Idle blocks that may be evicted for it; those that it would hold itself are not among them.
    pub evictable: u64,
    /// Of free and evictable ones together, what is promised to others.
    pub promised: u64,
    /// Free and evictable ones that are not promised: it would be served with that many slots. Below
    /// zero where blocks that it would hold itself back promises.
    pub available: i64,
    /// Whether it would be served.
    pub fits: bool,
    /// Whether the device could ever hold it.
    pub ever: bool,
    /// The flight that it would be told to wait for.
    pub waits: Option<FlightId>,
    /// Blocks of the device that it would find: shared, or the source of a private copy.
    pub device: u32,
    /// Blocks that it would load, as far as promises allow.
    pub loads: u32,
    /// Blocks that were found below and would not be loaded.
    pub slow: u32,
    /// Why the prefix that it would use ends.
    pub stop: Stop,
}

impl State {
    /// Whether the device could ever hold that many tokens and their growth.
    ///
    /// # Errors
    /// `TooLarge`, as a begin.
    pub fn ever(&self, tokens: u64, reserve: u64) -> Result<()> {
        self.size(tokens, reserve).map(|_| ())
    }

    /// What a begin would answer now.
    ///
    /// # Errors
    /// `Argument`, as a begin.
    pub fn dry_run(&mut self, request: &Request<'_>) -> Result<Need> {
        check(request)?;
        let limit = self.blocks_of(request.tokens.saturating_add(request.reserve));
        let ever = self.fits(Tier::DEVICE, limit).is_ok();
        let prefix = self.prefix(request);
        let waits = self.waits(request, prefix.stop).filter(|_| ever);
        let path = std::mem::take(&mut self.scratch.path);
        let need = limit - prefix.device as u64;
        let (prefix, decision) = self.settle(&path, &prefix, need);
        self.scratch.path = path;
        let last = prefix
            .last
            .map(|node| self.ready(node, Tier::DEVICE).is_some());
        Ok(Need {
            need,
            free: decision.free,
            evictable: decision.evictable,
            promised: decision.promised,
            available: decision.available,
            fits: ever && waits.is_none() && decision.fits(),
            ever,
            waits,
            device: prefix.device as u32 + u32::from(last == Some(true)),
            loads: prefix.lower as u32 + u32::from(last == Some(false)),
            slow: prefix.slow,
            stop: prefix.stop,
        })
    }
}
