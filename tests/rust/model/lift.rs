//! How a prefix comes nearer ahead of a request, to a tier below the device; and what a tier that
//! outlives the yard is told to have.

use crate::act::pick;
use crate::names::REMOTE;
use crate::ops::{Prompt, Slip};
use crate::world::World;
use crate::yard::{Block, DEVICE, Purpose, What, Yard};
use blockyard_core::{Error, Key, Outcome, Plan, Result, State, Tier};

/// No parent, and no key.
const NONE: Key = Key([0; 32]);

/// What a restore is told: its rows.
struct Rows {
    slots: Vec<u32>,
    keys: Vec<Key>,
    parents: Vec<Key>,
}

impl Yard {
    pub(crate) fn lift(
        &mut self,
        state: &State,
        keys: &[Key],
        most: usize,
        to: usize,
        answer: &Result<Vec<Plan>>,
    ) {
        if to >= self.tiers || self.size(to) == 0 {
            return assert!(matches!(answer, Err(Error::Argument { .. })), "{answer:?}");
        }
        let plans = answer.as_ref().expect("a tier with slots");
        let (path, _) = self.walk(keys);
        let idle = |block: &Block| self.ready(*block, to).filter(|&slot| self.idle(to, slot));
        let own: Vec<u32> = path.iter().filter_map(idle).collect();
        let lies_below =
            |block: &Block| self.blocks[*block].slots[..=to].iter().all(Option::is_none);
        let wanted: Vec<Block> = path.into_iter().filter(lies_below).take(most).collect();
        // What found no room made the core look no further, so that all of them share the room.
        let free = self.free(to);
        let gone = self.see_evictions(state, to);
        let copied: usize = plans.iter().map(Plan::len).sum();
        assert_eq!(
            gone,
            (copied as u64).saturating_sub(free),
            "evicted for {plans:?}"
        );
        for slot in own {
            assert!(
                self.slots[to].contains_key(&slot),
                "it made room for its own path"
            );
        }
        let sources: Vec<usize> = wanted
            .iter()
            .filter_map(|&block| self.source(block))
            .collect();
        assert_eq!(sources.len(), wanted.len());
        let (mut blocks, mut tiers) = (&wanted[..], &sources[..]);
        for plan in plans {
            let run = tiers
                .chunk_by(|one, other| one == other)
                .next()
                .map_or(0, <[usize]>::len);
            let len = plan.len();
            assert!(len == run || (len < run && blocks.len() + copied - wanted.len() == len));
            let moves = self.sources(tiers[0], &blocks[..len]);
            self.fly(plan, tiers[0], to, Purpose::Lift, moves);
            (blocks, tiers) = (&blocks[len..], &tiers[len..]);
        }
        if let Some((&block, &from)) = blocks.first().zip(tiers.first()) {
            assert!(
                !self.has_room(block, from, to),
                "block {block} was passed over"
            );
        }
    }

    fn restore(&mut self, tier: usize, rows: &Rows, answer: &Result<()>) {
        let Rows {
            slots,
            keys,
            parents,
        } = rows;
        let used = self.used || (0..self.blocks.len()).any(|block| self.alive(block));
        let twice = |at: usize| slots[..at].contains(&slots[at]) || keys[..at].contains(&keys[at]);
        let wrong = tier == DEVICE
            || tier == REMOTE
            || tier >= self.tiers
            || used
            || keys.len() != slots.len()
            || parents.len() != slots.len()
            || (0..slots.len()).any(twice)
            || slots.iter().any(|&slot| !self.stays(tier, slot))
            || keys.contains(&NONE)
            || (0..keys.len()).any(|row| in_a_circle(keys, parents, row));
        if wrong {
            let refused = matches!(answer, Err(Error::Argument { .. } | Error::State { .. }));
            return assert!(refused, "{answer:?}");
        }
        assert_eq!(answer, &Ok(()));
        self.used = !keys.is_empty();
        let first = self.blocks.len();
        for (&key, &slot) in keys.iter().zip(slots) {
            let block = self.add(Some(key), None);
            self.blocks[block].slots[tier] = Some(slot);
            self.take(tier, slot, What::Ready(block));
        }
        for (row, parent) in parents.iter().enumerate().filter(|row| *row.1 != NONE) {
            let known = keys.iter().position(|key| key == parent);
            // One that is not there is as good as one that was dropped.
            let above = known.map_or_else(|| self.add(None, None), |known| first + known);
            self.blocks[first + row].parent = Some(above);
        }
    }
}

