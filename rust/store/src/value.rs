//! Values: the record of a block, and its bytes. What a store gives is compared with what was asked for.

use blockyard_disk::{Found, Key, Owner, RECORD, Record, sum_of};

/// What the values of a lane have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The number of the identity: model, weights, layout and what else the bytes depend on.
    pub identity: u64,
    /// The rank.
    pub rank: u16,
    /// The group of layers.
    pub group: u16,
    /// Bytes of a block on this rank.
    pub bytes: u32,
}

impl Shape {
    /// Bytes of a value.
    pub fn value_bytes(&self) -> usize {
        RECORD + self.bytes as usize
    }
}

/// Puts the record of a payload before it.
///
/// # Arguments
/// `value` has [`Shape::value_bytes`] bytes, the last of which are the payload.
pub(crate) fn seal(shape: &Shape, owner: Owner, value: &mut [u8]) {
    let (place, payload) = value.split_at_mut(RECORD);
    let record = Record {
        owner,
        stamp: 0,
        sum: sum_of(payload),
        identity: shape.identity,
        length: shape.bytes,
        slot: u32::MAX,
        group: shape.group,
        rank: shape.rank,
        plan: 0,
    };
    place.copy_from_slice(&record.encode());
}

/// The payload of a value, if it is that of the block with this key. INV-26, INV-35a
pub fn valued<'value>(shape: &Shape, key: &Key, value: &'value [u8]) -> Option<&'value [u8]> {
    if value.len() != shape.value_bytes() {
        return None;
    }
    let (place, payload) = value.split_first_chunk::<RECORD>()?;
    let Found::Record(record) = Record::decode(place) else {
        return None;
    };
    let is_asked = record.owner.key() == *key
        && record.identity == shape.identity
        && record.length == shape.bytes
        && (record.rank, record.group) == (shape.rank, shape.group)
        && record.slot == u32::MAX;
    (is_asked && record.sum == sum_of(payload)).then_some(payload)
}
