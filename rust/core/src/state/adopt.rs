//! Adopt: blocks are said to be in a store that engines share. Their names are published, and no bytes
//! move. It adds knowledge only: above the names it moves, frees and evicts nothing (law 35c).

use super::State;
use super::offload::{Above, Known};
use crate::base::{Class, Error, Id, Ix as _, Key, Link, NodeIx, Result, SlotIx, Tier};
use crate::collections::Gap;
use crate::copies::{Flight, Plan, Purpose};
use crate::evict::Evictability;
use crate::tiers::Hold;

impl State {
    /// Publishes the leading blocks of a path as being on a tier whose slots are names. What is on any tier
    /// already, or on its way there, is linked and counted, and gets no name. Where no slot is free the tier's
    /// next victims go, never a block of the path; where there is no room, fewer are adopted. It ends at a key
    /// that contradicts what is known, and at one whose value is being deleted since it was forgotten. `root`:
    /// what the sequence stands on, as [`Self::name_root`] has it.
    ///
    /// Of a set each block is adopted that can be, and none ends it.
    ///
    /// Returns how many of the leading blocks there are now, whatever tiers they are on; of a set, how many of
    /// all. It takes time in proportion to the keys.
    ///
    /// # Errors
    /// `Argument` for a tier that is not there, that is not [`Tier::REMOTE`], or that is not keyed.
    pub fn adopt(&mut self, keys: &[Key], root: Option<Key>, tier: Tier) -> Result<u32> {
        self.check_names(tier)?;
        let path = self.adoptable(keys);
        let leading = if path.iter().any(|(_, known)| known.is_err()) {
            self.adopt_new(keys, &path, tier)
        } else {
            let known = path.iter().filter_map(|(_, known)| known.ok());
            known.map(|node| (node, false)).collect()
        };
        if std::mem::take(&mut self.scratch.loose) {
            let nodes: Vec<NodeIx> = leading.iter().map(|&(node, _)| node).collect();
            self.reach(&nodes);
        }
        self.roots.ready |= root.is_none();
        if let Some(root) = root.filter(|&root| root != Key::NO_PARENT && self.config.linked)
            && let Some(&(first, _)) = leading.first()
            && self.trie.root(first) != Some(root)
        {
            self.trie.set_root(first, root);
        }
        Ok(leading.len() as u32)
    }

    /// Drops the names of these blocks on a tier, and nothing else: not what loads, is kept, or is on its way
    /// there, nor what others there stand on that stay (law 33). Of a path that is named from some block on,
    /// the last goes first. Returns how many have gone. It takes time in proportion to the keys.
    ///
    /// # Errors
    /// As [`Self::adopt`].
    pub fn forget_names(&mut self, keys: &[Key], tier: Tier) -> Result<u32> {
        self.check_names(tier)?;
        let found = keys.iter().filter_map(|key| self.trie.find(key));
        let mut named: Vec<NodeIx> = found.collect();
        let order: Vec<Id<NodeIx>> = named.iter().rev().map(|&node| self.trie.id(node)).collect();
        named.sort_unstable();
        let mut dropped = 0;
        for id in order {
            // The ones above wait for this one, if it was named behind them.
            let mut next = self.trie.live(id);
            while let Some(node) = next
                && let Some(slot) = self.trie.slot(node, tier)
                && self.is_idle_leaf(tier, slot)
            {
                let above = self.staying_above(node, tier);
                self.drop_name(node, tier, slot);
                dropped += 1;
                next = above.filter(|above| named.binary_search(above).is_ok());
            }
        }
        Ok(dropped)
    }

    /// The nearest block above that does not leave the tier by itself, where that has shrunk.
    fn staying_above(&self, node: NodeIx, tier: Tier) -> Option<NodeIx> {
        let stays = |slot| self.tiers[tier].pool().stays(slot);
        let mut above =
            std::iter::successors(self.trie.parent(node), |&node| self.trie.parent(node));
        above.find(|&node| self.trie.slot(node, tier).is_none_or(stays))
    }

    fn drop_name(&mut self, node: NodeIx, tier: Tier, slot: SlotIx) {
        self.pin(tier, slot);
        self.detach(node, tier);
        self.tiers[tier].free(slot);
        self.remove_if_gone(node);
    }

