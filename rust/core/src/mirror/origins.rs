//! What the blocks of a sequence have besides their tokens: an adapter, a salt, media items.

use super::Salts;
use crate::events::Extra;
use crate::keys::Extras;
use std::collections::BTreeMap;

/// An adapter and a salt that sequences have in common.
#[derive(Default, Debug)]
pub(super) struct Apart {
    pub(super) lora: Option<String>,
    pub(super) salt: Option<String>,
}

/// The adapter and the salt, as they were given.
type Given = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Every adapter with every salt that some block has, once.
pub(super) struct Origins {
    all: Vec<Kept>,
    interned: BTreeMap<Given, u32>,
    /// Numbers that no block has.
    free: Vec<u32>,
}

#[derive(Default)]
struct Kept {
    own: Apart,
    given: Given,
    blocks: u32,
}

/// What has neither.
pub(super) const PLAIN: u32 = 0;

impl Origins {
    pub(super) fn new() -> Self {
        Self {
            all: vec![Kept::default()],
            interned: BTreeMap::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn get(&self, origin: u32) -> &Apart {
        &self.all[origin as usize].own
    }

    /// A block has it: returns its number. A salt that nobody is told need not be kept.
    pub(super) fn hold(&mut self, origin: &Extras, salts: Salts) -> u32 {
        let salt = origin.salt.clone().filter(|_| salts == Salts::Tell);
        let given = (origin.lora.clone(), salt);
        if given == (None, None) {
            return PLAIN;
        }
        if let Some(&known) = self.interned.get(&given) {
            self.all[known as usize].blocks += 1;
            return known;
        }
        let own = Apart {
            lora: given.0.as_deref().map(text),
            salt: given.1.as_deref().map(text),
        };
        let next = self.free.pop().unwrap_or_else(|| {
            self.all.push(Kept::default());
            self.all.len() as u32 - 1
        });
        self.interned.insert(given.clone(), next);
        self.all[next as usize] = Kept {
            own,
            given,
            blocks: 1,
        };
        next
    }

    /// A block has it no more: it is forgotten with its last one.
    pub(super) fn release(&mut self, origin: u32) {
        if origin == PLAIN {
            return;
        }
        let kept = &mut self.all[origin as usize];
        kept.blocks -= 1;
        if kept.blocks == 0 {
            self.interned.remove(&std::mem::take(kept).given);
            self.free.push(origin);
        }
    }

    /// How many there are beside the plain one.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.interned.len()
    }
}

/// What the key of the block at these positions has besides, as vLLM says it: the salt in the first
/// block, and the media items that the block has a part of.
pub(super) fn extras_of(origin: &Extras, block: std::ops::Range<u64>) -> Vec<Extra> {
    let mut extras = Vec::new();
    for item in &origin.media {
        if item.start < block.end && item.end > block.start {
            // Both are below 2^63.
            let offset = item.start.cast_signed() - block.start.cast_signed();
            extras.push(Extra::Media(text(&item.id), offset));
        }
    }
    if let Some(salt) = origin.salt.as_deref().filter(|_| block.start == 0) {
        extras.push(Extra::Salt(text(salt)));
    }
    extras
}

/// Bytes as text: as they are, or as hexadecimal digits where they are none.
fn text(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let digits = b"0123456789abcdef";
    let pair = |byte: &u8| [digits[(byte >> 4) as usize], digits[(byte & 15) as usize]];
    bytes.iter().flat_map(pair).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::{Origins, PLAIN};
    use crate::keys::Extras;
    use crate::mirror::Salts;

    #[test]
    fn what_no_block_has_any_more_is_forgotten_and_its_number_is_given_again() {
        let mut origins = Origins::new();
        let salted = |number: u32| Extras {
            salt: Some(number.to_be_bytes().to_vec()),
            ..Extras::default()
        };
        assert_eq!(origins.hold(&salted(0), Salts::Hide), PLAIN);
        let first = origins.hold(&salted(0), Salts::Tell);
        assert_eq!(origins.hold(&salted(0), Salts::Tell), first);
        origins.release(first);
        assert_eq!(origins.len(), 1, "a block has it still");
        for number in 1..1000 {
            let other = origins.hold(&salted(number), Salts::Tell);
            origins.release(other);
        }
        origins.release(first);
        assert_eq!(origins.len(), 0);
        assert!(origins.all.len() <= 3, "numbers are given again");
    }
}
