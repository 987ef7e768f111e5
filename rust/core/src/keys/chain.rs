//! A chain: the keys of a sequence's full blocks, extended as its tokens arrive.
//!
//! The law: the keys depend on the tokens and the extras alone, not on how the tokens were cut into
//! calls. A chain keeps its keys and the tokens of the last, partial block; it drops all others.

use super::extras::{Cursor, Extras};
use super::hash::{Frame, Overwritten, Seed};
use crate::base::{Error, Key, Read, Reader, Result, memory};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Of a chain as bytes, with the version.
const MAGIC: &[u8; 2] = b"C3";

/// The keys of one sequence in one group; a fork is a clone.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Chain {
    tokens: u64,
    keys: Vec<Key>,
    /// Its tokens and its extras, where somebody is told of them.
    told: Option<Box<Spoken>>,
    block_size: u32,
    source: Source,
    /// What stands for the parent of its first block: [`Key::UNKNOWN`] where the engine has made keys.
    root: Key,
}

/// What a listener must know of a sequence that its keys do not say.
#[derive(Clone)]
struct Spoken {
    tokens: Vec<u32>,
    origin: Option<Arc<Extras>>,
}

/// Shows none of them.
impl fmt::Debug for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.tokens.len())
    }
}

/// Where a chain's keys come from.
#[derive(Clone, Debug)]
enum Source {
    Tokens { frame: Frame, media: Cursor },
    Engine,
}

/// A chain before tokens completed a block of it.
#[derive(Debug)]
pub(crate) struct Before {
    keys: usize,
    frame: Overwritten,
    media: usize,
}

impl Chain {
    /// An empty chain that makes its keys from tokens.
    ///
    /// # Errors
    /// `Argument` if the seed's block size is 0, or if a media item is empty, ends beyond
    /// 2^63 - 1, or starts before the end of the item before it.
    pub fn new(seed: &Seed, extras: Extras) -> Result<Self> {
        check_block_size(seed.block_size())?;
        let is_plain = extras.lora.is_none() && extras.salt.is_none();
        let root = seed.sequence_root(extras.lora.as_deref(), extras.salt.as_deref());
        let source = Source::Tokens {
            frame: Frame::new(seed, &seed.start(&root)),
            media: Cursor::new(extras.media)?,
        };
        Ok(Self {
            block_size: seed.block_size(),
            tokens: 0,
            keys: Vec::new(),
            source,
            root: if is_plain {
                Key::NO_PARENT
            } else {
                Key::of_root(&root)
            },
            told: None,
        })
    }

    /// A chain of `tokens` tokens whose keys the engine has made; isolation is then the engine's duty.
    ///
    /// # Errors
    /// `Argument` if the block size is 0 or there is not exactly one key per full block.
    pub fn ready(block_size: u32, keys: Vec<Key>, tokens: u64) -> Result<Self> {
        check_block_size(block_size)?;
        check_count(keys.len(), tokens / u64::from(block_size))?;
        Ok(Self {
            block_size,
            tokens,
            keys,
            source: Source::Engine,
            root: Key::UNKNOWN,
            told: None,
        })
    }

    /// A chain of the full blocks of this one: [`Self::extend`] goes on from there with the tokens
    /// behind them, whoever made the keys so far.
    ///
    /// # Errors
    /// `Argument` if the engine makes this chain's keys and has made none: nothing would tell its
    /// sequence from others.
    pub fn full_blocks(&self, seed: &Seed) -> Result<Self> {
        let source = match (&self.source, self.keys.last()) {
            (Source::Tokens { .. }, _) => self.source.clone(),
            (Source::Engine, Some(parent)) => Source::Tokens {
                frame: Frame::new(seed, parent),
                media: Cursor::new(Vec::new())?,
            },
            (Source::Engine, None) => {
                let help = "the engine has made no key of them: make keys of all their tokens";
                return Err(Error::argument("tokens", self.tokens, help));
            }
        };
        Ok(Self {
            block_size: self.block_size,
            tokens: self.keys.len() as u64 * u64::from(self.block_size),
            keys: self.keys.clone(),
            source,
            root: self.root,
            told: self.told_full_blocks(),
        })
    }

    fn told_full_blocks(&self) -> Option<Box<Spoken>> {
        let mut told = self.told.clone()?;
        told.tokens
            .truncate(self.keys.len() * self.block_size as usize);
        Some(told)
    }

    /// The same chain, still empty, but it keeps its tokens for a listener.
    #[must_use]
    pub(crate) fn telling(mut self, extras: Extras) -> Self {
        let origin = (extras != Extras::default()).then(|| Arc::new(extras));
        let tokens = Vec::new();
        self.told = Some(Box::new(Spoken { tokens, origin }));
        self
    }

