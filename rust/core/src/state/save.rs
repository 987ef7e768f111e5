//! Save: offload for one request whose blocks the engine gives up, with its partial block. What it loses
//! cuts it to the blocks before: the engine has its sources no more.

use super::State;
use super::offload::Above;
use super::record::Parked;
use crate::base::{Error, Id, Ix, Key, MAX_TIERS, NodeIx, ParkedId, Result, SlotIx, Tier};
use crate::collections::{Tag, mix};
use crate::copies::{Plan, Purpose};
use crate::tiers::KeepCount;

impl State {
    /// Copies all blocks of a request's `tokens` tokens down that are neither below nor on their way
    /// there, with the partial one, from all of its `ids`; and keeps them, until it is abandoned. What
    /// is new goes to the nearest lower tier that has room for all of it.
    ///
    /// # Errors
    /// As [`Self::offload`]; `Argument` too for more or fewer ids than blocks, fewer keys than full blocks,
    /// or keys that contradict each other; `State` for ids that are being filled; `TooLarge` or `NoRoom`.
    pub fn save_request(
        &mut self,
        keys: &[Key],
        ids: &[u32],
        tokens: u64,
    ) -> Result<(ParkedId, Option<Plan>)> {
        let full = self.check_kept(keys, ids, tokens)?;
        let keys = &keys[..full];
        let mut path: Vec<Option<NodeIx>> = keys.iter().map(|key| self.trie.find(key)).collect();
        self.check_path(keys, &path)?;
        path.resize(ids.len(), None);
        let to = self.choose_tier(&path)?;

        for pair in path.windows(2) {
            if let [Some(parent), Some(node)] = *pair {
                self.join(node, self.behind(Some(parent)));
            }
        }
        for &node in path.iter().flatten() {
            self.note_use(node);
            self.keep_block(node, to);
        }
        let new = path.iter().filter(|node| node.is_none()).count();
        self.make_room(to, new as u32);
        let mut draft = self.draft(Tier::DEVICE, to, Purpose::Offload);
        draft.moves.reserve(new);
        let mut nodes = Vec::with_capacity(path.len());
        let mut above = Above::Root;
        for (at, (&known, &id)) in path.iter().zip(ids).enumerate() {
            let node = known.unwrap_or_else(|| {
                let gap = |key: &Key| self.trie.seek(key, Tag::of(key)).err();
                let key = keys.get(at).and_then(|key| Some((key, gap(key)?)));
                let node = self.new_block(above, key);
                self.trie[node].keeps = KeepCount::one(to);
                self.fill_from(node, SlotIx::new(id), &mut draft);
                node
            });
            if known.is_some() && at > 0 && path[at - 1].is_none() {
                self.link(node, above.block());
            }
            nodes.push(node);
            above = self.behind(Some(node));
        }
        self.parkings += 1;
        let parked = self.parked.insert(Parked {
            path: nodes,
            computed: tokens,
            order: self.parkings,
            ..Parked::default()
        });
        self.counters.parked += 1;
        let plan = self.launch_if_any(draft);
        Ok((ParkedId(self.parked.id(parked)), plan))
    }

    /// Returns how many of the keys are of full blocks.
    fn check_kept(&self, keys: &[Key], ids: &[u32], tokens: u64) -> Result<usize> {
        self.of_an_engine("save_request")?;
        self.check_ids(ids)?;
        if tokens == 0 {
            return Err(Error::argument(
                "tokens",
                tokens,
                "must be >= 1: a request has a token",
            ));
        }
        let (blocks, full) = (
            self.blocks_of(tokens),
            tokens / u64::from(self.config.block_size),
        );
        if ids.len() as u64 != blocks {
            let help = "give an id for each block of the tokens, the partial one included";
            return Err(Error::argument("ids", ids.len(), help));
        }
        if (keys.len() as u64) < full {
            let help = "give a key for each full block of the tokens";
            return Err(Error::argument("keys", keys.len(), help));
        }
        if let Some(id) = ids.iter().find(|&&id| self.is_filled(id)) {
            let what = format!("saving block {id} of the engine, which is being filled");
            return Err(Error::state(
                what,
                "ask must_finish, and wait for that flight",
            ));
        }
        Ok(full as usize)
    }

    /// Whether each known block of a path names the one before it as its parent.
    fn check_path(&self, keys: &[Key], path: &[Option<NodeIx>]) -> Result<()> {
        let mut above = Above::Root;
        for (key, &node) in keys.iter().zip(path) {
            if node.is_some_and(|node| !self.stands_on(node, above)) {
                let help = "it has another parent: the keys contradict each other";
                return Err(Error::argument("keys", key.hex(), help));
            }
            above = self.behind(node);
        }
        let new = keys.iter().zip(path).filter(|(_, node)| node.is_none());
        let mut new: Vec<(u64, &Key)> = new.map(|(key, _)| (mix(key), key)).collect();
        new.sort_unstable_by_key(|&(mixed, _)| mixed);
        match new.windows(2).find(|pair| pair[0].1 == pair[1].1) {
            Some(pair) => {
                let help =
                    "it comes twice: a key has one block, and the keys contradict each other";
                Err(Error::argument("keys", pair[0].1.hex(), help))
            }
            None => Ok(()),
        }
    }