/// Whether a row is among those above it.
fn in_a_circle(keys: &[Key], parents: &[Key], row: usize) -> bool {
    let mut at = row;
    for _ in keys {
        let Some(above) = keys.iter().position(|key| *key == parents[at]) else {
            return false;
        };
        if above == row {
            return true;
        }
        at = above;
    }
    false
}

impl World {
    pub(crate) fn promote(&mut self, prompt: Prompt, blocks: u8, to: usize) -> bool {
        let chain = self.chain(prompt);
        let mut state = self.cache.lock();
        let answer = state.promote(chain.keys(), u32::from(blocks), Tier(to));
        if to == DEVICE {
            self.yard
                .promote(&state, chain.keys(), blocks as usize, &answer);
        } else {
            self.yard
                .lift(&state, chain.keys(), blocks as usize, to, &answer);
        }
        drop(state);
        self.in_flight.extend(answer.iter().flatten().cloned());
        answer.is_err()
    }

    /// Brings a prompt to the device, and loses a block of it on the host.
    pub(crate) fn spoil(&mut self, prompt: Prompt, at: u8, backwards: bool) -> bool {
        let first = self.in_flight.len();
        if self.promote(prompt, 40, DEVICE) {
            return true;
        }
        let mut spoiled = false;
        let plans = self.in_flight[first..].to_vec();
        let outcome = |plan: &Plan| {
            if plan.from != Tier::HOST || std::mem::replace(&mut spoiled, true) {
                return plan.whole();
            }
            // Mostly near the beginning, so that there are many of them in a prefix.
            let at = if at < 192 { 1 + at % 3 } else { at };
            Outcome::corrupt(plan.flight, u32::from(at) % plan.len() as u32)
        };
        let mut outcomes: Vec<Outcome> = plans.iter().map(outcome).collect();
        if backwards {
            outcomes.reverse();
        }
        self.land_all(&outcomes);
        false
    }

    pub(crate) fn restore(&mut self, tier: u8, rows: &[(Prompt, u8)], slip: Slip) -> bool {
        let tier = if slip == Slip::Device {
            DEVICE
        } else {
            usize::from(tier)
        };
        let limit = self.yard.limits.get(tier).copied().unwrap_or(1);
        let (slots, keys, parents) = (Vec::new(), Vec::new(), Vec::new());
        let mut told = Rows {
            slots,
            keys,
            parents,
        };
        for &(prompt, depth) in rows {
            let chain = self.chain(prompt);
            let Some(at) = pick(chain.keys(), depth) else {
                continue;
            };
            let whole = 0..chain.keys().len();
            let blocks: Vec<usize> = match depth {
                ..128 => vec![at],
                128..192 => whole.collect(),
                192.. => whole.rev().collect(),
            };
            for at in blocks {
                told.add(chain.keys(), at, limit);
            }
        }
        told.slip(slip, limit);
        let Rows {
            slots,
            keys,
            parents,
        } = &told;
        let answer = self.cache.lock().restore(Tier(tier), slots, keys, parents);
        self.yard.restore(tier, &told, &answer);
        answer.is_err()
    }
}

impl Rows {
    /// The block at this depth, if it is not among them and there is a slot for it.
    fn add(&mut self, chain: &[Key], at: usize, limit: u32) {
        if self.keys.contains(&chain[at]) || self.keys.len() == limit as usize {
            return;
        }
        // Every other slot first.
        let (row, half) = (self.keys.len() as u32, limit.div_ceil(2));
        let odd = row >= half;
        let slot = if odd { (row - half) * 2 + 1 } else { row * 2 };
        self.slots.push(slot);
        self.keys.push(chain[at]);
        let above = at.checked_sub(1).map(|above| chain[above]);
        self.parents.push(above.unwrap_or(NONE));
    }

    /// Makes the mistake, if there are rows enough to make it in.
    fn slip(&mut self, slip: Slip, limit: u32) {
        let Some(last) = self.keys.len().checked_sub(1) else {
            return;
        };
        match slip {
            Slip::None | Slip::Device => {}
            Slip::SlotTwice => self.slots[last] = self.slots[0],
            Slip::SlotBeyond => self.slots[last] = limit,
            Slip::KeyTwice => self.keys[last] = self.keys[0],
            Slip::NoKey => self.keys[last] = NONE,
            Slip::Lengths => self.parents.truncate(last),
            Slip::Circle => {
                self.parents[last] = self.keys[0];
                self.parents[0] = self.keys[last];
            }
        }
    }
}
