//! How a block's key is computed: the encoding, the two hashes, and the root of a namespace.
//!
//! ```text
//! root     = H(header(1, fields) ‖ model ‖ weights ‖ dtype ‖ layout ‖ parallel)
//! sequence = H(header(2, 2) ‖ root ‖ lora? ‖ salt?)      only where one of the two is given
//! start    = f(IV, header(4, 0) ‖ sequence ‖ zeros)      of SHA-256; XXH3 starts from the sequence root
//! block    = f(parent, tokens ‖ zeros)                   of SHA-256, without media items
//! block    = H(header(3, items) ‖ parent ‖ tokens ‖ media items)
//! ```
//!
//! `H` is the whole hash, and `f` the compression function of SHA-256, once for every 64 bytes: a
//! key is the state in which SHA-256 would go on with the tokens of the next block.
//!
//! The encoding is a promise: keys name blocks in stores that outlive this process and this version.
//! `docs/keys.md` states it byte by byte. Whoever changes it raises `KeyHash::encoding`.

use std::fmt;

use sha2::block_api::compress256;
use sha2::{Digest, Sha256};
use twox_hash::XxHash3_128;

use crate::base::{Group, Key, Read, Reader, Result, memory};

/// What a message is for; its first byte.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Tag {
    Root = 1,
    Sequence = 2,
    Block = 3,
    Start = 4,
}

const MAGIC: [u8; 4] = *b"BYKY";
const HEADER: usize = 16;
/// Where a block's tokens begin: behind the header and the parent.
const TOKENS: usize = HEADER + size_of::<Key>();

/// What the compression function of SHA-256 takes at once, in bytes.
const PIECE: usize = 64;
/// A block's message up to this size has its memory at once: 1,000 tokens and some.
const ONE_PIECE: usize = 4096;

/// The initial state of SHA-256 (FIPS 180-4, 5.3.3).
const SHA256_START: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Which hash makes the keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KeyHash {
    /// SHA-256: no attacker can make two different prefixes share a key.
    #[default]
    Sha256,
    /// XXH3-128 twice, with seeds 0 and 1: fast, not collision resistant, so only where all tenants
    /// trust each other.
    Xxh3,
}

impl KeyHash {
    /// The number of this hash in a header.
    const fn number(self) -> u8 {
        match self {
            Self::Sha256 => 0,
            Self::Xxh3 => 1,
        }
    }

    fn of_number(number: u8) -> Option<Self> {
        let all = [Self::Sha256, Self::Xxh3];
        all.into_iter().find(|hash| hash.number() == number)
    }

    /// The version of this hash's encoding, in every header; keys of two versions never meet.
    pub const fn encoding(self) -> u8 {
        match self {
            Self::Sha256 => 2,
            Self::Xxh3 => 1,
        }
    }

    /// The hash of a whole message.
    fn digest(self, message: &[u8]) -> Key {
        match self {
            Self::Sha256 => Key(Sha256::digest(message).into()),
            Self::Xxh3 => {
                let mut key = Key::default();
                for (half, seed) in key.0.as_chunks_mut::<16>().0.iter_mut().zip(0..) {
                    *half = XxHash3_128::oneshot_with_seed(seed, message).to_be_bytes();
                }
                key
            }
        }
    }
}

/// A state of SHA-256 as a key, as in its digests.
fn key_of(state: &[u32; 8]) -> Key {
    let mut key = Key::default();
    for (bytes, word) in key.0.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    key
}

/// Back from [`key_of`].
fn state_of(key: &Key) -> [u32; 8] {
    let mut state = [0; 8];
    for (word, bytes) in state.iter_mut().zip(key.0.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    state
}

/// What must be equal for KV to be exchangeable at all; every field may be any text, "" by default.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Namespace {
    /// The model, as its owner names it.
    pub model: String,
    /// The version of its weights.
    pub weights: String,
    /// The type of the stored KV, such as "bfloat16".
    pub dtype: String,
    /// How the bytes of a block are laid out.
    pub layout: String,
    /// How the model is split over devices: its tensor-parallel shape.
    pub parallel: String,
}

/// Where the keys of one group in one namespace begin; cheap to copy, the same in every process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seed {
    hash: KeyHash,
    root: Key,
    /// The parent of the first block under `root`.
    start: Key,
    group: Group,
    block_size: u32,
}

