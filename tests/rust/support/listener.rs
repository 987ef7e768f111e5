//! Whoever listens to a cache, as a router does: events are decoded from their bytes, and nothing is
//! known but what they say.

use std::collections::{BTreeMap, BTreeSet};

/// A value of msgpack, as far as events have any.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Nil,
    Number(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    Array(Vec<Value>),
    Map(BTreeMap<String, Value>),
}

impl Value {
    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            other => panic!("no number: {other:?}"),
        }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }

    pub(crate) fn array(&self) -> &[Value] {
        match self {
            Self::Array(array) => array,
            other => panic!("no array: {other:?}"),
        }
    }

    pub(crate) fn field(&self, name: &str) -> &Value {
        match self {
            Self::Map(fields) => fields.get(name).unwrap_or(&Self::Nil),
            other => panic!("no map: {other:?}"),
        }
    }
}

/// Decodes one value, and returns what stands behind it.
fn value(bytes: &[u8]) -> (Value, &[u8]) {
    let (tag, rest) = (bytes[0], &bytes[1..]);
    let big = |count: usize| {
        let number = rest[..count].iter();
        let number = number.fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
        (number, &rest[count..])
    };
    match tag {
        0..=0x7F => (Value::Number(tag.into()), rest),
        0x80..=0x8F => map(rest, usize::from(tag & 15)),
        0x90..=0x9F => array(rest, usize::from(tag & 15)),
        0xA0..=0xBF => text(rest, usize::from(tag & 31)),
        0xC0 => (Value::Nil, rest),
        0xCB => {
            let (bits, rest) = big(8);
            (Value::Float(f64::from_bits(bits)), rest)
        }
        0xCC..=0xCF => {
            let (number, rest) = big(1 << (tag - 0xCC));
            (Value::Number(number), rest)
        }
        0xD3 => {
            let (bits, rest) = big(8);
            (Value::Signed(bits.cast_signed()), rest)
        }
        0xD9..=0xDB => {
            let (len, rest) = big(1 << (tag - 0xD9));
            text(rest, len as usize)
        }
        0xDC | 0xDD => {
            let (len, rest) = big(2 << (tag - 0xDC));
            array(rest, len as usize)
        }
        _ => panic!("tag {tag:#x}"),
    }
}

fn text(bytes: &[u8], len: usize) -> (Value, &[u8]) {
    let text = String::from_utf8(bytes[..len].to_vec()).expect("utf-8");
    (Value::Text(text), &bytes[len..])
}

fn array(mut bytes: &[u8], len: usize) -> (Value, &[u8]) {
    let mut values = Vec::new();
    for _ in 0..len {
        let (next, rest) = value(bytes);
        values.push(next);
        bytes = rest;
    }
    (Value::Array(values), bytes)
}

fn map(mut bytes: &[u8], len: usize) -> (Value, &[u8]) {
    let mut fields = BTreeMap::new();
    for _ in 0..len {
        let (name, rest) = value(bytes);
        let (field, rest) = value(rest);
        let before = fields.insert(name.text().to_owned(), field);
        assert_eq!(before, None, "a field comes twice");
        bytes = rest;
    }
    (Value::Map(fields), bytes)
}

/// Decodes a batch: its events, each a map.
pub(crate) fn decode(payload: &[u8]) -> Vec<Value> {
    let (batch, rest) = value(payload);
    assert!(rest.is_empty(), "{} bytes too many", rest.len());
    let [_, events, _] = batch.array() else {
        panic!("a batch has three parts");
    };
    events.array().to_vec()
}

/// What is known of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub(crate) parent: Option<u64>,
    pub(crate) tokens: Vec<u64>,
}

/// What a router knows.
#[derive(Default)]
pub(crate) struct Listener {
    pub(crate) ready: BTreeSet<(u64, usize)>,
    pub(crate) blocks: BTreeMap<u64, Known>,
    /// How many children of each block are on the device.
    children: BTreeMap<u64, usize>,
}

impl Listener {
    /// Takes a batch, which must be possible: on the device a parent is there before its child, and
    /// goes after it; nothing goes that is not there.
    pub(crate) fn hear(&mut self, payload: Option<&[u8]>) {
        for event in payload.map(decode).unwrap_or_default() {
            match event.field("type").text() {
                "AllBlocksCleared" => {
                    self.ready.clear();
                    self.children.clear();
                }
                "BlockRemoved" => self.removed(&event),
                "BlockStored" => self.stored(&event),
                other => panic!("an event {other}"),
            }
        }
    }

    fn removed(&mut self, event: &Value) {
        let tier = tier_of(event);
        for block in event.field("block_hashes").array() {
            let block = block.number();
            assert!(
                self.ready.remove(&(block, tier)),
                "{block} goes from {tier} and was not there"
            );
            if tier == 0 {
                let children = self.children.remove(&block).unwrap_or(0);
                assert_eq!(children, 0, "{block} goes before its children");
                if let Some(parent) = self.blocks[&block].parent {
                    *self.children.get_mut(&parent).expect("it has this one") -= 1;
                }
            }
        }
    }

    fn stored(&mut self, event: &Value) {
        let tier = tier_of(event);
        let mut parent = match event.field("parent_block_hash") {
            Value::Nil => None,
            parent => Some(parent.number()),
        };
        let size = event.field("block_size").number() as usize;
        let blocks = event.field("block_hashes").array();
        let tokens = event.field("token_ids").array();
        assert_eq!(tokens.len(), blocks.len() * size);
        for (block, tokens) in blocks.iter().zip(tokens.chunks(size)) {
            let block = block.number();
            let tokens = tokens.iter().map(Value::number).collect();
            let there = parent.is_none_or(|parent| self.ready.contains(&(parent, 0)));
            assert!(there || tier > 0, "{block} comes before its parent");
            let known = Known { parent, tokens };
            let before = self.blocks.insert(block, known.clone());
            assert!(
                before.as_ref().is_none_or(|before| *before == known),
                "{block} was {before:?} and is {known:?}"
            );
            if self.ready.insert((block, tier))
                && let Some(parent) = parent.filter(|_| tier == 0)
            {
                *self.children.entry(parent).or_default() += 1;
            }
            parent = Some(block);
        }
    }

    /// Nothing is known that is not `here`, which is sorted, and nothing is unknown, but where some
    /// is `untold`.
    pub(crate) fn compare(&self, here: &[(u64, usize)], untold: bool) {
        if self.ready.iter().eq(here) {
            return;
        }
        let over = self.ready.iter().find(|one| !here.contains(one));
        assert_eq!(over, None, "known, and not there");
        let under = here.iter().find(|one| !self.ready.contains(one));
        assert!(untold || under.is_none(), "there, and not known: {under:?}");
    }
}

fn tier_of(event: &Value) -> usize {
    let media = ["GPU", "CPU", "STORAGE", "EXTERNAL"];
    let medium = event.field("medium").text();
    media
        .iter()
        .position(|&own| own == medium)
        .expect("a medium")
}
