//! The stores that this engine shares with others: who lie, lose and flip what is there.

use super::{Block, SIZE, World, bytes};
use blockyard_core::{Condemned, Outcome, Plan, Tier};

impl World {
    fn has_names(&self) -> bool {
        let stats = self.cache.lock().stats();
        stats.tiers[Tier::REMOTE.0].capacity > 0
    }

    /// Something happens to a store, or is said of it.
    pub(super) fn share(&mut self) {
        if !self.has_names() {
            return;
        }
        let Some(name) = self.pick(|_| true) else {
            return;
        };
        let tokens = self.requests[&name].tokens.clone();
        let chain = self.chain(&tokens);
        let keys = chain.keys().to_vec();
        let some = self.chance.below(keys.len() + 1);
        match self.chance.below(8) {
            // Another engine has put some of it there, and more is said than is so.
            0..4 => {
                for (at, &key) in keys[..some].iter().enumerate() {
                    let bytes = bytes(&tokens[..(at + 1) * SIZE]);
                    let flipped = self.chance.one_in(9);
                    let block = Block {
                        bytes: bytes ^ u64::from(flipped),
                        flipped,
                        told: false,
                    };
                    self.store.entry(key).or_insert(block);
                }
                let said = (some + self.chance.below(3)).min(keys.len());
                let mut state = self.cache.lock();
                let adopted = state.adopt(&keys[..said], None, Tier::REMOTE);
                let adopted = adopted.expect("it is keyed");
                let again = state.adopt(&keys[..said], None, Tier::REMOTE);
                assert!(again.expect("it is keyed") >= adopted, "it only adds");
                drop(state);
                self.describe(&chain, 0, &tokens[..said * SIZE]);
                self.seen.adopted += adopted;
            }
            4 => {
                let dropped = self.cache.lock().forget_names(&keys[some..], Tier::REMOTE);
                dropped.expect("it is keyed");
            }
            5 => {
                let what = Condemned::Keys(&keys[some..]);
                let forgotten = self.cache.forget(what, self.chance.one_in(2));
                forgotten.expect("there is memory");
            }
            // The store evicts, or a bit of it flips.
            6 => _ = self.store.pop_first(),
            _ => {
                let all = self.store.len().max(1);
                let at = self.chance.below(all);
                if let Some(block) = self.store.values_mut().nth(at) {
                    (block.flipped, block.bytes) = (true, block.bytes ^ 1);
                }
            }
        }
    }

    /// A copy writes a block, and a store may lose it at once.
    pub(super) fn write(&mut self, plan: &Plan, at: usize, block: Block) {
        if plan.to < Tier::REMOTE {
            *self.block(plan.to, plan.destinations[at]) = block;
        } else if !self.chance.one_in(5) {
            self.store.insert(plan.keys[at], block);
        }
    }

    /// The values of these keys were deleted, or the store was down.
    pub(super) fn deleted(&mut self, plan: &Plan) {
        let is_down = self.chance.one_in(3);
        let outcome = if is_down {
            Outcome::failed(plan.flight, 0)
        } else {
            for key in &plan.keys {
                self.store.remove(key);
            }
            plan.whole()
        };
        self.cache.lock().commit(&[outcome], None).expect("known");
    }
}
