//! Records: whose bytes a slot has, in 128 bytes. 128 divides a sector of 512, so that no record lies in
//! two sectors, and what a power cut leaves of one is the old record or the new one.
//!
//! ```text
//!   0  magic, version   4     40  key      32    120  check: XXH3-64 of the first 120 bytes
//!   4  flags            4     72  parent   32
//!   8  stamp            8    104  length    4
//!  16  sum             16    108  slot      4
//!  32  identity         8    112  group 2, rank 2, plan 4
//! ```
//! All numbers are little-endian. Versions before have no plan, which is 0 then, and pass over it.

use twox_hash::{XxHash3_64, XxHash3_128};

/// Bytes of a record.
pub const RECORD: usize = 128;
const CHECKED: usize = 120;
const MAGIC: [u8; 4] = *b"BYD1";
/// The version in it.
pub(crate) const VERSION: u32 = 1;
const FIRST: u32 = 1;
const ANONYMOUS: u32 = 2;

/// A key of 32 bytes.
pub type Key = [u8; 32];

/// Whose block it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// The first block of a sequence.
    First(Key),
    /// The same, of a sequence whose root is known: what all sequences of one salt and adapter begin with.
    Rooted {
        /// Its key.
        key: Key,
        /// What stands for the key of the block before it.
        root: Key,
    },
    /// A later block, and the key of the one before it.
    After {
        /// Its key.
        key: Key,
        /// The key of the block before it.
        parent: Key,
    },
    /// The partial block of a parked request, by a key that is its own for as long: no other ever finds
    /// it, and no restart.
    Nobody(Key),
}

impl Owner {
    /// The key under which the block is asked for.
    pub fn key(&self) -> Key {
        match *self {
            Self::First(key)
            | Self::Rooted { key, .. }
            | Self::After { key, .. }
            | Self::Nobody(key) => key,
        }
    }

    /// What it stands on: the key of the block before it, or its root; zeros where there is none.
    pub fn parent(&self) -> Key {
        match *self {
            Self::Rooted { root: parent, .. } | Self::After { parent, .. } => parent,
            Self::First(_) | Self::Nobody(_) => [0; 32],
        }
    }
}

/// Whose bytes a slot has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Whose block it is.
    pub owner: Owner,
    /// When it was written: the run of the writer in the upper 32 bits, a count in the lower.
    pub stamp: u64,
    /// The sum of its payload, by [`sum_of`].
    pub sum: u128,
    /// Of the folder: model, weights, layout and what else its bytes depend on.
    pub identity: u64,
    /// Bytes of its payload.
    pub length: u32,
    /// The slot that it describes.
    pub slot: u32,
    /// The group of layers.
    pub group: u16,
    /// The rank that has written it.
    pub rank: u16,
    /// A number of the plan that has written it, the same on all ranks; 0 where nobody has said.
    pub plan: u32,
}

/// What a slot's place in the table has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Zeros: the slot has no block.
    Void,
    /// Bytes that are no whole record of this version.
    Broken,
    /// A record.
    Record(Record),
}

/// The sum of a payload: XXH3 of 128 bits, which no accident makes alike. It is not against malice.
pub fn sum_of(payload: &[u8]) -> u128 {
    XxHash3_128::oneshot(payload)
}