impl Seed {
    /// Folds a namespace, a group and a block size in tokens into a root.
    pub fn new(hash: KeyHash, namespace: &Namespace, group: Group, block_size: u32) -> Self {
        let mut seed = Self {
            hash,
            root: Key::default(),
            start: Key::default(),
            group,
            block_size,
        };
        // Taken apart by name, so that a new field cannot be forgotten here.
        let Namespace {
            model,
            weights,
            dtype,
            layout,
            parallel,
        } = namespace;
        let fields = [model, weights, dtype, layout, parallel];
        let mut message = seed.header(Tag::Root, 5).to_vec();
        for field in fields {
            put_bytes(&mut message, field.as_bytes());
        }
        seed.root = hash.digest(&message);
        seed.start = seed.started(&seed.root);
        seed
    }

    /// The hash that makes the keys.
    pub const fn hash(&self) -> KeyHash {
        self.hash
    }

    /// The root of every sequence without adapter and salt.
    pub const fn root(&self) -> Key {
        self.root
    }

    /// The group whose blocks these keys name.
    pub const fn group(&self) -> Group {
        self.group
    }

    /// Tokens per block.
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The root of a sequence with this adapter and this salt: [`Self::root`] if it has neither. Given
    /// but empty is not the same as not given.
    pub fn sequence_root(&self, lora: Option<&[u8]>, salt: Option<&[u8]>) -> Key {
        if lora.is_none() && salt.is_none() {
            return self.root;
        }
        let mut message = self.header(Tag::Sequence, 2).to_vec();
        message.extend_from_slice(&self.root.0);
        for part in [lora, salt] {
            message.push(u8::from(part.is_some()));
            if let Some(bytes) = part {
                put_bytes(&mut message, bytes);
            }
        }
        self.hash.digest(&message)
    }

    /// The parent of the first block of sequences with this root.
    pub(crate) fn start(&self, root: &Key) -> Key {
        if *root == self.root {
            return self.start;
        }
        self.started(root)
    }

    fn started(&self, root: &Key) -> Key {
        if self.hash == KeyHash::Xxh3 {
            return *root;
        }
        let mut piece = [0; PIECE];
        piece[..HEADER].copy_from_slice(&self.header(Tag::Start, 0));
        piece[HEADER..TOKENS].copy_from_slice(&root.0);
        let mut state = SHA256_START;
        compress256(&mut state, &[piece]);
        key_of(&state)
    }

    /// What stands for the parent of the first block of such sequences, as [`crate::Chain::root`].
    pub fn root_of(&self, lora: Option<&[u8]>, salt: Option<&[u8]>) -> Key {
        Key::of_root(&self.sequence_root(lora, salt))
    }

    /// The first bytes of every message: whatever two messages may differ in besides their contents.
    fn header(&self, tag: Tag, parts: u32) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[0] = tag as u8;
        header[1] = self.hash.encoding();
        header[2] = self.hash.number();
        header[3] = self.group.0;
        header[4..8].copy_from_slice(&self.block_size.to_le_bytes());
        header[8..12].copy_from_slice(&parts.to_le_bytes());
        header[12..].copy_from_slice(&MAGIC);
        header
    }
}

/// How one media item lies over one block.
pub(crate) struct Piece<'a> {
    /// What the item is: usually a hash of its contents.
    pub(crate) id: &'a [u8],
    /// Tokens from the block's first token to the item's first; negative if the item began earlier.
    pub(crate) offset: i64,
    /// The item's length in tokens, whatever part of it lies in this block.
    pub(crate) length: u64,
}

/// The message of a chain's next block, with everything that stays the same already written: the
/// header, and once a block was full the zeros behind its tokens. It is all a chain keeps of tokens,
/// and until then no longer than they are: a block may be of any size.
#[derive(Clone)]
pub(crate) struct Frame {
    hash: KeyHash,
    /// Where the tokens end, in bytes.
    end: usize,
    /// The parent as a state of SHA-256, which makes keys of the tokens alone.
    state: [u32; 8],
    /// Header, parent (of SHA-256 it is in `state`) and tokens.
    message: Vec<u8>,
}

/// Where the token number `at` of a block is in its message. No block and no slice has so many that
/// this could wrap around.
#[inline]
fn place(at: usize) -> usize {
    at.wrapping_mul(4).wrapping_add(TOKENS)
}

/// What completed blocks have written over: the parent, and the first tokens of the block.
pub(crate) struct Overwritten {
    parent: Key,
    tokens: Vec<u8>,
}

/// Shows none of them.
impl fmt::Debug for Overwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overwritten({} bytes)", self.tokens.len())
    }
}

