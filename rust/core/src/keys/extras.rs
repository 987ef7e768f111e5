//! What besides its tokens decides about a sequence's keys: adapter, salt, media items.

use super::hash::{Frame, Piece, put_bytes};
use crate::base::{Error, Key, Read, Reader, Result};
use std::fmt;
use std::sync::Arc;

/// A media item that stands for the tokens of the range `[start, end)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Media {
    /// Position in the sequence of the item's first token.
    pub start: u64,
    /// Position behind the item's last token.
    pub end: u64,
    /// What the item is, usually a hash of its contents, as its placeholder tokens are always alike.
    pub id: Vec<u8>,
}

/// What besides the tokens decides the KV of a sequence, or which sequences may share it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Extras {
    /// The adapter the sequence runs with.
    pub lora: Option<Vec<u8>>,
    /// A tenant's salt: only sequences with the same salt share blocks.
    pub salt: Option<Vec<u8>>,
    /// Media items in the order of their positions, no token in two of them.
    pub media: Vec<Media>,
}

/// Shows that there is a salt, but not its value: with it, a reader of logs could ask for the
/// tenant's keys.
impl fmt::Debug for Extras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extras")
            .field("lora", &self.lora)
            .field("salt", &self.salt.as_ref().map(|_| format_args!("…")))
            .field("media", &self.media)
            .finish()
    }
}

/// A sequence's media items, with the place of the first that does not end before the next block.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    items: Arc<[Media]>,
    next: usize,
}

impl Cursor {
    /// A cursor before the first item.
    ///
    /// # Errors
    /// `Argument` if an item is empty, ends beyond 2^63 - 1, or starts before the end of the item
    /// before it.
    pub(crate) fn new(items: Vec<Media>) -> Result<Self> {
        check_media(&items)?;
        Ok(Self {
            items: items.into(),
            next: 0,
        })
    }

    /// Where it is, to go back to.
    pub(crate) fn place(&self) -> usize {
        self.next
    }

    pub(crate) fn go_back(&mut self, place: usize) {
        self.next = place;
    }

    /// Seals the block at the positions `block` and steps over the items that end in it.
    pub(crate) fn seal(&mut self, frame: &mut Frame, block: std::ops::Range<u64>) -> Key {
        let ahead = &self.items[self.next..];
        // Items are sorted and disjoint, and none ends before the block: the first few are over it.
        let over = ahead
            .iter()
            .take_while(|item| item.start < block.end)
            .count();
        if over == 0 {
            return frame.seal();
        }
        let pieces = &ahead[..over];
        self.next += pieces.iter().filter(|item| item.end <= block.end).count();
        frame.seal_over(pieces.iter().map(|item| Piece {
            id: &item.id,
            // Both are below 2^63: the item's end was checked, and the block starts before it.
            offset: item.start.cast_signed() - block.start.cast_signed(),
            length: item.end - item.start,
        }))
    }
}

fn check_media(media: &[Media]) -> Result<()> {
    let mut before: Option<&Media> = None;
    for item in media {
        let (start, end) = (item.start, item.end);
        if start >= end {
            let help = "an item has at least one token: start < end";
            return Err(Error::argument("media", format!("[{start}, {end})"), help));
        }
        if i64::try_from(end).is_err() {
            let help = "an item ends at a position below 2^63";
            return Err(Error::argument("media", format!("[{start}, {end})"), help));
        }
        if let Some(left) = before.filter(|left| left.end > start) {
            let value = format!("[{}, {}) before [{start}, {end})", left.start, left.end);
            return Err(Error::argument(
                "media",
                value,
                "sort items by start; no two share a token",
            ));
        }
        before = Some(item);
    }
    Ok(())
}

impl Media {
    fn write(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.start.to_le_bytes());
        into.extend_from_slice(&self.end.to_le_bytes());
        put_bytes(into, &self.id);
    }

    fn read(reader: &mut Reader<'_>) -> Read<Self> {
        Ok(Self {
            start: reader.number()?,
            end: reader.number()?,
            id: reader.bytes()?,
        })
    }

    fn write_all(all: &[Self], into: &mut Vec<u8>) {
        into.extend_from_slice(&(all.len() as u64).to_le_bytes());
        for item in all {
            item.write(into);
        }
    }

    fn read_all(reader: &mut Reader<'_>) -> Read<Vec<Self>> {
        // Each takes some bytes, so that a count that is none ends soon.
        (0..reader.count()?).map(|_| Self::read(reader)).collect()
    }
}

impl Cursor {
    /// All items, as bytes.
    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        Media::write_all(&self.items, into);
    }

    /// Back from [`Self::write`], behind `tokens` tokens of full blocks.
    pub(crate) fn read(reader: &mut Reader<'_>, tokens: u64) -> Read<Self> {
        let items = Media::read_all(reader)?;
        let next = items.iter().take_while(|item| item.end <= tokens).count();
        let cursor = Self::new(items).map_err(|_| "their media items are in no order")?;
        Ok(Self { next, ..cursor })
    }
}

impl Extras {
    /// As bytes, the salt among them.
    pub(crate) fn write(&self, into: &mut Vec<u8>) {
        for part in [&self.lora, &self.salt] {
            into.push(u8::from(part.is_some()));
            if let Some(bytes) = part {
                put_bytes(into, bytes);
            }
        }
        Media::write_all(&self.media, into);
    }

    /// Back from [`Self::write`].
    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let mut part = || reader.flag()?.then(|| reader.bytes()).transpose();
        let (lora, salt) = (part()?, part()?);
        let media = Media::read_all(reader)?;
        Ok(Self { lora, salt, media })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_is_not_told() {
        let extras = Extras {
            salt: Some(b"secret".to_vec()),
            ..Extras::default()
        };
        assert_eq!(
            format!("{extras:?}"),
            "Extras { lora: None, salt: Some(…), media: [] }"
        );
    }
}