impl Record {
    /// Its bytes.
    pub fn encode(&self) -> [u8; RECORD] {
        let flags = match self.owner {
            Owner::First(_) | Owner::Rooted { .. } => FIRST,
            Owner::After { .. } => 0,
            Owner::Nobody(_) => ANONYMOUS,
        };
        let mut bytes = [0; RECORD];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC);
        put(&flags.to_le_bytes());
        put(&self.stamp.to_le_bytes());
        put(&self.sum.to_le_bytes());
        put(&self.identity.to_le_bytes());
        put(&self.owner.key());
        put(&self.owner.parent());
        put(&self.length.to_le_bytes());
        put(&self.slot.to_le_bytes());
        put(&self.group.to_le_bytes());
        put(&self.rank.to_le_bytes());
        put(&self.plan.to_le_bytes());
        let check = XxHash3_64::oneshot(&bytes[..CHECKED]);
        bytes[CHECKED..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads what stands in a slot's place.
    pub fn decode(bytes: &[u8; RECORD]) -> Found {
        if bytes.iter().all(|&byte| byte == 0) {
            return Found::Void;
        }
        let mut rest = &bytes[..];
        let check = XxHash3_64::oneshot(&bytes[..CHECKED]);
        if take::<4>(&mut rest) != MAGIC || bytes[CHECKED..] != check.to_le_bytes() {
            return Found::Broken;
        }
        let flags = u32::from_le_bytes(take(&mut rest));
        let stamp = u64::from_le_bytes(take(&mut rest));
        let sum = u128::from_le_bytes(take(&mut rest));
        let identity = u64::from_le_bytes(take(&mut rest));
        let (key, parent) = (take(&mut rest), take(&mut rest));
        let owner = match flags {
            0 => Owner::After { key, parent },
            FIRST if parent == [0; 32] => Owner::First(key),
            FIRST => Owner::Rooted { key, root: parent },
            ANONYMOUS => Owner::Nobody(key),
            // A later version's.
            _ => return Found::Broken,
        };
        Found::Record(Self {
            owner,
            stamp,
            sum,
            identity,
            length: u32::from_le_bytes(take(&mut rest)),
            slot: u32::from_le_bytes(take(&mut rest)),
            group: u16::from_le_bytes(take(&mut rest)),
            rank: u16::from_le_bytes(take(&mut rest)),
            plan: u32::from_le_bytes(take(&mut rest)),
        })
    }
}

/// The version of a whole record that a later version has written; 0 where it is none.
pub(crate) fn later_record(bytes: &[u8; RECORD]) -> u32 {
    let is_whole = bytes[CHECKED..] == XxHash3_64::oneshot(&bytes[..CHECKED]).to_le_bytes();
    let version = version_in(bytes, MAGIC);
    if is_whole && version > VERSION {
        version
    } else {
        0
    }
}

/// The version in a file's first bytes, which begin like these but for their last one, a digit; 0 for none.
pub(crate) fn version_in(bytes: &[u8], like: [u8; 4]) -> u32 {
    match bytes.get(..4) {
        Some([name @ .., digit]) if name == &like[..3] && digit.is_ascii_digit() => {
            u32::from(digit - b'0')
        }
        _ => 0,
    }
}

/// The next bytes, which are there: a record has its length.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (part, more) = rest.split_at(N);
    *rest = more;
    let mut bytes = [0; N];
    bytes.copy_from_slice(part);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            owner: Owner::After {
                key: [7; 32],
                parent: [9; 32],
            },
            stamp: 3 << 32 | 5,
            sum: 11,
            identity: 13,
            length: 4096,
            slot: 17,
            group: 1,
            rank: 2,
            plan: 19,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for owner in [
            record().owner,
            Owner::First([1; 32]),
            Owner::Rooted {
                key: [1; 32],
                root: [3; 32],
            },
            Owner::Nobody([2; 32]),
        ] {
            let one = Record { owner, ..record() };
            assert_eq!(Record::decode(&one.encode()), Found::Record(one));
        }
        assert_eq!(Record::decode(&[0; RECORD]), Found::Void);
    }

    #[test]
    fn the_encoding_stays_what_it_is() {
        let bytes = record().encode();
        assert_eq!(bytes[..8], *b"BYD1\0\0\0\0");
        assert_eq!(bytes[8..16], [5, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!((bytes[16], bytes[32]), (11, 13));
        assert_eq!((bytes[40], bytes[71], bytes[72], bytes[103]), (7, 7, 9, 9));
        assert_eq!(bytes[104..116], [0, 16, 0, 0, 17, 0, 0, 0, 1, 0, 2, 0]);
        assert_eq!(bytes[116..120], [19, 0, 0, 0]);
        assert_eq!(
            bytes[120..],
            XxHash3_64::oneshot(&bytes[..120]).to_le_bytes()
        );
    }

    #[test]
    fn each_flipped_bit_is_noticed() {
        let whole = record().encode();
        for at in 0..RECORD * 8 {
            let mut bytes = whole;
            bytes[at / 8] ^= 1 << (at % 8);
            assert_eq!(Record::decode(&bytes), Found::Broken, "bit {at}");
        }
    }

    #[test]
    fn a_later_version_is_no_record_of_this_one() {
        for (at, byte, version) in [(4, 4, 0), (3, b'2', 2), (3, b'9', 9), (3, b'0', 0)] {
            let mut bytes = record().encode();
            bytes[at] = byte;
            assert_eq!(later_record(&bytes), 0, "it is not whole");
            let check = XxHash3_64::oneshot(&bytes[..CHECKED]);
            bytes[CHECKED..].copy_from_slice(&check.to_le_bytes());
            assert_eq!(Record::decode(&bytes), Found::Broken);
            assert_eq!(later_record(&bytes), version);
        }
    }
}
