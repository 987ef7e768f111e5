//! Blocks that one event tells together, and the snapshot, which is all of them.

use super::{Clears, MEDIA, Mirror, NO_PLACE, PARENT};
use crate::events::{Batch, Extra, Head};

/// Blocks that one event can tell together.
#[derive(Default, Debug)]
pub(super) struct Run {
    pub(super) kind: Kind,
    pub(super) tier: u8,
    /// Of stored blocks.
    places: Vec<u32>,
    pub(super) numbers: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Kind {
    #[default]
    Stored,
    Removed,
}

impl Mirror {
    /// All that is known, as one batch for whoever knows nothing: a clear, unless others tell of blocks
    /// of this rank too, and on each tier every block behind its parent.
    pub(crate) fn snapshot(&mut self, batch: &mut Batch) {
        self.heard.snapshots += 1;
        let heard = self.heard;
        if self.clears == Clears::All {
            batch.cleared();
        }
        let order = self.parents_first();
        for tier in 0..8 {
            for &place in &order {
                if self.places[place as usize].told & 1 << tier != 0 {
                    self.write(place, tier, batch);
                }
            }
        }
        self.flush(batch);
        self.heard = heard;
    }

    /// Blocks that are somewhere, each behind its parent and before what follows another.
    pub(super) fn parents_first(&self) -> Vec<u32> {
        let mut child = vec![NO_PLACE; self.places.len()];
        let mut sibling = vec![NO_PLACE; self.places.len()];
        let mut roots = Vec::new();
        for (at, place) in self.places.iter().enumerate().rev() {
            if place.told == 0 {
                continue;
            }
            match self.places.get(place.above as usize) {
                Some(above) if above.told != 0 && above.number == place.parent => {
                    sibling[at] = child[place.above as usize];
                    child[place.above as usize] = at as u32;
                }
                _ => roots.push(at as u32),
            }
        }
        let mut order = Vec::with_capacity(self.places.len());
        while let Some(mut at) = roots.pop() {
            while at != NO_PLACE {
                order.push(at);
                if sibling[at as usize] != NO_PLACE {
                    roots.push(sibling[at as usize]);
                }
                at = child[at as usize];
            }
        }
        order
    }

    /// Adds a block to the run, or to a new one.
    pub(super) fn write(&mut self, at: u32, tier: u8, batch: &mut Batch) {
        let (place, run) = (self.places[at as usize], &self.run);
        let last = run.places.last().map(|&last| self.places[last as usize]);
        let follows = last.is_some_and(|last| {
            run.kind == Kind::Stored
                && run.tier == tier
                && place.flags & PARENT != 0
                && last.number == place.parent
                && last.origin == place.origin
        });
        if !follows {
            self.flush(batch);
            (self.run.kind, self.run.tier) = (Kind::Stored, tier);
        }
        self.run.places.push(at);
        self.run.numbers.push(place.number);
        self.heard.stored += 1;
    }

    /// Writes the run as an event.
    pub(super) fn flush(&mut self, batch: &mut Batch) {
        if self.run.numbers.is_empty() {
            return;
        }
        match self.run.kind {
            Kind::Removed => batch.removed(self.run.tier, &self.run.numbers),
            Kind::Stored => self.flush_stored(batch),
        }
        self.run.places.clear();
        self.run.numbers.clear();
    }

    fn flush_stored(&self, batch: &mut Batch) {
        let run = &self.run;
        let (size, first) = (
            self.block_size as usize,
            self.places[run.places[0] as usize],
        );
        let origin = self.origins.get(first.origin);
        let head = Head {
            parent: (first.flags & PARENT != 0).then_some(first.parent),
            tier: run.tier,
            block_size: self.block_size,
            lora: origin.lora.as_deref(),
            salt: origin.salt.as_deref(),
        };
        let tokens = run.places.iter().map(|&at| {
            let start = at as usize * size;
            &self.tokens[start..start + size]
        });
        let has = |&at: &u32| self.places[at as usize].flags & MEDIA != 0;
        if !run.places.iter().any(has) {
            return batch.stored(&head, &run.numbers, tokens, None);
        }
        let own = |at: &u32| self.extras.get(at).cloned().unwrap_or_default();
        let extras: Vec<Vec<Extra>> = run.places.iter().map(own).collect();
        batch.stored(&head, &run.numbers, tokens, Some(&extras));
    }
}
