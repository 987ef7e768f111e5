//! Plans: copies to make, as a small frozen value that can be sent to another process; and what
//! became of them. All numbers are little endian.
//!
//! ```text
//! 0     2      3               4       8       16    24
//! "Y3"  group  from * 16 + to  blocks  flight  yard  from[blocks] u32, to[blocks] u32
//!
//! 0     2               3      4       8       16    24     26    28     32
//! "Y4"  from * 16 + to  flags  blocks  flight  yard  group  rank  0 u32  from[], to[], keys[], parents[]
//! ```
//!
//! A plan is `Y4` where it carries keys or has a rank, and `Y3` otherwise, so that it has one form
//! as bytes. `Y1` and `Y2`, which name no yard, are of earlier versions, and refused. Group and rank are 0 in every plan that a yard makes. Flag 1 says that a key follows for
//! each block, 32 bytes; flag 2, which never comes without flag 1, that the keys of their parents do.
//!
//! A yard's plan carries keys where it touches a tier that [`crate::Config`] calls keyed: from such a
//! tier the keys of the blocks, to such a tier those of their parents too. They are those at the
//! time when the plan was made. Four of them are nobody's:
//!
//! - 24 zero bytes, and a number of 8 bytes that is not 0: an anonymous block, which was parked before
//!   it had a key. It keeps this one as long as it is parked; [`Key::is_anonymous`] knows it.
//! - 32 zero bytes, for a parent alone: there is none, the block is the first of its sequence.
//! - 16 zero bytes, and 16 of which the first is odd, for a parent alone: the root of the sequence, which
//!   its adapter and salt make; the block is its first. [`Key::is_root`] knows it.
//! - 32 bytes 0xFF: a block that was dropped, so that its key is not known any more.
//!
//! A plan from a tier below the device to the same tier copies nothing: the tier voids the records of its
//! keys and roots, and of all that stands on them. Slots say nothing there, and are 0. Where some keys stay,
//! it has parents: 32 bytes 0xFF of these, zeros of all others. All of its blocks are good, or none.

use crate::base::{
    Error, FlightId, Group, Key, MAX_TIERS, Read, Reader, Result, Slot, Tier, YardId,
};

/// With the version.
const MAGIC: &[u8; 2] = b"Y3";
/// The same, of a plan that carries keys.
const KEYED: &[u8; 2] = b"Y4";
const KEYS: u8 = 1;
const PARENTS: u8 = 2;

/// Copies between two tiers, or within the device. `from` and `to` have equal length; the copies
/// are independent, and an outcome counts how many of the leading ones are intact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The flight that this plan puts in flight.
    pub flight: FlightId,
    /// The yard that made it: flights of two yards may have one number.
    pub yard: YardId,
    /// The layers that are copied.
    pub group: Group,
    /// Tier of the sources.
    pub from: Tier,
    /// Tier of the destinations.
    pub to: Tier,
    /// Source slots.
    pub sources: Vec<u32>,
    /// Destination slots.
    pub destinations: Vec<u32>,
    /// A key per block, where a tier of the two must know them; empty otherwise.
    pub keys: Vec<Key>,
    /// The key of each block's parent, where the tier of the destinations must know it; empty
    /// otherwise, and where there are no keys.
    pub parents: Vec<Key>,
    /// Always 0 so far.
    pub rank: u16,
}

/// `blocks` consecutive slots to consecutive slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// First source slot.
    pub source: u32,
    /// First destination slot.
    pub destination: u32,
    /// How many.
    pub blocks: u32,
}

/// What became of a plan's copies: the leading `good` ones are intact on all ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Which flight has ended.
    pub flight: FlightId,
    /// How many of its leading copies are intact.
    pub good: u32,
    /// What became of the others.
    pub end: End,
}

/// What became of the copies behind the good ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// There are none: all are good.
    Good,
    /// They failed, if there are any; their sources are as good as before.
    Failed,
    /// The first of them failed its checksum, so that its source is no good either.
    Corrupt,
}

impl Outcome {
    /// So many leading copies are intact, and the others failed, if there are any.
    pub fn failed(flight: FlightId, good: u32) -> Self {
        let end = End::Failed;
        Self { flight, good, end }
    }

    /// So many leading copies are intact, and the source of the next one is corrupt.
    pub fn corrupt(flight: FlightId, good: u32) -> Self {
        let end = End::Corrupt;
        Self { flight, good, end }
    }
}

impl Plan {
    /// The outcome of copies that are all intact.
    pub fn whole(&self) -> Outcome {
        Outcome {
            flight: self.flight,
            good: self.len() as u32,
            end: End::Good,
        }
    }

