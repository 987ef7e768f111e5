//! Void: what was forgotten is taken off tiers that know more than the yard, by flights without copies.

use super::State;
use super::forget::{Condemned, Family};
use crate::base::{Key, NodeIx, Tier};
use crate::copies::{Plan, Purpose};
use crate::tiers::FORGOTTEN;
use std::collections::BTreeSet;
use std::collections::btree_map::Entry;

impl State {
    /// Has keyed tiers void the records of what is forgotten, of all that stands on it there, and of what
    /// stands on nothing there and is not known here: it may be of blocks that were evicted. A key that stays has [`Key::UNKNOWN`] for its parent, any other [`Key::NO_PARENT`].
    pub(super) fn void_records(
        &mut self,
        what: Condemned<'_>,
        Family { all, unnamed, .. }: &Family,
        spared: &[NodeIx],
        tops: &[(Tier, Key)],
    ) -> Vec<Plan> {
        let mut plans = Vec::new();
        for tier in self.tiers.below(Tier::DEVICE) {
            if !self.config.keyed[tier.at()] {
                continue;
            }
            if tier == Tier::REMOTE {
                let keys = self.keys_to_delete(what, all, spared);
                if !keys.is_empty() {
                    plans.push(self.launch_void(tier, keys, Vec::new()));
                }
                continue;
            }
            let mut keys = match what {
                Condemned::Keys(keys) => keys.to_vec(),
                Condemned::Root(root) => vec![root],
            };
            // What the tier has of the rest stands there on one of these.
            let first = |&&node: &&NodeIx| {
                !self.trie.parent(node).is_some_and(|above| {
                    self.trie[above].epoch == FORGOTTEN && self.trie.slot(above, tier).is_some()
                })
            };
            keys.extend(
                unnamed
                    .iter()
                    .filter(first)
                    .map(|&node| self.trie[node].key),
            );
            let (named, mut parents) = (keys.len(), Vec::new());
            keys.extend(spared.iter().map(|&node| self.trie.carried_key(node)));
            let tops = tops.iter().filter(|&&(on, _)| on == tier);
            keys.extend(
                tops.map(|&(_, key)| key)
                    .filter(|key| self.trie.find(key).is_some()),
            );
            if keys.len() > named {
                parents.resize(named, Key::NO_PARENT);
                parents.resize(keys.len(), Key::UNKNOWN);
            }
            if !keys.is_empty() {
                plans.push(self.launch_void(tier, keys, parents));
            }
        }
        plans
    }

    /// What is deleted in the stores: what was named, known here or not, and what of this yard is forgotten
    /// with it. A store cannot say what stands on what, so that nothing else is reached there.
    fn keys_to_delete(&self, what: Condemned<'_>, all: &[NodeIx], spared: &[NodeIx]) -> Vec<Key> {
        let named = match what {
            Condemned::Keys(keys) => keys,
            Condemned::Root(_) => &[],
        };
        let own = all.iter().map(|&node| &self.trie[node]);
        let own = own
            .filter(|block| !block.is_anonymous())
            .map(|block| block.key);
        let kept: BTreeSet<Key> = spared.iter().map(|&node| self.trie[node].key).collect();
        let mut told = BTreeSet::new();
        let keys = named.iter().copied().chain(own);
        keys.filter(|key| !kept.contains(key) && told.insert(*key))
            .collect()
    }

    fn launch_void(&mut self, tier: Tier, keys: Vec<Key>, parents: Vec<Key>) -> Plan {
        if tier == Tier::REMOTE {
            for &key in &keys {
                *self.deleting.entry(key).or_default() += 1;
            }
        }
        let flight = self.open_flight(tier, tier, Purpose::Void);
        let number = self.counters.flights;
        let record = &mut self.flights[flight];
        (record.waits, record.launched) = (Some(number), number);
        (record.keys, record.parents) = (keys, parents);
        self.counters.flights += 1;
        self.plan_of(flight)
    }

    /// The records of a tier were voided, or a rank has not: then it is asked again.
    pub(super) fn end_void(&mut self, tier: Tier, keys: &[Key], parents: &[Key], good: usize) {
        if tier == Tier::REMOTE {
            for key in keys {
                if let Entry::Occupied(mut flights) = self.deleting.entry(*key) {
                    *flights.get_mut() -= 1;
                    if *flights.get() == 0 {
                        flights.remove();
                    }
                }
            }
        }
        if good < keys.len() {
            self.launch_void(tier, keys.to_vec(), parents.to_vec());
        }
    }

    /// Flights by which records are voided, and which have not ended.
    pub(super) fn voiding(&self) -> u64 {
        let flights = self.flights.iter();
        flights
            .filter(|(_, flight)| flight.purpose == Purpose::Void)
            .count() as u64
    }
}
