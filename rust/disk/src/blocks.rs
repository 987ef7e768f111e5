//! A rank's blocks: payloads in one file, their records in another, and no order between the two that a
//! reader relies on.

use crate::error::{Error, Result};
use crate::files::ALIGNED;
use crate::medium::Medium;
use crate::record::{Found, Key, Owner, RECORD, Record, sum_of};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// Where blocks lie in their file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    slots: u32,
    bytes: u32,
}

impl Geometry {
    /// Slots of blocks of so many bytes, each at a multiple of 4 KiB.
    ///
    /// # Errors
    /// `Argument` where there are none, or a block has 0 bytes or more than 2 GiB.
    pub fn new(slots: u32, bytes: u32) -> Result<Self> {
        let wrong = |name, value: u32, help| Error::Argument {
            name,
            value: value.into(),
            help,
        };
        if slots == 0 {
            return Err(wrong("slots", slots, "must be 1 or more"));
        }
        if bytes == 0 || bytes > 1 << 31 {
            return Err(wrong("bytes", bytes, "must be 1 to 2^31"));
        }
        Ok(Self { slots, bytes })
    }

    /// The slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a block.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Bytes from a slot to the next.
    pub fn stride(&self) -> usize {
        (self.bytes as usize).next_multiple_of(ALIGNED)
    }

    /// Bytes of the file of payloads.
    pub fn payload_bytes(&self) -> u64 {
        u64::from(self.slots) * self.stride() as u64
    }

    /// Bytes of the file of records.
    pub fn table_bytes(&self) -> u64 {
        u64::from(self.slots) * RECORD as u64
    }
}

/// What a block is asked for by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Its slot.
    pub slot: u32,
    /// Its key.
    pub key: Key,
}

/// Why a slot does not have what was asked for. Each is a miss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doubt {
    /// The slot has no record, or a broken one.
    NoRecord,
    /// Its record is of another block, folder, rank or length.
    Another,
    /// The payload is not what the record is of: torn, or a bit has flipped.
    Sum,
}

/// Records to be voided: of these keys or roots, of all that stands on one of them, and of what stands on a
/// block that has no record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Family {
    /// The keys and roots.
    pub keys: Vec<Key>,
    /// Keys whose records stay, and are known to stand on something else where they stand on no record.
    pub spared: Vec<Key>,
    /// Only what has a smaller stamp.
    pub before: u64,
}

/// The blocks of one rank.
#[derive(Clone, Debug)]
pub struct Blocks {
    payloads: Arc<dyn Medium>,
    table: Arc<dyn Medium>,
    geometry: Geometry,
    identity: u64,
    rank: u16,
    group: u16,
}

impl Blocks {
    /// Blocks over two files of the lengths that the geometry says.
    pub fn new(
        payloads: Arc<dyn Medium>,
        table: Arc<dyn Medium>,
        geometry: Geometry,
        identity: u64,
        rank: u16,
    ) -> Self {
        Self {
            payloads,
            table,
            geometry,
            identity,
            rank,
            group: 0,
        }
    }

    /// The same, of a group of layers.
    #[must_use]
    pub fn of_group(self, group: u16) -> Self {
        Self { group, ..self }
    }

    /// Where the blocks lie.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Writes a payload, and returns the record that is to follow it. The slot has no record until then:
    /// what was there is void before the first byte of another block comes. INV-30
    ///
    /// # Arguments
    /// `staged` has the block's bytes, and what fills them up to the stride.
    ///
    /// # Errors
    /// `InvalidInput` for a slot that is not there or another length; else what the system says.
    pub fn write(&self, slot: u32, owner: Owner, stamp: u64, staged: &[u8]) -> io::Result<Record> {
        self.check(slot, staged.len())?;
        self.void(slot)?;
        let record = Record {
            owner,
            stamp,
            sum: sum_of(&staged[..self.geometry.bytes as usize]),
            identity: self.identity,
            length: self.geometry.bytes,
            slot,
            group: self.group,
            rank: self.rank,
            plan: 0,
        };
        self.payloads.write(self.payload(slot), staged)?;
        Ok(record)
    }

    /// Makes the payloads and the records of some writes durable: only then may they be acknowledged.
    /// INV-27
    ///
    /// # Errors
    /// What the system says; then none of them may be.
    pub fn commit(&self, records: &[Record]) -> io::Result<()> {
        self.payloads.sync()?;
        for record in records {
            self.check_slot(record.slot)?;
            self.table
                .write(Self::place(record.slot), &record.encode())?;
        }
        self.table.sync()
    }

    /// Closes the files, when nobody reads or writes them any more.
    pub(crate) fn close(&self) {
        self.payloads.close();
        self.table.close();
    }

