//! The bytes of events: msgpack maps in the form of vLLM 0.33 and later, which routers read.
//!
//! Field names and their order are those of `vllm/distributed/kv_events.py`; what has its default is
//! left out. `cache_salt` is as `SGLang` has it.

/// How each tier is called, the device first: "GPU", "CPU" and "STORAGE" are vLLM's.
const MEDIA: [&str; 4] = ["GPU", "CPU", "STORAGE", "EXTERNAL"];

/// What a sequence of stored blocks has in common.
#[derive(Debug, Default)]
pub(crate) struct Head<'a> {
    /// `None` at the root.
    pub(crate) parent: Option<u64>,
    pub(crate) tier: u8,
    pub(crate) block_size: u32,
    pub(crate) lora: Option<&'a str>,
    pub(crate) salt: Option<&'a str>,
}

/// What a block's key has that is not in its tokens: the salt, or a media item and how far its first
/// token is behind the block's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Extra {
    Salt(String),
    Media(String, i64),
}

/// One batch, as it grows.
#[derive(Debug)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    events: u32,
}

/// Where the number of events stands: behind the array of three, and the time.
const EVENTS_AT: usize = 1 + 9 + 1;

/// Bytes that a token and a number take at most, and what an event has besides.
const LONGEST_TOKEN: usize = 5;
const LONGEST_NUMBER: usize = 9;
const EVENT: usize = 256;
/// Room that is made in advance at most.
const MOST_ROOM: usize = 1 << 24;

/// By how many bits a token has: its tag, in the highest byte, and how many bytes it takes with it.
const TAGS: [(u64, u8); 33] = {
    let mut tags = [(0, 1); 33];
    let mut bits = 8;
    while bits <= 32 {
        tags[bits] = match bits {
            8 => (0xCC << 56, 2),
            9..=16 => (0xCD << 56, 3),
            _ => (0xCE << 56, 5),
        };
        bits += 1;
    }
    tags
};

impl Batch {
    /// A batch of this moment, in seconds since 1970.
    pub(crate) fn new(time: f64) -> Self {
        let mut bytes = vec![0x93, 0xCB];
        bytes.extend_from_slice(&time.to_be_bytes());
        bytes.extend_from_slice(&[0xDD, 0, 0, 0, 0]);
        Self { bytes, events: 0 }
    }

    /// Makes room for events of so many blocks that come with their tokens, and so many that go, so that
    /// it does not grow as they are written.
    pub(crate) fn reserve(&mut self, stored: usize, removed: usize, block_size: u32) {
        let tokens = LONGEST_TOKEN * block_size as usize;
        let bytes = stored * (LONGEST_NUMBER + tokens) + removed * LONGEST_NUMBER;
        self.bytes.reserve(EVENT + bytes.min(MOST_ROOM));
    }

    pub(crate) fn events(&self) -> u32 {
        self.events
    }

    /// The payload: of one rank, or of none in particular.
    pub(crate) fn finish(mut self, rank: Option<u32>) -> Vec<u8> {
        self.bytes[EVENTS_AT..EVENTS_AT + 4].copy_from_slice(&self.events.to_be_bytes());
        match rank {
            Some(rank) => self.unsigned(rank.into()),
            None => self.nil(),
        }
        self.bytes
    }

    /// Everything of this rank is gone.
    pub(crate) fn cleared(&mut self) {
        self.event(1, "AllBlocksCleared");
    }

    /// These blocks are no more on a tier.
    pub(crate) fn removed(&mut self, tier: u8, blocks: &[u64]) {
        self.event(3, "BlockRemoved");
        self.numbers("block_hashes", blocks);
        self.medium(tier);
    }

    /// These blocks, one behind the other in their sequence, are on a tier, and so are their tokens.
    pub(crate) fn stored(
        &mut self,
        head: &Head<'_>,
        blocks: &[u64],
        tokens: &[u32],
        extras: Option<&[Vec<Extra>]>,
    ) {
        let more = usize::from(extras.is_some()) + usize::from(head.salt.is_some());
        self.event(8 + more as u8, "BlockStored");
        self.numbers("block_hashes", blocks);
        self.text("parent_block_hash");
        match head.parent {
            Some(parent) => self.unsigned(parent),
            None => self.nil(),
        }
        self.text("token_ids");
        self.tokens(tokens);
        self.text("block_size");
        self.unsigned(head.block_size.into());
        self.text("lora_id");
        self.nil();
        self.medium(head.tier);
        self.text("lora_name");
        self.text_or_nil(head.lora);
        if let Some(extras) = extras {
            self.text("extra_keys");
            self.array(extras.len());
            for block in extras {
                self.extra(block);
            }
        }
        if head.salt.is_some() {
            self.text("cache_salt");
            self.text_or_nil(head.salt);
        }
    }