    /// A tier whose slots are names.
    fn check_names(&self, tier: Tier) -> Result<()> {
        self.tiers.below_device(tier)?;
        let help = match tier {
            Tier::REMOTE if self.config.keyed[tier.at()] => return Ok(()),
            Tier::REMOTE => "its plans carry no keys: make the cache with keyed=(\"remote\",)",
            _ => "a block is there by its slot: only of \"remote\" a key says where it is",
        };
        Err(Error::argument("tier", tier.name(), help))
    }

    /// The leading blocks of a path that may be adopted, with their places among the keys: those that are
    /// known, linked, and the tags of the others.
    fn adoptable(&mut self, keys: &[Key]) -> Vec<(usize, Known)> {
        let linked = self.config.linked;
        let mut path = Vec::with_capacity(keys.len());
        let mut tags = std::mem::take(&mut self.scratch.tags);
        self.trie.warm(keys.iter(), &mut tags);
        self.scratch.loose = false;
        let mut above = Above::Root;
        for (at, (key, &tag)) in keys.iter().zip(&tags).enumerate() {
            let node = self.trie.seek(key, tag).map_err(|_| tag);
            let may = match node {
                Ok(node) => self.leads_to(node, above),
                Err(_) => !key.is_reserved() && !self.deleting.contains_key(key),
            };
            if may {
                path.push((at, node));
                above = self.behind(node.ok());
            } else if linked {
                break;
            }
        }
        self.scratch.tags = tags;
        path
    }

    /// Whether a known block may stand behind this one; an orphan is linked to it, unless a promise could lose
    /// its backing by that.
    fn leads_to(&mut self, node: NodeIx, above: Above) -> bool {
        if !self.stands_on(node, above) {
            return false;
        }
        if above == Above::Root || self.trie.parent(node).is_some() {
            return true;
        }
        self.scratch.loose = true;
        !self.is_read(node) && (above == Above::Gone || self.link(node, above.block()))
    }

    /// Gives names to what of a path is not known, as far as there is room. Leaves the blocks that lead, and
    /// for each whether it is new.
    fn adopt_new(
        &mut self,
        keys: &[Key],
        path: &[(usize, Known)],
        tier: Tier,
    ) -> Vec<(NodeIx, bool)> {
        // What is there of the path already is no room for it.
        let own = path.iter().filter_map(|(_, known)| known.ok());
        let own: Vec<(NodeIx, SlotIx)> = own
            .filter_map(|node| Some((node, self.ready(node, tier)?)))
            .collect();
        for &(node, slot) in own.iter().rev() {
            self.mark_block(node, tier, slot);
        }
        let new = path.iter().filter(|(_, known)| known.is_err()).count();
        let room = self.tiers[tier].ledger().available().max(0);
        let most = usize::try_from(room).map_or(new, |room| room.min(new));
        self.make_room(tier, most as u32);
        let leading = self.name_path(keys, path, tier, most);
        for &(_, slot) in own.iter().rev() {
            self.unmark(tier, slot);
        }
        self.order_names(tier, &leading);
        for &(_, slot) in own.iter().rev() {
            self.retire(tier, slot);
        }
        self.emit_adopted(&leading);
        leading
    }

    /// Makes the blocks of a path that are not known, so many at most, which have room.
    fn name_path(
        &mut self,
        keys: &[Key],
        path: &[(usize, Known)],
        tier: Tier,
        mut most: usize,
    ) -> Vec<(NodeIx, bool)> {
        let linked = self.config.linked;
        let mut leading: Vec<(NodeIx, bool)> = Vec::with_capacity(path.len());
        let mut above = Above::Root;
        for &(at, known) in path {
            let known =
                known.or_else(|tag| self.trie.seek(&keys[at], tag).map_err(|gap| (tag, gap)));
            let next = match known {
                // It comes twice, or was linked to another meanwhile.
                Ok(node) if linked && !self.link(node, above.block()) => None,
                Ok(node) => Some((node, false)),
                Err(_) if most == 0 => None,
                Err((_, gap)) => {
                    most -= 1;
                    Some((self.name_one(above, (&keys[at], gap), tier), true))
                }
            };
            match next {
                Some(block) => {
                    leading.push(block);
                    above = self.behind(Some(block.0));
                }
                None if linked => break,
                None => {}
            }
        }
        leading
    }

