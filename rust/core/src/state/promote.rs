//! Promote: copies up, ahead of a request: to the device, or only to a tier above.

use super::State;
use super::record::{Phase, Running, Start};
use super::runs::Runs;
use crate::base::{Key, NodeIx, Result, Tier};
use crate::copies::Plan;
use crate::evict::Hints;
use std::collections::BTreeSet;

impl State {
    /// Copies what of this prefix lies below a tier up to it, at most `blocks` blocks, by a flight
    /// for each run of blocks from one tier. To the device, its path stays pinned until it has landed,
    /// and all of a prefix comes or none for want of room; to another tier, as many as find room.
    ///
    /// # Errors
    /// `TooLarge` or `NoRoom` of the device; `Argument` for a tier without slots.
    pub fn promote(&mut self, keys: &[Key], blocks: u32, to: Tier) -> Result<Vec<Plan>> {
        if to > Tier::DEVICE {
            self.check_lower(to)?;
        } else {
            self.of_its_own("promoting to the device")?;
        }
        let probe = self.walk(keys);
        let path = std::mem::take(&mut self.scratch.path);
        let device = probe.hits[0] as usize;
        let plans = if to == Tier::DEVICE {
            self.promote_to_device(&path, device, blocks)
        } else {
            Ok(self.promote_to(&path, device, blocks, to))
        };
        self.scratch.path = path;
        plans
    }

    fn promote_to_device(
        &mut self,
        path: &[NodeIx],
        device: usize,
        blocks: u32,
    ) -> Result<Vec<Plan>> {
        let mut runs = self.scratch.runs;
        runs.cut(blocks);
        let end = device + runs.blocks() as usize;
        if end == device {
            return Ok(Vec::new());
        }
        self.size(end as u64 * u64::from(self.config.block_size), 0)?;
        self.load_path(&path[..end], device, runs)
    }

    fn load_path(&mut self, path: &[NodeIx], device: usize, mut runs: Runs) -> Result<Vec<Plan>> {
        let idle_hits = self.idle_hits(path[..device].iter().copied());
        let need = (path.len() - device) as u64;
        self.decide(Tier::DEVICE, need, idle_hits).check()?;
        self.link_path(path);
        let end = device + self.mark_sources(path, device, runs);
        if end == device {
            return Ok(Vec::new());
        }
        runs.cut((end - device) as u32);
        let mut table = Vec::with_capacity(end);
        self.pin_path(&path[..device], &mut table);
        self.make_room(Tier::DEVICE, (end - device) as u32);
        // A lease that has ended already: what pins its path goes when its loads land.
        let tokens = end as u64 * u64::from(self.config.block_size);
        let lease = self.leases.insert(Running::new(Start {
            tokens,
            limit: end as u32,
            sealed: end as u32,
            cached: tokens,
            epoch: self.trie.epoch(),
        }));
        let id = self.lease_id(lease);
        let plans = self.load_runs(id, path, runs.iter(), &mut table);
        let record = &mut self.leases[lease];
        record.table = table;
        record.phase = Phase::Ended {
            flights: plans.len() as u32,
            resumes: None,
            hints: Hints::default(),
        };
        Ok(plans)
    }

    /// Copies those of a path's blocks behind the device's that only tiers below `to` have, until one
    /// finds no room: no block of the path makes room for another.
    fn promote_to(&mut self, path: &[NodeIx], device: usize, blocks: u32, to: Tier) -> Vec<Plan> {
        let own: BTreeSet<NodeIx> = path.iter().copied().collect();
        let (mut plans, mut draft) = (Vec::new(), None);
        let mut left = blocks;
        for &node in &path[device..] {
            let above = (1..=to.at()).map(Tier);
            let lies_below = above
                .into_iter()
                .all(|tier| self.trie.slot(node, tier).is_none());
            let Some(from) = self.source(node).ok().filter(|_| lies_below && left > 0) else {
                continue;
            };
            let draft = self.of_run((from, to), &mut draft, &mut plans);
            if !self.copy_one(node, draft, |_, victim| !own.contains(&victim)) {
                break;
            }
            left -= 1;
        }
        plans.extend(draft.and_then(|draft| self.launch_named(draft)));
        plans
    }
}
