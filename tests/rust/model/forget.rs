//! Forgetting: what goes, what stays for those that keep it, and who publishes nothing any more.

use crate::names::REMOTE;
use crate::ops::Prompt;
use crate::world::World;
use crate::yard::{Block, Class, FORGOTTEN, InFlight, Purpose, Yard};
use blockyard_core::{Condemned, Forgotten, Key, LeaseId, ParkedId, Plan, Tier};

impl World {
    /// The keys of a prompt from one on, last first by turns: their order decides nothing.
    pub(crate) fn forget(&mut self, prompt: Prompt, first: u8, force: bool) {
        let chain = self.chain(prompt);
        let first = usize::from(first) % (chain.keys().len() + 1);
        let mut keys = chain.keys()[first..].to_vec();
        // Some name all, others the first alone.
        match first % 3 {
            0 => {}
            1 => keys.truncate(1),
            _ => keys.reverse(),
        }
        let what = Condemned::Keys(&keys);
        let before = self.cache.lock().stats().counters.forgotten;
        let answer = if force {
            self.cache.forget(what, force)
        } else {
            self.cache.lock().forget(what, force)
        };
        let answer = answer.expect("there is memory");
        let counted = self.cache.lock().stats().counters.forgotten - before;
        self.yard.forget(&keys, force, &answer, counted);
        self.in_flight.extend(answer.plans);
    }
}

impl Yard {
    pub(crate) fn forget(&mut self, keys: &[Key], force: bool, answer: &Forgotten, counted: u64) {
        let named: Vec<Block> = keys.iter().filter_map(|key| self.find(key)).collect();
        let lives = |block: &Block| self.alive(*block) && self.blocks[*block].epoch == self.epoch;
        let all: Vec<Block> = (0..self.blocks.len()).filter(lives).collect();
        let known = |yard: &Self, block: Block| {
            let mut path = std::iter::successors(Some(block), |&at| yard.parent(at));
            path.any(|at| named.contains(&at))
        };
        let astray = |yard: &Self, block: Block| {
            let mut path = std::iter::successors(Some(block), |&at| yard.parent(at));
            let first = path.by_ref().last().expect("itself at least");
            yard.blocks[first].parent.is_some()
        };
        let gone: Vec<Block> = all
            .into_iter()
            .filter(|&block| known(self, block) || astray(self, block))
            .collect();
        let known: Vec<bool> = gone.iter().map(|&block| known(self, block)).collect();
        self.end_holds_of(&gone);
        // What is beyond the size of the device has left it with its hold.
        let marked = gone.iter().copied().zip(known);
        let marked = marked.filter(|&(block, _)| self.alive(block));
        let (mut gone, were_known): (Vec<Block>, Vec<bool>) = marked.unzip();
        let candidates = gone.clone();
        let keeps = |yard: &Self, id: &ParkedId| {
            let stay = &yard.parked[id];
            !stay.broken && stay.path.iter().any(|block| gone.contains(block))
        };
        let mut kept: Vec<ParkedId> = self.parked.keys().copied().collect();
        kept.retain(|id| keeps(self, id));
        kept.sort_by_key(|id| self.parked[id].order);
        assert_eq!(answer.kept, kept, "who keeps some of it");
        let mut blocks = 0;
        if force {
            for &id in kept.iter().rev() {
                self.break_keep(id);
            }
            // Partial blocks go with their keeps.
            let lives: Vec<bool> = gone.iter().map(|&block| self.alive(block)).collect();
            let still = were_known.iter().zip(&lives);
            blocks += still.filter(|&(&known, &lives)| known && lives).count();
            let mut lives = lives.into_iter();
            gone.retain(|_| lives.next() == Some(true));
        } else {
            let stays = |block: &Block| self.kept(*block);
            let still = gone.iter().zip(&were_known);
            blocks += still
                .filter(|&(block, &known)| known && !stays(block))
                .count();
            gone.retain(|block| !self.kept(*block));
        }
        assert_eq!(answer.blocks, blocks as u64, "blocks that were forgotten");
        assert_eq!(counted, gone.len() as u64, "blocks that are counted");
        for &block in &gone {
            self.blocks[block].epoch = FORGOTTEN;
        }
        // What is read still goes before all others.
        for at in 0..self.order.len() {
            let block = self.block_in(0, self.order[at].slot);
            if block.is_some_and(|block| self.is_forgotten(block)) {
                self.order[at].class = Class::Cleared;
            }
        }
        let users = self.leases.iter().filter_map(|(&id, seq)| {
            let mut path = seq.table.iter().filter_map(|&slot| self.held_block(slot));
            path.any(|block| self.is_forgotten(block)).then_some(id)
        });
        let users: Vec<LeaseId> = users.collect();
        for id in users {
            self.leases.get_mut(&id).expect("it lives").epoch = FORGOTTEN;
        }
        for plan in &answer.plans {
            assert!(
                plan.from == plan.to && self.keyed[plan.to.0],
                "a keyed tier alone"
            );
            let flight = InFlight {
                from: plan.from.0,
                to: plan.to.0,
                purpose: Purpose::Void,
                moves: Vec::new(),
                overdue: false,
                reads: true,
                hearsay: Vec::new(),
                ended: None,
            };
            self.flights.insert(plan.flight, flight);
        }
        let spared = candidates.into_iter().filter(|block| !gone.contains(block));
        let spared: Vec<Block> = spared.filter(|&block| self.kept(block)).collect();
        self.check_deletes(keys, &gone, &spared, &answer.plans);
        let of_stores = |plan: &&Plan| plan.to == Tier::REMOTE;
        let others = answer.plans.iter().filter(|plan| !of_stores(plan)).count();
        let disks = 1..self.tiers.min(REMOTE);
        let keyed = disks.filter(|&tier| self.keyed[tier]).count();
        let told = !keys.is_empty() || !gone.is_empty();
        assert!(others == if told { keyed } else { 0 } || keys.is_empty());
        assert!(answer.plans.iter().all(|plan| plan.to > Tier::DEVICE));
        self.settle();
    }

    /// The block that a slot of a table is, stands beside, or will be the copy of.
    fn held_block(&self, slot: u32) -> Option<Block> {
        self.block_of(slot).or_else(|| self.block_in(0, slot))
    }
}