    /// The tokens of some of its full blocks, and what its keys have besides; `None`: it keeps none.
    pub(crate) fn spoken(&self, blocks: Range<usize>) -> Option<(&[u32], &Option<Arc<Extras>>)> {
        let told = self.told.as_deref()?;
        let size = self.block_size as usize;
        let tokens = told.tokens.get(blocks.start * size..blocks.end * size)?;
        Some((tokens, &told.origin))
    }

    /// Appends tokens, and a key for every block that they fill.
    ///
    /// # Errors
    /// `Argument` if the engine makes this chain's keys, `Memory` where there is none for the new
    /// ones; nothing has changed then.
    #[inline]
    pub fn extend(&mut self, tokens: &[u32]) -> Result<()> {
        if self.fill(tokens) {
            return Ok(());
        }
        self.extend_blocks(tokens)
    }

    /// Appends tokens that fill no block, if they have room: in a step that decodes, those of most rows
    /// do. Otherwise nothing has changed.
    #[inline]
    pub(crate) fn fill(&mut self, tokens: &[u32]) -> bool {
        let filled = self.partial();
        let Source::Tokens { frame, .. } = &mut self.source else {
            return false;
        };
        let fills = frame.has_room(filled, tokens.len()) && self.told.is_none();
        if fills {
            frame.fill(filled, tokens);
            self.tokens += tokens.len() as u64;
        }
        fills
    }

