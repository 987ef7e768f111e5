//! What the blocks of a sequence have besides their tokens: an adapter, a salt, media items.

use super::Salts;
use crate::extras::Extras;
use crate::wire::Extra;
use std::collections::BTreeMap;

/// An adapter and a salt that sequences have in common.
#[derive(Default, Debug)]
pub(super) struct Apart {
    pub(super) lora: Option<String>,
    pub(super) salt: Option<String>,
}

/// The adapter and the salt, as they were given.
type Given = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Every adapter with every salt that was heard of, once.
pub(super) struct Origins {
    all: Vec<Apart>,
    interned: BTreeMap<Given, u32>,
}

/// What has neither.
pub(super) const PLAIN: u32 = 0;

impl Origins {
    pub(super) fn new() -> Self {
        Self {
            all: vec![Apart::default()],
            interned: BTreeMap::new(),
        }
    }

    pub(super) fn get(&self, origin: u32) -> &Apart {
        &self.all[origin as usize]
    }

    /// The number of an origin. A salt that nobody is told need not be kept.
    pub(super) fn intern(&mut self, origin: &Extras, salts: Salts) -> u32 {
        let salt = origin.salt.clone().filter(|_| salts == Salts::Tell);
        let given = (origin.lora.clone(), salt);
        if given == (None, None) {
            return PLAIN;
        }
        let (next, all) = (self.all.len() as u32, &mut self.all);
        *self.interned.entry(given).or_insert_with_key(|given| {
            all.push(Apart {
                lora: given.0.as_deref().map(text),
                salt: given.1.as_deref().map(text),
            });
            next
        })
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