impl Frame {
    /// A frame whose first block follows `parent`.
    pub(crate) fn new(seed: &Seed, parent: &Key) -> Self {
        let end = TOKENS + 4 * seed.block_size as usize;
        let mut message = Vec::with_capacity(end.min(ONE_PIECE) + PIECE);
        message.extend_from_slice(&seed.header(Tag::Block, 0));
        message.extend_from_slice(&parent.0);
        Self {
            hash: seed.hash,
            end,
            state: state_of(parent),
            message,
        }
    }

    /// The key of the block before, or what stands for it before the first.
    fn parent(&self) -> Key {
        match self.hash {
            KeyHash::Sha256 => key_of(&self.state),
            KeyHash::Xxh3 => {
                let mut parent = Key::default();
                parent.0.copy_from_slice(&self.message[HEADER..TOKENS]);
                parent
            }
        }
    }

    /// What tells it from others, as bytes: hash, group, parent, and the first `tokens` tokens.
    pub(crate) fn write(&self, tokens: usize, into: &mut Vec<u8>) {
        into.extend_from_slice(&[self.hash.number(), self.message[3]]);
        into.extend_from_slice(&self.parent().0);
        into.extend_from_slice(&self.message[TOKENS..TOKENS + 4 * tokens]);
    }

    /// Back from [`Self::write`].
    pub(crate) fn read(reader: &mut Reader<'_>, block_size: u32, tokens: usize) -> Read<Self> {
        let [hash, group] = reader.take()?;
        let hash = KeyHash::of_number(hash).ok_or("they name a hash that there is none of")?;
        let parent = Key(reader.take()?);
        let seed = Seed {
            hash,
            root: parent,
            start: parent,
            group: Group(group),
            block_size,
        };
        let mut frame = Self::new(&seed, &parent);
        frame.fill(0, &reader.all(tokens, u32::from_le_bytes)?);
        Ok(frame)
    }

    /// Whether no block was full so far: those that follow find their room.
    #[inline]
    pub(crate) fn grows(&self) -> bool {
        self.message.len() < self.end
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.message.capacity()
    }

    /// Whether `more` tokens behind the `at` that are there fill no block, and have room already.
    #[inline]
    pub(crate) fn has_room(&self, at: usize, more: usize) -> bool {
        let stop = place(at.wrapping_add(more));
        stop < self.end && stop <= self.message.len()
    }

    /// Room for `tokens` more behind the `at` that are there, as far as they go into the block.
    ///
    /// # Errors
    /// `Memory`; nothing has changed then.
    pub(crate) fn reserve(&mut self, at: usize, tokens: usize) -> Result<()> {
        let stop = TOKENS.saturating_add(tokens.saturating_add(at).saturating_mul(4));
        let stop = stop.min(self.end);
        if stop <= self.message.len() {
            return Ok(());
        }
        // For the zeros behind the tokens, too.
        let more = stop + PIECE - self.message.len();
        let had = self.message.try_reserve(more);
        had.map_err(|_| memory::lacking::<u8>("the tokens of a block", stop + PIECE))
    }

    /// Writes tokens behind the `at` tokens that are there; all of them must fit into the block, and
    /// have room.
    #[inline]
    pub(crate) fn fill(&mut self, at: usize, tokens: &[u32]) {
        let (start, stop) = (place(at), place(at.wrapping_add(tokens.len())));
        debug_assert!(stop <= self.end, "more tokens than the block has room for");
        if self.message.len() < stop {
            self.message.resize(stop, 0);
            if stop == self.end && self.hash == KeyHash::Sha256 {
                let pieces = (self.end - TOKENS).next_multiple_of(PIECE);
                self.message.resize(TOKENS + pieces, 0);
            }
        }
        let cells = self.message[start..stop].as_chunks_mut::<4>().0;
        for (cell, token) in cells.iter_mut().zip(tokens) {
            *cell = token.to_le_bytes();
        }
    }

    /// What blocks write over that `tokens` tokens complete, behind the `at` that are there.
    pub(crate) fn before(&self, at: usize, tokens: usize) -> Overwritten {
        // Those behind the end of a block are written from its front on.
        let behind = (TOKENS + 4 * (at + tokens)).saturating_sub(self.end);
        let tokens = TOKENS..TOKENS + behind.min(4 * at);
        Overwritten {
            parent: self.parent(),
            tokens: self.message[tokens].to_vec(),
        }
    }

