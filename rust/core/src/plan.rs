//! Plans: copies to make, as a small frozen value that can be sent to another process; and what
//! became of them.
//!
//! ```text
//! 0     2      3               4       8       16
//! "Y1"  group  from * 16 + to  blocks  flight  from[blocks] u32 LE, to[blocks] u32 LE
//! ```

use crate::error::{Error, Result};
use crate::id::{FlightId, Group, MAX_TIERS, Slot, Tier};

/// With the version.
const MAGIC: &[u8; 2] = b"Y1";
const HEADER: usize = 16;

/// Copies between two tiers, or within the device. `from` and `to` have equal length; the copies
/// are independent, and an outcome counts how many of the leading ones are intact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The flight that this plan puts in flight.
    pub flight: FlightId,
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

    /// 16 bytes and 8 per block, little endian, the same on every machine.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + 8 * self.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[self.group.0, (self.from.0 << 4 | self.to.0) as u8]);
        bytes.extend_from_slice(&(self.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.flight.number().to_le_bytes());
        for slot in self.sources.iter().chain(&self.destinations) {
            bytes.extend_from_slice(&slot.to_le_bytes());
        }
        bytes
    }

    /// Back from [`Self::to_bytes`].
    ///
    /// # Errors
    /// `Argument` when the bytes are not a plan of this version, whole.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |help| Error::argument("plan", format!("{} bytes", bytes.len()), help);
        let Some((header, slots)) = bytes.split_at_checked(HEADER) else {
            return Err(bad("pass what Plan.to_bytes() gave, whole"));
        };
        if header[..2] != *MAGIC {
            return Err(bad(
                "not a plan of this version: run one version everywhere",
            ));
        }
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&header[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let flight = FlightId::from_number(u64::from(word(12)) << 32 | u64::from(word(8)))
            .ok_or_else(|| bad("its flight number is none"))?;
        let (from, to) = (Tier((header[3] >> 4).into()), Tier((header[3] & 15).into()));
        if from.max(to).at() >= MAX_TIERS {
            return Err(bad("it names a tier that there is none of"));
        }
        let count = word(4) as usize;
        if slots.len() != 8 * count {
            return Err(bad(
                "its length is not 16 + 8 per block: it was cut or padded",
            ));
        }
        let mut words = slots
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word));
        Ok(Self {
            flight,
            group: Group(header[2]),
            from,
            to,
            sources: words.by_ref().take(count).collect(),
            destinations: words.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            flight: FlightId::from_number((3 << 32) | 5).expect("a number"),
            group: Group(0),
            from: Tier::DEVICE,
            to: Tier::HOST,
            sources: vec![7, 8, 9, 3],
            destinations: vec![1, 2, 4, 5],
        }
    }

    #[test]
    fn bytes_are_16_and_8_per_block_and_come_back() {
        let bytes = plan().to_bytes();
        assert_eq!(bytes.len(), 16 + 8 * 4);
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