    /// The tokens of blocks, each with its tag. Most of a batch is these, and those of three and of five
    /// bytes come as they like: so room is made once, and there is no branch. Each is written as eight
    /// bytes, of which the next one leaves as many as it has.
    fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        let start = self.bytes.len();
        let whole = LONGEST_TOKEN * tokens.len() + size_of::<u64>();
        self.bytes.resize(start + whole, 0);
        let mut room = &mut self.bytes[start..];
        for &token in tokens {
            let bits = 32 - (token | 1).leading_zeros();
            let (tag, len) = TAGS[bits as usize];
            let word = tag | u64::from(token) << (64 - 8 * u32::from(len));
            if let Some((next, _)) = room.split_first_chunk_mut() {
                *next = word.to_be_bytes();
            }
            room = room.split_at_mut(len.into()).1;
        }
        let left = room.len();
        self.bytes.truncate(start + whole - left);
    }

    fn extra(&mut self, block: &[Extra]) {
        if block.is_empty() {
            return self.nil();
        }
        self.array(block.len());
        for extra in block {
            match extra {
                Extra::Salt(salt) => self.text(salt),
                Extra::Media(id, offset) => {
                    self.array(2);
                    self.text(id);
                    self.signed(*offset);
                }
            }
        }
    }

    fn event(&mut self, fields: u8, kind: &str) {
        self.events += 1;
        self.bytes.push(0x80 | fields);
        self.text("type");
        self.text(kind);
    }

    fn medium(&mut self, tier: u8) {
        self.text("medium");
        self.text(MEDIA[usize::from(tier).min(MEDIA.len() - 1)]);
    }

    fn numbers(&mut self, name: &str, numbers: &[u64]) {
        self.text(name);
        self.array(numbers.len());
        let (start, mut at) = (self.bytes.len(), 0);
        self.bytes.resize(start + LONGEST_NUMBER * numbers.len(), 0);
        let room = &mut self.bytes[start..];
        for &number in numbers {
            let (bytes, len) = tagged(number);
            room[at..at + LONGEST_NUMBER].copy_from_slice(&bytes);
            at += len;
        }
        self.bytes.truncate(start + at);
    }

    fn nil(&mut self) {
        self.bytes.push(0xC0);
    }

    fn text_or_nil(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.nil(),
        }
    }

    fn unsigned(&mut self, number: u64) {
        let (bytes, len) = tagged(number);
        self.bytes.extend_from_slice(&bytes[..len]);
    }

    fn signed(&mut self, number: i64) {
        if let Ok(number) = u64::try_from(number) {
            return self.unsigned(number);
        }
        self.bytes.push(0xD3);
        self.bytes.extend_from_slice(&number.to_be_bytes());
    }

    fn array(&mut self, len: usize) {
        self.length(len, [0x90, 0xDC, 0xDD], 16);
    }

    /// Up to 31 bytes of text have their length in the tag; the names above have no more.
    fn text(&mut self, text: &str) {
        let len = text.len();
        if (32..256).contains(&len) {
            self.bytes.extend_from_slice(&[0xD9, len as u8]);
        } else {
            self.length(len, [0xA0, 0xDA, 0xDB], 32);
        }
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn length(&mut self, len: usize, [short, two, four]: [u8; 3], least: usize) {
        if len < least {
            self.bytes.push(short | len as u8);
        } else if let Ok(len) = u16::try_from(len) {
            self.bytes.push(two);
            self.bytes.extend_from_slice(&len.to_be_bytes());
        } else {
            self.bytes.push(four);
            self.bytes.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

/// A number with its tag, in the fewest bytes that msgpack has for it, and how many they are.
#[inline]
fn tagged(number: u64) -> ([u8; LONGEST_NUMBER], usize) {
    let (tag, len) = match number {
        0..0x80 => return ([number as u8, 0, 0, 0, 0, 0, 0, 0, 0], 1),
        0x80..0x100 => (0xCC, 1),
        0x100..0x1_0000 => (0xCD, 2),
        0x1_0000..0x1_0000_0000 => (0xCE, 4),
        _ => (0xCF, 8),
    };
    let mut bytes = [tag; LONGEST_NUMBER];
    bytes[1..].copy_from_slice(&(number << (64 - 8 * len)).to_be_bytes());
    (bytes, 1 + len)
}
