//! Resume: a parked sequence begins again with its blocks; those still on the device are shared, and
//! the others are loaded.

use super::record::{Keep, Phase, Start};
use super::{Answer, Begun, Filling, Request, State, Stop};
use crate::base::{FlightId, Key, LeaseIx, MAX_TIERS, NodeIx, ParkedId, ParkedIx, Result, Tier};
use crate::tiers::Hold;

impl State {
    /// Brings a parked sequence of `tokens` tokens back, at exactly the count of computed tokens
    /// that it was parked with. If its keep was broken it begins as a new sequence. `NoRoom`
    /// and `Soon` leave it parked.
    pub fn resume(
        &mut self,
        id: ParkedId,
        keys: &[Key],
        tokens: u64,
        reserve: u64,
    ) -> Result<Answer> {
        let parked = self.parked(id)?;
        if self.parked[parked].keep == Keep::Broken {
            let load = u32::MAX;
            let filling = Filling::Soon;
            let answer = self.begin(&Request {
                keys,
                tokens,
                reserve,
                load,
                filling,
            })?;
            if let Answer::Begun(_) = answer {
                self.parked.remove(parked);
            }
            return Ok(answer);
        }
        let path = std::mem::take(&mut self.parked[parked].path);
        let answer = self.readmit(parked, &path, tokens, reserve);
        self.parked[parked].path = path;
        // The lease stands in for the handle until its loads have landed.
        if let Ok(Answer::Begun(begun)) = &answer
            && begun.plans.is_empty()
        {
            self.end_keep(parked);
        }
        answer
    }

    fn readmit(
        &mut self,
        parked: ParkedIx,
        path: &[NodeIx],
        tokens: u64,
        reserve: u64,
    ) -> Result<Answer> {
        let device = match self.device_path(path) {
            Ok(device) => device,
            Err(flight) => return Ok(Answer::Soon(flight)),
        };
        let computed = self.parked[parked].computed;
        let tokens = tokens.max(computed);
        let (total, limit) = self.size(tokens, reserve)?;
        let pinned = self.parked[parked].on_device as usize;
        let idle_hits = self.idle_hits(path[..device].iter().skip(pinned).copied());
        let need = u64::from(limit) - device as u64;
        let decision = self.decide(Tier::DEVICE, need, idle_hits);
        self.afford(decision)?;
        let mut table = Vec::with_capacity(limit as usize);
        let mut others = &path[..device];
        if device == path.len() {
            // Its keep ends at once, and the lease has the pins of that.
            self.parked[parked].on_device = 0;
            let slot = |&node: &NodeIx| self.trie.slot(node, Tier::DEVICE);
            table.extend(others[..pinned].iter().filter_map(slot));
            others = &others[pinned..];
        }
        self.pin_path(others, &mut table);
        let lower = &path[device..];
        let sources: Vec<Tier> = lower.iter().map(|&node| self.mark_kept(node)).collect();
        let named = path
            .iter()
            .take_while(|&&node| !self.trie[node].is_anonymous())
            .count();
        let start = Start {
            tokens,
            limit,
            sealed: named as u32,
            cached: computed,
            epoch: self.trie.epoch(),
        };
        let id = self.open_lease(start, total, device as u32);
        let mut hits = [0; MAX_TIERS];
        hits[0] = device as u32;
        for tier in &sources {
            hits[tier.at()] += 1;
        }
        let runs = sources.chunk_by(|one, next| one == next);
        let runs = runs.map(|run| (run[0], run.len() as u32));
        let plans = self.load_runs(id, path, runs, &mut table);
        self.tiers[Tier::DEVICE].claim(total, &mut table);
        self.leases[id.at()].start(table, plans.len(), Some(parked));
        self.parked[parked].lease = Some(id);
        // Its blocks are taken at once, like those of a begin.
        self.largest = self.largest.max(total);
        self.counters.resumed += 1;
        let begun = Begun {
            lease: id,
            cached: computed,
            hits,
            stop: Stop::Whole,
            plans,
        };
        Ok(Answer::Begun(begun))
    }

    /// How many blocks of a path are on the device, from the root; or the flight that brings one there.
    fn device_path(&self, path: &[NodeIx]) -> Result<usize, FlightId> {
        for (at, &node) in path.iter().enumerate() {
            let slot = self.trie.slot(node, Tier::DEVICE);
            match slot.map(|slot| self.hold(Tier::DEVICE, slot)) {
                None => return Ok(at),
                Some(Hold::Filling { flight }) => return Err(FlightId(self.flights.id(flight))),
                Some(_) => {}
            }
        }
        Ok(path.len())
    }

    /// Marks the copy of a kept block that is loaded, on the highest tier where that takes no backing
    /// from a promise: its home's never does.
    fn mark_kept(&mut self, node: NodeIx) -> Tier {
        let home = self.trie[node].keeps.home();
        for tier in self.tiers.below(Tier::DEVICE) {
            if let Some(slot) = self.ready(node, tier)
                && self.mark_backed(node, tier, slot)
            {
                return tier;
            }
        }
        debug_assert!(
            false,
            "a kept block is neither on the device nor ready at home"
        );
        home
    }

    /// Ends the keeps of a resume that came back incomplete, as the engine goes on with it: it recomputes
    /// from the good prefix.
    pub(super) fn accept_incomplete(&mut self, lease: LeaseIx) {
        if let Phase::Short { resumes } = self.leases[lease].phase {
            self.leases[lease].phase = Phase::Running;
            self.end_keep(resumes);
        }
    }
}