    fn extend_blocks(&mut self, tokens: &[u32]) -> Result<()> {
        self.check_extend()?;
        self.reserve(tokens.len())?;
        let mut filled = self.partial();
        let Source::Tokens { frame, media } = &mut self.source else {
            return Ok(());
        };
        let block_size = self.block_size as usize;
        let mut rest = tokens;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(block_size - filled));
            frame.fill(filled, now);
            filled += now.len();
            rest = later;
            if filled == block_size {
                let start = self.keys.len() as u64 * u64::from(self.block_size);
                self.keys
                    .push(media.seal(frame, start..start + u64::from(self.block_size)));
                filled = 0;
            }
        }
        self.tokens += tokens.len() as u64;
        if let Some(told) = &mut self.told {
            told.tokens.extend_from_slice(tokens);
        }
        Ok(())
    }

    /// What [`Self::take_back`] needs to undo an [`Self::extend`] by `more` tokens: nothing where they
    /// complete no block.
    pub(crate) fn before(&self, more: usize) -> Option<Before> {
        let filled = self.partial();
        match &self.source {
            Source::Tokens { frame, media } if filled + more >= self.block_size as usize => {
                Some(Before {
                    keys: self.keys.len(),
                    frame: frame.before(filled, more),
                    media: media.place(),
                })
            }
            _ => None,
        }
    }

    /// Takes the last `tokens` tokens back, and the keys of the blocks that they completed.
    pub(crate) fn take_back(&mut self, tokens: usize, before: Option<Before>) {
        self.tokens -= tokens as u64;
        if let Some(before) = before
            && let Source::Tokens { frame, media } = &mut self.source
        {
            self.keys.truncate(before.keys);
            frame.restore(&before.frame);
            media.go_back(before.media);
        }
        if let Some(told) = &mut self.told {
            told.tokens.truncate(self.tokens as usize);
        }
    }

    /// Whether [`Self::extend`] can be used.
    ///
    /// # Errors
    /// `Argument` if the engine makes this chain's keys.
    #[inline]
    pub fn check_extend(&self) -> Result<()> {
        match self.source {
            Source::Tokens { .. } => Ok(()),
            Source::Engine => Err(self.is_ready()),
        }
    }

    #[cold]
    fn is_ready(&self) -> Error {
        Error::argument(
            "tokens",
            format!("after {}", self.tokens),
            "the engine makes the keys of this sequence: append them ready",
        )
    }

    /// Counts `tokens` more tokens, whose full blocks have these keys.
    ///
    /// # Errors
    /// `Argument` if this chain makes its keys from tokens, or if there is not exactly one key per
    /// block completed; nothing has changed then.
    pub fn extend_ready(&mut self, tokens: u64, keys: &[Key]) -> Result<()> {
        if !matches!(self.source, Source::Engine) {
            return Err(Error::argument(
                "keys",
                format!("{} keys", keys.len()),
                "this chain makes its keys from tokens: use extend",
            ));
        }
        let Some(total) = self.tokens.checked_add(tokens) else {
            return Err(Error::argument(
                "tokens",
                tokens,
                "a sequence has fewer than 2^64",
            ));
        };
        let full = total / u64::from(self.block_size);
        check_count(keys.len(), full - self.keys.len() as u64)?;
        self.room(keys.len())?;
        self.keys.extend_from_slice(keys);
        self.tokens = total;
        Ok(())
    }

    /// The keys of the full blocks, from the first on.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Tokens so far, those of the partial block included.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// What sequences of its adapter and salt have in common, folded into a key that stands for the parent of
    /// the first block: [`Key::NO_PARENT`] without either. `None` where the engine has made keys.
    pub fn root(&self) -> Option<Key> {
        Some(self.root).filter(|root| *root != Key::UNKNOWN)
    }

    /// Tokens per block.
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// How many blocks `more` tokens would fill: what `extend` would cost, known beforehand.
    pub fn keys_made_by(&self, more: usize) -> usize {
        self.partial().saturating_add(more) / self.block_size as usize
    }

    /// Makes room for the keys of `more` tokens, so that extending by them does not allocate.
    ///
    /// # Errors
    /// `Memory` where there is none.
    #[inline]
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        let filled = self.partial();
        if filled.saturating_add(more) >= self.block_size as usize {
            self.room(self.keys_made_by(more))?;
        }
        if let Some(told) = &mut self.told {
            let had = told.tokens.try_reserve(more);
            had.map_err(|_| memory::lacking::<u32>("the tokens of a prompt", more))?;
        }
        match &mut self.source {
            Source::Tokens { frame, .. } if frame.grows() => frame.reserve(filled, more),
            Source::Tokens { .. } | Source::Engine => Ok(()),
        }
    }

    fn room(&mut self, keys: usize) -> Result<()> {
        let had = self.keys.try_reserve(keys);
        had.map_err(|_| memory::lacking::<Key>("the keys of a prompt", self.keys.len() + keys))
    }

    /// All of it, for another process of the same version: as bytes that are as secret as its
    /// tokens and its salt.
    ///
    /// ```text
    /// "C3"  root  block size u32  tokens u64  number of keys u64  keys
    /// 1  hash u8  group u8  parent  tokens of the partial block u32  media items   0 of the engine's
    /// 1  all tokens u32  1 extras, or 0                                            0 where untold
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(96 + 32 * self.keys.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.root.0);
        bytes.extend_from_slice(&self.block_size.to_le_bytes());
        bytes.extend_from_slice(&self.tokens.to_le_bytes());
        bytes.extend_from_slice(&(self.keys.len() as u64).to_le_bytes());
        bytes.extend(self.keys.iter().flat_map(|key| key.0));
        bytes.push(u8::from(matches!(self.source, Source::Tokens { .. })));
        if let Source::Tokens { frame, media } = &self.source {
            frame.write(self.partial(), &mut bytes);
            media.write(&mut bytes);
        }
        bytes.push(u8::from(self.told.is_some()));
        if let Some(told) = &self.told {
            bytes.extend(told.tokens.iter().flat_map(|token| token.to_le_bytes()));
            bytes.push(u8::from(told.origin.is_some()));
            if let Some(extras) = &told.origin {
                extras.write(&mut bytes);
            }
        }
        bytes
    }

    /// Back from [`Self::to_bytes`].
    ///
    /// # Errors
    /// `Argument` when the bytes are not a chain of this version, whole.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::read(Reader(bytes))
            .map_err(|help| Error::argument("keys", format!("{} bytes", bytes.len()), help))
    }

    fn read(mut reader: Reader<'_>) -> Read<Self> {
        if reader.take()? != *MAGIC {
            return Err("not keys of this version: run one version everywhere");
        }
        let root = Key(reader.take()?);
        let block_size = u32::from_le_bytes(reader.take()?);
        let (tokens, blocks) = (reader.number()?, reader.count()?);
        if tokens.checked_div(block_size.into()) != Some(blocks as u64) {
            return Err("they have not one key for each full block: they were changed");
        }
        let keys: Vec<Key> = reader.all(blocks, Key)?;
        let full = blocks as u64 * u64::from(block_size);
        let source = if reader.flag()? {
            Source::Tokens {
                frame: Frame::read(&mut reader, block_size, (tokens - full) as usize)?,
                media: Cursor::read(&mut reader, full)?,
            }
        } else {
            Source::Engine
        };
        let told = if reader.flag()? {
            let count = usize::try_from(tokens).map_err(|_| "they tell of too many tokens")?;
            let tokens = reader.all(count, u32::from_le_bytes)?;
            let extras = reader.flag()?.then(|| Extras::read(&mut reader));
            let origin = extras.transpose()?.map(Arc::new);
            Some(Box::new(Spoken { tokens, origin }))
        } else {
            None
        };
        if !reader.0.is_empty() {
            return Err("more follows behind them: pass what was written alone");
        }
        Ok(Self {
            tokens,
            keys,
            told,
            block_size,
            source,
            root,
        })
    }

    /// Tokens in the partial block.
    fn partial(&self) -> usize {
        let full = (self.keys.len() as u64).wrapping_mul(self.block_size.into());
        self.tokens.wrapping_sub(full) as usize
    }
}