    /// Blocks to copy.
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    /// Whether there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// The copies as typed slots, source first.
    pub fn moves(&self) -> impl Iterator<Item = (Slot, Slot)> + '_ {
        self.sources
            .iter()
            .zip(&self.destinations)
            .map(|(&from, &to)| {
                let group = self.group;
                (
                    Slot {
                        group,
                        tier: self.from,
                        index: from,
                    },
                    Slot {
                        group,
                        tier: self.to,
                        index: to,
                    },
                )
            })
    }

    /// The copies as runs of consecutive slots, in plan order.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (&source, &destination) in self.sources.iter().zip(&self.destinations) {
            match runs.last_mut() {
                Some(run)
                    if run.source + run.blocks == source
                        && run.destination + run.blocks == destination =>
                {
                    run.blocks += 1;
                }
                _ => runs.push(Run {
                    source,
                    destination,
                    blocks: 1,
                }),
            }
        }
        runs
    }

    /// 24 bytes and 8 per block, the same on every machine. With keys 32 and 40 per block, and with
    /// those of the parents 72 per block.
    pub fn to_bytes(&self) -> Vec<u8> {
        let tiers = (self.from.0 << 4 | self.to.0) as u8;
        let flag = |keys: &[Key], flag| if keys.is_empty() { 0 } else { flag };
        let flags = flag(&self.keys, KEYS) | flag(&self.parents, PARENTS);
        let keyed = flags != 0 || self.rank != 0;
        let keys = self.keys.len() + self.parents.len();
        let mut bytes = Vec::with_capacity(32 + 8 * self.len() + 32 * keys);
        if keyed {
            bytes.extend_from_slice(KEYED);
            bytes.extend_from_slice(&[tiers, flags]);
        } else {
            bytes.extend_from_slice(MAGIC);
            bytes.extend_from_slice(&[self.group.0, tiers]);
        }
        bytes.extend_from_slice(&(self.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.flight.number().to_le_bytes());
        bytes.extend_from_slice(&self.yard.0.to_le_bytes());
        if keyed {
            bytes.extend_from_slice(&u16::from(self.group.0).to_le_bytes());
            bytes.extend_from_slice(&self.rank.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
        for slot in self.sources.iter().chain(&self.destinations) {
            bytes.extend_from_slice(&slot.to_le_bytes());
        }
        for key in self.keys.iter().chain(&self.parents) {
            bytes.extend_from_slice(&key.0);
        }
        bytes
    }

    /// Back from [`Self::to_bytes`].
    ///
    /// # Errors
    /// `Argument` when the bytes are not a plan of a known version, whole.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::read(Reader(bytes))
            .map_err(|help| Error::argument("plan", format!("{} bytes", bytes.len()), help))
    }

    fn read(mut reader: Reader<'_>) -> Read<Self> {
        let magic = reader.take::<2>()?;
        let first = reader.take::<2>()?;
        let count = u32::from_le_bytes(reader.take()?);
        let flight = u64::from_le_bytes(reader.take()?);
        let yard = YardId(u64::from_le_bytes(reader.take()?));
        let (group, tiers, flags, rank) = match &magic {
            MAGIC => (first[0], first[1], 0, 0),
            KEYED => {
                let group = u16::from_le_bytes(reader.take()?);
                let rank = u16::from_le_bytes(reader.take()?);
                if reader.take::<4>()? != [0; 4] {
                    return Err("its reserved bytes 28 to 31 are not 0");
                }
                let group = u8::try_from(group).map_err(|_| "its group is above 255")?;
                if first[1] & !(KEYS | PARENTS) != 0 {
                    return Err("it has flags that are none: they are 1 for keys, 2 for parents");
                }
                (group, first[0], first[1], rank)
            }
            _ => return Err("not a plan of this version: run one version everywhere"),
        };
        let flight = FlightId::from_number(flight).ok_or("its flight number is none")?;
        let (from, to) = (Tier((tiers >> 4).into()), Tier((tiers & 15).into()));
        if from.max(to).at() >= MAX_TIERS {
            return Err("it names a tier that there is none of");
        }
        if flags == PARENTS {
            return Err("it has keys of parents, and none of the blocks themselves");
        }
        if flags != 0 && count == 0 {
            return Err("it says that keys follow, and has no blocks");
        }
        if magic == *KEYED && flags == 0 && rank == 0 {
            return Err("a plan without keys and of rank 0 is a Y3, and this one is a Y4");
        }
        let keys = u64::from(flags & KEYS != 0) + u64::from(flags & PARENTS != 0);
        if reader.0.len() as u64 != u64::from(count) * (8 + 32 * keys) {
            return Err(if magic == *MAGIC {
                "its length is not 24 + 8 per block: it was cut or padded"
            } else {
                "its length is not 32 + 8 per block and 32 per key: it was cut or padded"
            });
        }
        let count = count as usize;
        Ok(Self {
            flight,
            yard,
            group: Group(group),
            from,
            to,
            sources: reader.all(count, u32::from_le_bytes)?,
            destinations: reader.all(count, u32::from_le_bytes)?,
            keys: reader.all(if flags & KEYS == 0 { 0 } else { count }, Key)?,
            parents: reader.all(if flags & PARENTS == 0 { 0 } else { count }, Key)?,
            rank,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            flight: FlightId::from_number((3 << 32) | 5).expect("a number"),
            yard: YardId(9 << 40 | 1),
            group: Group(0),
            from: Tier::DEVICE,
            to: Tier::HOST,
            sources: vec![7, 8, 9, 3],
            destinations: vec![1, 2, 4, 5],
            keys: vec![],
            parents: vec![],
            rank: 0,
        }
    }

    #[test]
    fn bytes_are_24_and_8_per_block_and_come_back() {
        let bytes = plan().to_bytes();
        assert_eq!(bytes.len(), 24 + 8 * 4);
        assert_eq!(Plan::from_bytes(&bytes), Ok(plan()));
        for cut in 0..bytes.len() {
            assert!(Plan::from_bytes(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn runs_join_what_is_consecutive_on_both_sides() {
        let runs = plan().runs();
        let run = |source, destination, blocks| Run {
            source,
            destination,
            blocks,
        };
        assert_eq!(runs, [run(7, 1, 2), run(9, 4, 1), run(3, 5, 1)]);
    }
}
