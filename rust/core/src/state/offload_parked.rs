//! What a parked sequence sends down: first what the device alone has, to the home of each block,
//! which owes it a slot; then, when its home is short of room, to a lower one (INV-34).

use super::State;
use super::copy_down::Draft;
use crate::base::{Error, FlightIx, NodeIx, ParkedId, Result, Tier};
use crate::copies::{Plan, Purpose};

impl State {
    /// Copies up to `blocks` blocks of a parked sequence down, the deepest first. Without `to`, to
    /// the slots promised when it was parked, so that it always can. With `to`, what is kept above
    /// that tier is kept there as soon as its copy has landed; what has a copy there is at once.
    ///
    /// One plan has one source and one destination: call it again for the others, until `None`.
    ///
    /// # Errors
    /// `Spent` or `Foreign`; `Argument` for a `to` that is the device, or has no slots.
    pub fn demote_parked(
        &mut self,
        id: ParkedId,
        blocks: u32,
        to: Option<Tier>,
    ) -> Result<Option<Plan>> {
        let parked = self.parked(id)?;
        if let Some(to) = to {
            self.check_lower(to)?;
            if !self.home_tiers().any(|home| home == to) {
                let help = "a store may lose it, and this engine cannot compute it again";
                return Err(Error::argument("to", to.name(), help));
            }
        }
        let record = &self.parked[parked];
        let most = to.map_or(record.on_device as usize, |_| record.path.len());
        let path = record.path[..most].to_vec();
        let (mut draft, mut changed) = (None::<Draft>, false);
        for node in path.into_iter().rev() {
            if draft.as_ref().map_or(0, |draft| draft.moves.len()) >= blocks as usize {
                break;
            }
            let Some((from, to)) = (match to {
                None => self.way_home(node),
                Some(to) => self.way_down(node, to, &mut changed),
            }) else {
                continue;
            };
            let purpose = Purpose::Below { parked: Some(id) };
            let draft = draft.get_or_insert_with(|| self.draft(from, to, purpose));
            if self.is_between(draft.flight, from, to) && !self.copy_one(node, draft, |_, _| true) {
                break;
            }
        }
        if changed {
            self.shrink_keeps();
        }
        Ok(draft.and_then(|draft| self.launch_named(draft)))
    }

    /// A tier below the device that has slots.
    pub(super) fn check_lower(&self, tier: Tier) -> Result<()> {
        let has = |tier| self.tiers.has(tier) && self.tiers[tier].pool().room() > 0;
        if tier > Tier::DEVICE && has(tier) {
            return Ok(());
        }
        let help = "name a tier below the device that has slots";
        Err(Error::argument("to", tier.name(), help))
    }

    fn is_between(&self, flight: FlightIx, from: Tier, to: Tier) -> bool {
        let record = &self.flights[flight];
        (record.from, record.to) == (from, to)
    }

    /// From the device to the tier that owes the block a slot.
    fn way_home(&self, node: NodeIx) -> Option<(Tier, Tier)> {
        let home = self.trie[node].keeps.home();
        let owed = self.is_owed(node, home) && self.ready(node, Tier::DEVICE).is_some();
        owed.then_some((Tier::DEVICE, home))
    }

    /// From where a block is kept down to this tier, unless it is on its way there, or its home can
    /// change at once.
    fn way_down(&mut self, node: NodeIx, to: Tier, changed: &mut bool) -> Option<(Tier, Tier)> {
        let home = self.trie[node].keeps.home();
        if home >= to {
            return None;
        }
        if self.is_hearsay(node, to) {
            return None;
        }
        if let Some(slot) = self.ready(node, to) {
            let takes = u32::from(self.takeable(to, slot)) + self.shaded_by(node, to);
            if self.tiers[to].ledger().affords(takes.into()) {
                for _ in 0..self.trie[node].keeps.count() {
                    self.pin(to, slot);
                }
                self.move_home(node, to);
                *changed = true;
            }
            return None;
        }
        if self.trie.slot(node, to).is_some() {
            return None;
        }
        let from = [home, Tier::DEVICE].into_iter();
        let from = from
            .into_iter()
            .find(|&tier| self.ready(node, tier).is_some())?;
        Some((from, to))
    }
}