    /// Reads a block, if the slot has what is asked for. INV-26
    ///
    /// # Arguments
    /// `staged` gets the block's bytes, and what fills them up to the stride.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn read(
        &self,
        asked: &Asked,
        staged: &mut [u8],
    ) -> io::Result<std::result::Result<Record, Doubt>> {
        self.check(asked.slot, staged.len())?;
        let record = match self.record(asked.slot)? {
            Found::Void | Found::Broken => return Ok(Err(Doubt::NoRecord)),
            Found::Record(record) => record,
        };
        if record.owner.key() != asked.key || !self.is_mine(&record, asked.slot) {
            return Ok(Err(Doubt::Another));
        }
        self.payloads.read(self.payload(asked.slot), staged)?;
        if sum_of(&staged[..self.geometry.bytes as usize]) != record.sum {
            return Ok(Err(Doubt::Sum));
        }
        Ok(Ok(record))
    }

    /// Voids a slot's record. A kill keeps that; a power cut may bring the old record back, whose payload is
    /// whole then or has another sum.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn void(&self, slot: u32) -> io::Result<()> {
        self.check_slot(slot)?;
        self.table.write(Self::place(slot), &[0; RECORD])
    }

    /// Reads the whole table: the records of this folder and rank, each at its slot, that somebody may find
    /// again. INV-28
    ///
    /// # Errors
    /// What the system says.
    pub fn restore(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        self.each_record(|record| {
            if !matches!(record.owner, Owner::Nobody(_)) {
                records.push(record);
            }
        })?;
        Ok(records)
    }

    /// Looks at the records of this folder and rank, each at its slot.
    fn each_record(&self, mut look: impl FnMut(Record)) -> io::Result<()> {
        const AT_ONCE: u32 = 8192;
        let mut bytes = vec![0; AT_ONCE as usize * RECORD];
        for first in (0..self.geometry.slots).step_by(AT_ONCE as usize) {
            let count = AT_ONCE.min(self.geometry.slots - first);
            let part = &mut bytes[..count as usize * RECORD];
            self.table.read(Self::place(first), part)?;
            for (place, slot) in part.as_chunks().0.iter().zip(first..) {
                if let Found::Record(record) = Record::decode(place)
                    && self.is_mine(&record, slot)
                {
                    look(record);
                }
            }
        }
        Ok(())
    }

    /// Voids the records of these keys, or roots, and of all that stands on them; and of what stands on a
    /// block that has no record, as that may have been one of them. Only what was written before goes.
    /// When it returns, no restart brings any of it back. Nobody else may write a record meanwhile. INV-42
    ///
    /// # Errors
    /// What the system says; then some may be there still.
    pub fn void_family(&self, family: &Family) -> io::Result<u64> {
        // By what each stands on.
        let mut found: Vec<(u64, u64, u32)> = Vec::new();
        let mut stands: Vec<u64> = family
            .keys
            .iter()
            .map(|key| XxHash3_64::oneshot(key))
            .collect();
        let named: HashSet<u64> = stands.iter().copied().collect();
        let spared: HashSet<u64> = family
            .spared
            .iter()
            .map(|key| XxHash3_64::oneshot(key))
            .collect();
        let mut known: HashSet<u64> = HashSet::new();
        self.each_record(|record| {
            let [parent, key] =
                [record.owner.parent(), record.owner.key()].map(|key| XxHash3_64::oneshot(&key));
            known.insert(key);
            if matches!(record.owner, Owner::First(_) | Owner::Rooted { .. }) {
                known.insert(parent);
            }
            if record.stamp < family.before && !matches!(record.owner, Owner::Nobody(_)) {
                found.push((parent, key, record.slot));
            }
        })?;
        found.sort_unstable();
        let astray = |one: &(u64, u64, u32)| !known.contains(&one.0) && !spared.contains(&one.1);
        let mut doomed: Vec<bool> = found
            .iter()
            .map(|one| named.contains(&one.1) || astray(one))
            .collect();
        let first = found.iter().zip(&doomed).filter(|&(_, &doomed)| doomed);
        stands.extend(first.map(|(one, _)| one.1));
        while let Some(above) = stands.pop() {
            let first = found.partition_point(|one| one.0 < above);
            let behind = found[first..].iter().take_while(|one| one.0 == above);
            for (at, one) in (first..).zip(behind) {
                if !std::mem::replace(&mut doomed[at], true) {
                    stands.push(one.1);
                }
            }
        }
        let mut voided = 0;
        let doomed = found.into_iter().zip(doomed).filter(|&(_, doomed)| doomed);
        for ((_, key, slot), _) in doomed {
            if !spared.contains(&key) {
                self.void(slot)?;
                voided += 1;
            }
        }
        // Also what was voided before and not synced: a power cut would bring it back.
        self.table.sync()?;
        Ok(voided)
    }

    fn record(&self, slot: u32) -> io::Result<Found> {
        let mut bytes = [0; RECORD];
        self.table.read(Self::place(slot), &mut bytes)?;
        Ok(Record::decode(&bytes))
    }

    fn is_mine(&self, record: &Record, slot: u32) -> bool {
        record.slot == slot
            && record.identity == self.identity
            && record.length == self.geometry.bytes
            && (record.group, record.rank) == (self.group, self.rank)
    }

    fn payload(&self, slot: u32) -> u64 {
        u64::from(slot) * self.geometry.stride() as u64
    }

    fn place(slot: u32) -> u64 {
        u64::from(slot) * RECORD as u64
    }

    fn check(&self, slot: u32, staged: usize) -> io::Result<()> {
        self.check_slot(slot)?;
        let stride = self.geometry.stride();
        if staged == stride {
            return Ok(());
        }
        let says = format!("{staged} bytes are staged, and a slot has {stride}");
        Err(io::Error::new(io::ErrorKind::InvalidInput, says))
    }

    fn check_slot(&self, slot: u32) -> io::Result<()> {
        let slots = self.geometry.slots;
        if slot < slots {
            return Ok(());
        }
        let says = format!("slot {slot}: there are slots 0 to {}", slots - 1);
        Err(io::Error::new(io::ErrorKind::InvalidInput, says))
    }
}