    /// Where a block that is below is kept, which nothing keeps yet: on the lowest tier that has it
    /// ready, or will have.
    fn home_below(&self, node: NodeIx) -> Option<Tier> {
        let mut below = self.tiers.below(Tier::DEVICE);
        self.lowest(node)
            .or_else(|| below.find(|&tier| self.trie.slot(node, tier).is_some()))
    }

    /// One request more keeps a block.
    fn keep_block(&mut self, node: NodeIx, to: Tier) {
        if self.trie[node].keeps.count() == 0 {
            let home = self.home_below(node).unwrap_or(to);
            self.trie[node].keeps = KeepCount::default().at(home);
        }
        let home = self.trie[node].keeps.home();
        if let Some(slot) = self.ready(node, home) {
            self.pin(home, slot);
        }
        self.trie[node].keeps.gain();
    }

    /// The nearest lower tier that has room for what of a path is not below yet.
    fn choose_tier(&self, path: &[Option<NodeIx>]) -> Result<Tier> {
        let below = || self.home_tiers();
        let limits = below().map(|tier| self.tiers[tier].pool().room());
        let capacity = limits.max().unwrap_or(0);
        if path.len() > capacity as usize {
            return Err(Error::TooLarge {
                tier: self.tiers.next_below(Tier::DEVICE).unwrap_or(Tier::HOST),
                need: path.len() as u64,
                capacity: u64::from(capacity),
            });
        }
        let mut refused = None;
        for to in below().filter(|&to| self.tiers[to].pool().room() > 0) {
            let Some(costs) = self.save_cost(path, to) else {
                return Err(Error::Unsupported {
                    what: "kept requests that share a block",
                    value: u64::from(KeepCount::MOST),
                    help: "fetch and release some of them first",
                });
            };
            let mut tiers = self.tiers.below(Tier::DEVICE);
            match tiers.try_for_each(|tier| self.decide(tier, costs[tier.at()], 0).check()) {
                Ok(()) => return Ok(to),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(Tier::HOST), Err)
    }

    /// How many slots of each tier keeping a path takes, of which what is `None` is copied to `to`:
    /// with those that cannot be taken any more, because they are pinned or stand above what is, or is
    /// filling. `None`: too many keep one of them.
    fn save_cost(&self, path: &[Option<NodeIx>], to: Tier) -> Option<[u64; MAX_TIERS]> {
        let mut costs = [0; MAX_TIERS];
        let mut above = [false; MAX_TIERS];
        for &node in path.iter().rev() {
            if !self.config.linked {
                above = [false; MAX_TIERS];
            }
            let Some(node) = node else {
                costs[to.at()] += 1;
                above = [false; MAX_TIERS];
                above[to.at()] = true;
                continue;
            };
            let keeps = self.trie[node].keeps.count();
            if keeps == KeepCount::MOST {
                return None;
            }
            let home = self.home_below(node).filter(|_| keeps == 0);
            for tier in self.tiers.below(Tier::DEVICE) {
                let slot = self.trie.slot(node, tier);
                let pinned = home == Some(tier) && self.ready(node, tier).is_some();
                above[tier.at()] = slot.is_some() && (above[tier.at()] || pinned);
                let taken = above[tier.at()] && slot.is_some_and(|slot| self.takeable(tier, slot));
                costs[tier.at()] += u64::from(taken);
            }
        }
        Some(costs)
    }

    /// Copies of these blocks on a tier are lost, or their end is unknown. Where the device is the
    /// engine's there is no other of a block whose home the tier is: the requests that keep it keep
    /// only what is before it, and of a set nothing.
    pub(super) fn cut_kept(&mut self, blocks: impl Iterator<Item = Id<NodeIx>>, tier: Tier) {
        if !self.config.engine {
            return;
        }
        let lost = blocks.filter_map(|id| self.trie.live(id));
        let lost: Vec<NodeIx> = lost.filter(|&node| self.keeps_at(node, tier) > 0).collect();
        if lost.is_empty() {
            return;
        }
        let cut = |parked: &Parked| parked.path.iter().position(|node| lost.contains(node));
        let cuts = self.parked.iter();
        let cuts: Vec<_> = cuts
            .filter_map(|(index, parked)| Some((index, cut(parked)?)))
            .collect();
        for (index, at) in cuts {
            if at == 0 || !self.config.linked {
                self.break_keep(index);
                continue;
            }
            self.unkeep_from(index, at);
            let tokens = at as u64 * u64::from(self.config.block_size);
            self.parked[index].computed = tokens;
        }
    }
}