    /// Takes that back.
    pub(crate) fn restore(&mut self, before: &Overwritten) {
        self.message[HEADER..TOKENS].copy_from_slice(&before.parent.0);
        self.state = state_of(&before.parent);
        self.message[TOKENS..TOKENS + before.tokens.len()].copy_from_slice(&before.tokens);
    }

    /// The key of the full block, which becomes the parent of the next.
    pub(crate) fn seal(&mut self) -> Key {
        match self.hash {
            KeyHash::Sha256 => {
                let (pieces, rest) = self.message[TOKENS..].as_chunks::<PIECE>();
                debug_assert!(rest.is_empty(), "the block is not full");
                compress256(&mut self.state, pieces);
                key_of(&self.state)
            }
            KeyHash::Xxh3 => {
                let key = self.hash.digest(&self.message);
                self.message[HEADER..TOKENS].copy_from_slice(&key.0);
                key
            }
        }
    }

    /// As `seal`, for a block that media items overlap, given in their order.
    pub(crate) fn seal_over<'a>(&mut self, pieces: impl Iterator<Item = Piece<'a>>) -> Key {
        let mut message = self.message[..self.end].to_vec();
        let mut count = 0_u32;
        for piece in pieces {
            put_bytes(&mut message, piece.id);
            message.extend_from_slice(&piece.offset.to_le_bytes());
            message.extend_from_slice(&piece.length.to_le_bytes());
            count += 1;
        }
        message[8..12].copy_from_slice(&count.to_le_bytes());
        message[HEADER..TOKENS].copy_from_slice(&self.parent().0);
        let key = self.hash.digest(&message);
        self.message[HEADER..TOKENS].copy_from_slice(&key.0);
        self.state = state_of(&key);
        key
    }
}