fn check_block_size(block_size: u32) -> Result<()> {
    if block_size == 0 {
        return Err(Error::argument(
            "block_size",
            0,
            "a block has at least one token",
        ));
    }
    Ok(())
}

fn check_count(keys: usize, blocks: u64) -> Result<()> {
    if keys as u64 != blocks {
        let value = format!("{keys} keys for {blocks} full blocks");
        return Err(Error::argument(
            "keys",
            value,
            "give exactly one key per block that becomes full",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Group;
    use crate::keys::extras::Media;
    use crate::keys::hash::{KeyHash, Namespace, Piece};

    fn seed(hash: KeyHash, block_size: u32) -> Seed {
        Seed::new(hash, &Namespace::default(), Group(0), block_size)
    }

    fn item(start: u64, end: u64, id: &str) -> Media {
        Media {
            start,
            end,
            id: id.as_bytes().to_vec(),
        }
    }

    fn chain(seed: &Seed, extras: Extras, tokens: &[u32]) -> Chain {
        let mut chain = Chain::new(seed, extras).unwrap();
        chain.extend(tokens).unwrap();
        chain
    }

    #[test]
    fn three_items_over_blocks_of_four() {
        let tokens: Vec<u32> = (0..20).collect();
        let seed = seed(KeyHash::Sha256, 4);
        let items = [item(2, 5, "a"), item(8, 12, "b"), item(14, 16, "c")];
        // What must lie over each block, as (id, offset, length).
        let over: [&[(&str, i64, u64)]; 5] = [
            &[("a", 2, 3)],
            &[("a", -2, 3)],
            &[("b", 0, 4)],
            &[("c", 2, 2)],
            &[],
        ];
        let mut frame = Frame::new(&seed, &seed.start(&seed.root()));
        let mut expected = Vec::new();
        for (block, pieces) in tokens.chunks(4).zip(over) {
            frame.fill(0, block);
            let piece = |&(id, offset, length): &(&'static str, _, _)| Piece {
                id: id.as_bytes(),
                offset,
                length,
            };
            expected.push(if pieces.is_empty() {
                frame.seal()
            } else {
                frame.seal_over(pieces.iter().map(piece))
            });
        }
        let extras = Extras {
            media: items.to_vec(),
            ..Extras::default()
        };
        assert_eq!(chain(&seed, extras.clone(), &tokens).keys(), expected);
        // The cursor is carried over calls, whatever their size, and into forks.
        for size in 1..7 {
            let mut made = Chain::new(&seed, extras.clone()).unwrap();
            for part in tokens.chunks(size) {
                made.extend(part).unwrap();
                made = made.clone();
            }
            assert_eq!(made.keys(), expected, "{size} at a time");
        }
    }

    #[test]
    fn keys_go_on_behind_the_full_blocks_of_a_chain() {
        let tokens: Vec<u32> = (0..30).collect();
        let seed = seed(KeyHash::Sha256, 4);
        for media in [vec![], vec![item(3, 13, "a"), item(14, 18, "b")]] {
            let extras = Extras {
                salt: Some(b"tenant".to_vec()),
                media,
                ..Extras::default()
            };
            let whole = chain(&seed, extras.clone(), &tokens);
            for cut in 0..=30 {
                let first = chain(&seed, extras.clone(), &tokens[..cut]);
                let mut next = first.full_blocks(&seed).unwrap();
                assert_eq!(next.tokens(), (cut / 4 * 4) as u64);
                next.extend(&tokens[cut / 4 * 4..]).unwrap();
                assert_eq!((next.keys(), next.tokens()), (whole.keys(), 30), "{cut}");
                // Ready keys that are the same go on the same way, where no item lies.
                let full = whole.keys()[..cut / 4].to_vec();
                if cut < 20 && !extras.media.is_empty() {
                    continue;
                }
                let ready = Chain::ready(4, full, cut as u64).unwrap();
                let Ok(mut next) = ready.full_blocks(&seed) else {
                    assert!(cut < 4, "{cut}");
                    continue;
                };
                next.extend(&tokens[cut / 4 * 4..]).unwrap();
                assert_eq!(next.keys(), whole.keys(), "{cut}");
            }
        }
    }

    #[test]
    fn a_chain_comes_back_from_its_bytes_and_goes_on_alike() {
        let extras = Extras {
            lora: Some(b"an adapter".to_vec()),
            salt: Some(b"tenant".to_vec()),
            media: vec![item(3, 13, "a"), item(14, 18, "b")],
        };
        let tokens: Vec<u32> = (0..30).collect();
        for hash in [KeyHash::Sha256, KeyHash::Xxh3] {
            let seed = seed(hash, 4);
            let whole = chain(&seed, extras.clone(), &tokens);
            for cut in 0..=30 {
                for told in [false, true] {
                    let mut made = Chain::new(&seed, extras.clone()).unwrap();
                    if told {
                        made = made.telling(extras.clone());
                    }
                    made.extend(&tokens[..cut]).unwrap();
                    let bytes = made.to_bytes();
                    let mut back = Chain::from_bytes(&bytes).unwrap();
                    assert_eq!(back.to_bytes(), bytes);
                    assert_eq!(back.spoken(0..cut / 4), made.spoken(0..cut / 4));
                    back.extend(&tokens[cut..]).unwrap();
                    assert_eq!((back.keys(), back.tokens()), (whole.keys(), 30), "{cut}");
                }
            }
        }
    }

    #[test]
    fn tokens_that_are_taken_back_leave_the_chain_as_it_was() {
        let extras = Extras {
            media: vec![item(3, 13, "a"), item(14, 18, "b")],
            ..Extras::default()
        };
        let tokens: Vec<u32> = (0..30).collect();
        for hash in [KeyHash::Sha256, KeyHash::Xxh3] {
            let seed = seed(hash, 4);
            for (extras, told) in [(Extras::default(), false), (extras.clone(), true)] {
                let whole = chain(&seed, extras.clone(), &tokens);
                for (cut, more) in (0..=30).flat_map(|cut| (0..12).map(move |more| (cut, more))) {
                    let mut made = Chain::new(&seed, extras.clone()).unwrap();
                    if told {
                        made = made.telling(extras.clone());
                    }
                    made.extend(&tokens[..cut]).unwrap();
                    let (bytes, before) = (made.to_bytes(), made.before(more));
                    made.extend(&vec![7; more]).unwrap();
                    made.take_back(more, before);
                    assert_eq!(made.to_bytes(), bytes, "{more} behind {cut}");
                    made.extend(&tokens[cut..]).unwrap();
                    assert_eq!(made.keys(), whole.keys(), "{more} behind {cut}");
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_chain_are_refused_and_take_no_memory() {
        let seed = seed(KeyHash::Sha256, 4);
        let extras = Extras {
            media: vec![item(3, 5, "a")],
            ..Extras::default()
        };
        let bytes = chain(&seed, extras.clone(), &[7; 11]).to_bytes();
        for length in 0..bytes.len() {
            assert!(Chain::from_bytes(&bytes[..length]).is_err(), "{length}");
        }
        assert!(Chain::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        // A number in them is of any size: nothing is lost but the bytes.
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7F, 0xFF] {
                let mut other = bytes.clone();
                other[at] = value;
                if let Ok(mut chain) = Chain::from_bytes(&other) {
                    chain.extend(&[1; 20]).unwrap();
                }
            }
        }
        let ready = Chain::ready(4, vec![Key([5; 32]); 3], 13).unwrap();
        let back = Chain::from_bytes(&ready.to_bytes()).unwrap();
        assert_eq!(back.to_bytes(), ready.to_bytes());
        assert!(back.check_extend().is_err());
    }

    #[test]
    fn a_block_takes_the_memory_of_the_tokens_that_are_there() {
        for hash in [KeyHash::Sha256, KeyHash::Xxh3] {
            let seed = seed(hash, u32::MAX);
            let mut made = Chain::new(&seed, Extras::default()).unwrap();
            for tokens in [1, 999, 100_000] {
                made.extend(&vec![7; tokens]).unwrap();
            }
            assert_eq!((made.tokens(), made.keys().len()), (101_000, 0));
            let Source::Tokens { frame, .. } = &made.source else {
                panic!("it makes its own keys");
            };
            assert!(frame.capacity() < 3 * 4 * 101_000, "{}", frame.capacity());
        }
    }
}
