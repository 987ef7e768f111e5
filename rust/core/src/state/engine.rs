//! Engine: the verbs of a yard whose device belongs to an engine that gives out its blocks itself.

use super::{Probe, State};
use crate::error::Result;
use crate::id::{FlightId, Key, ParkedId};
use crate::plan::Plan;

/// What a fetch brings up.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// The blocks of these keys.
    Keys(&'a [Key]),
    /// The blocks of a kept request, with its partial one.
    Kept(ParkedId),
}

/// A fetch's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fetch {
    /// Copies to make, of as many blocks as are there, in their order.
    Plans(Vec<Plan>),
    /// Its first block, or one of its ids, is in the air: ask again when this flight has ended.
    Soon(FlightId),
}

impl State {
    /// How much of a prefix, from block `after` on, lies below and pays to load.
    pub fn find(&mut self, keys: &[Key], after: u32) -> Result<Probe> {
        let _ = (keys, after);
        todo!()
    }

    /// Brings blocks up to the engine's `ids`.
    pub fn fetch(&mut self, what: Wanted<'_>, ids: &[u32], first: u32) -> Result<Fetch> {
        let _ = (what, ids, first);
        todo!()
    }

    /// Copies blocks down from the engine's `ids`.
    pub fn stow(&mut self, keys: &[Key], ids: &[u32], first: u32) -> Result<Option<Plan>> {
        let _ = (keys, ids, first);
        todo!()
    }

    /// Copies all of a request down, and keeps it.
    pub fn stow_kept(
        &mut self,
        keys: &[Key],
        ids: &[u32],
        tokens: u64,
    ) -> Result<(ParkedId, Option<Plan>)> {
        let _ = (keys, ids, tokens);
        todo!()
    }

    /// The newest flight that reads or writes one of these ids.
    pub fn must_finish(&self, ids: &[u32]) -> Result<Option<FlightId>> {
        let _ = ids;
        todo!()
    }

    /// Touches whole paths.
    pub fn used(&mut self, rows: &[&[Key]]) -> Result<()> {
        let _ = rows;
        todo!()
    }
}