/// Says nothing of the contents: tokens and the roots of salts have no place in a log.
impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// Appends bytes behind their length, so that no two lists of byte strings read alike.
pub(crate) fn put_bytes(message: &mut Vec<u8>, bytes: &[u8]) {
    message.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    message.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(key: Key) -> String {
        key.0
            .iter()
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    fn namespace(fields: [&str; 5]) -> Namespace {
        let [model, weights, dtype, layout, parallel] = fields.map(str::to_owned);
        Namespace {
            model,
            weights,
            dtype,
            layout,
            parallel,
        }
    }

    fn seed(hash: KeyHash, group: u8, block_size: u32) -> Seed {
        let namespace = namespace(["llama", "1", "bfloat16", "hnd", "tp1"]);
        Seed::new(hash, &namespace, Group(group), block_size)
    }

    #[test]
    fn roots_are_those_computed_elsewhere() {
        for (hash, group, block_size, root, both, salt) in [
            (
                KeyHash::Sha256,
                0,
                16,
                "553ad6456792408b0c0f1c1a52060e609fd64fa5a68d2c84922960b05cab6faf",
                "7cbfadb5e29ba1910ac121dd64d564e58ad616e3a6e8f32bffeeac9e021f0b68",
                "3f360489345a689ebb854570d01886674ecd7ab53984ebf927f73020ac308dc8",
            ),
            (
                KeyHash::Sha256,
                3,
                4,
                "77370f85020813e28f0fae1104eda605dfa3f8a01b350813d8d783f89f9798a6",
                "ecd1492fe03403d11749e863d613de07eba2df4338641c95d2ce1b5f5c4cce1e",
                "737f0f2eb4ff5741ae4b16c3150034b6059b8d4f30623152dd4814f68a92d1e3",
            ),
            (
                KeyHash::Xxh3,
                0,
                16,
                "4c1242dbf7c4b52227dd26ed4f0fa828689c987f4ecafea31c3bc94f91bbabd9",
                "fcf7a70c8656268fa0e4014e9b12293c66e4c97a3a40bdf92c78cff491c46183",
                "4bddef55589a34efe8b1de7b2c8480c58df7500af58e5edfda5aa94a5dfe7cea",
            ),
            (
                KeyHash::Xxh3,
                3,
                4,
                "d5f8eafe385d2b8c7d9c492c2efae6b17dae55f4024ed5582ec6fe134aeaf11b",
                "efe75dedfa013c7eb3241042f0d22a7050e534c17668b1e28803229e7ef9c586",
                "e6bcf48141197b6a7049168d21fd9cc07ef9ead5c69933512149b6b249377533",
            ),
        ] {
            let seed = seed(hash, group, block_size);
            assert_eq!(hex(seed.root()), root);
            assert_eq!(seed.sequence_root(None, None), seed.root());
            assert_eq!(
                hex(seed.sequence_root(Some(b"adapter"), Some(b"tenant"))),
                both
            );
            assert_eq!(hex(seed.sequence_root(None, Some(b"tenant"))), salt);
        }
        let empty = Seed::new(
            KeyHash::default(),
            &Namespace::default(),
            Group::default(),
            16,
        );
        assert_eq!(
            hex(empty.root()),
            "9bc68f14597c990dc46bc7bbb3341561c077178abee78d12e27e7a7f479c65c3"
        );
    }

    #[test]
    fn xxh3_fills_both_halves_from_the_whole_message() {
        let key = KeyHash::Xxh3.digest(b"");
        // The published value for the empty input and seed 0.
        assert_eq!(hex(key)[..32], *"99aa06d3014798d86001c324468d497f");
        assert_ne!(key.0[..16], key.0[16..]);
    }

    #[test]
    fn a_plain_block_takes_a_compression_for_16_tokens() {
        for (block_size, pieces) in [(1, 1), (8, 1), (15, 1), (16, 1), (17, 2), (32, 2), (64, 4)] {
            let seed = seed(KeyHash::Sha256, 0, block_size);
            let mut frame = Frame::new(&seed, &seed.start(&seed.root()));
            frame.fill(0, &vec![7; block_size as usize]);
            assert_eq!(frame.message.len() - TOKENS, pieces * PIECE);
        }
    }

    #[test]
    fn keys_are_the_states_of_one_ordinary_stream() {
        let seed = seed(KeyHash::Sha256, 0, 16);
        let mut frame = Frame::new(&seed, &seed.start(&seed.root()));
        let mut stream = Vec::from(seed.header(Tag::Start, 0));
        stream.extend_from_slice(&seed.root().0);
        stream.resize(PIECE, 0);
        for block in 0..5_u32 {
            let tokens: [u32; 16] = std::array::from_fn(|at| block * 16 + at as u32);
            frame.fill(0, &tokens);
            let key = frame.seal();
            stream.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
            // What SHA-256 writes behind a message of whole pieces takes the state to the digest.
            let mut last = [0; PIECE];
            last[0] = 0x80;
            last[PIECE - 8..].copy_from_slice(&(stream.len() as u64 * 8).to_be_bytes());
            let mut state = state_of(&key);
            compress256(&mut state, &[last]);
            assert_eq!(key_of(&state), KeyHash::Sha256.digest(&stream), "{block}");
        }
    }

    #[test]
    fn everything_in_a_seed_changes_the_root() {
        let names = ["model", "weights", "dtype", "layout", "parallel"];
        let root = |hash, names, group, block_size| {
            Seed::new(hash, &namespace(names), Group(group), block_size).root()
        };
        let mut roots = vec![
            root(KeyHash::Sha256, names, 0, 16),
            root(KeyHash::Xxh3, names, 0, 16),
            root(KeyHash::Sha256, names, 1, 16),
            root(KeyHash::Sha256, names, 0, 32),
            // The same letters, cut at other places.
            root(
                KeyHash::Sha256,
                ["modelw", "eights", "dtype", "layout", "parallel"],
                0,
                16,
            ),
            root(
                KeyHash::Sha256,
                ["", "modelweights", "dtype", "layout", "parallel"],
                0,
                16,
            ),
        ];
        for field in 0..names.len() {
            let mut other = names;
            other[field] = "other";
            roots.push(root(KeyHash::Sha256, other, 0, 16));
        }
        let made = roots.len();
        roots.sort();
        roots.dedup();
        assert_eq!(roots.len(), made);
    }

    #[test]
    fn adapter_and_salt_are_never_mistaken_for_each_other() {
        let seed = seed(KeyHash::Sha256, 0, 16);
        let values: [Option<&[u8]>; 5] = [None, Some(b""), Some(b"a"), Some(b"b"), Some(b"ab")];
        let mut roots = Vec::new();
        for lora in values {
            roots.extend(values.map(|salt| seed.sequence_root(lora, salt)));
        }
        roots.sort();
        roots.dedup();
        assert_eq!(roots.len(), values.len() * values.len());
    }

    #[test]
    fn a_frame_does_not_tell_its_contents() {
        let seed = seed(KeyHash::Sha256, 0, 16);
        let told = format!("{:?}", Frame::new(&seed, &seed.root()));
        assert_eq!(told, "Frame { hash: Sha256, .. }");
    }
}