    fn name_one(&mut self, above: Above, key: (&Key, Gap), tier: Tier) -> NodeIx {
        let node = self.new_block(above, Some(key));
        if let Some(parent) = above.block() {
            // No more than what it stands on.
            self.trie[node].class = self.trie[parent].class.min(Class::Ordinary);
        }
        if let Some(slot) = self.tiers[tier].take_name(Link::to(node)) {
            self.trie.residency_mut(node, tier).slot = Some(Link::to(slot));
            self.count_child(node, tier, false);
        }
        node
    }

    /// Puts new names into the order of their tier, the last first; what is idle there of the path above them
    /// moves behind them.
    fn order_names(&mut self, tier: Tier, leading: &[(NodeIx, bool)]) {
        let mut run = std::mem::take(&mut self.scratch.victims);
        let (mut stand, mut moves) = (None, false);
        run.clear();
        for &(node, is_new) in leading.iter().rev() {
            let Some(slot) = self.trie.slot(node, tier) else {
                continue;
            };
            let own = is_new.then(|| (self.trie.class(node), self.evictability_of(tier, slot)));
            if own != stand {
                self.end_run(tier, &mut run, stand);
                stand = own;
            }
            moves |= is_new && self.config.linked;
            if is_new {
                run.push(slot);
            } else if moves && matches!(self.hold(tier, slot), Hold::Idle { .. }) {
                self.reorder(node, tier, slot);
            }
        }
        self.end_run(tier, &mut run, stand);
        self.scratch.victims = run;
    }

    /// Publishes a run of new names that stand alike, the last of which came first.
    fn end_run(&mut self, tier: Tier, run: &mut Vec<SlotIx>, stand: Option<(Class, Evictability)>) {
        run.reverse();
        self.tiers[tier].fill_path(run, stand, &self.usages);
        run.clear();
    }
}

/// Hits of unproven names.
impl State {
    /// A prompt has found blocks that these plans load: those that are there by hearsay are no hits until
    /// their loads are good.
    #[inline]
    pub(super) fn count_unproven(&mut self, plans: &[Plan]) {
        for plan in plans {
            if plan.from == Tier::REMOTE {
                self.note_unproven(plan);
            }
        }
    }

    #[cold]
    fn note_unproven(&mut self, plan: &Plan) {
        let own = &self.tiers[Tier::REMOTE];
        let is_unproven = |&(_, &slot): &(u32, &u32)| own.is_unproven(SlotIx::new(slot));
        let unproven: Vec<u32> = (0..)
            .zip(&plan.sources)
            .filter(is_unproven)
            .map(|(at, _)| at)
            .collect();
        let flight = plan.flight.at();
        let tokens = self.found_by(self.flights[flight].purpose);
        self.counters.hits[Tier::REMOTE.at()] -= unproven.len() as u64;
        self.counters.cached -= tokens * unproven.len() as u64;
        self.flights[flight].unproven = unproven;
    }

    /// The leading `good` blocks of a flight from names, or to them, are there: what was said of them is so.
    #[cold]
    pub(super) fn prove(&mut self, flight: &Flight, good: usize) {
        let good = if flight.is_given_up() { 0 } else { good };
        let hits = flight.unproven.partition_point(|&at| (at as usize) < good);
        self.counters.hits[Tier::REMOTE.at()] += hits as u64;
        self.counters.cached += self.found_by(flight.purpose) * hits as u64;
        self.counters.unproven += (flight.unproven.len() - hits) as u64;
        for step in &flight.moves[..good.min(flight.moves.len())] {
            let slot = if flight.from == Tier::REMOTE {
                step.from
            } else {
                step.to
            };
            self.tiers[Tier::REMOTE].prove(slot);
        }
    }

    /// Tokens of a prompt whose KV each block of such a flight has.
    fn found_by(&self, purpose: Purpose) -> u64 {
        let size = u64::from(self.config.block_size);
        match purpose {
            Purpose::Up { .. } => size,
            // The last block of a full hit, whose last token is computed again.
            Purpose::Private { .. } => size - 1,
            _ => 0,
        }
    }
}
