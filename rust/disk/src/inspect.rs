//! A rank's folder as somebody sees it who does not own it: whose it is, what its table says, and whether the
//! payloads are what they were. It only reads, and no owner waits for it.

use crate::error::{Error, Result};
use crate::files::ALIGNED;
use crate::folder::{FolderPlace, LOST, settled};
use crate::formats;
use crate::identity::{Identity, Numbers, spoiled, version_of};
use crate::record::{Found, Owner, RECORD, Record, sum_of};
use crate::staging::Staging;
use crate::witness::{FLOOR, Table};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use twox_hash::XxHash3_64;

/// Records that are read at once.
const AT_ONCE: u32 = 8192;

/// What a slot has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// No record.
    Void,
    /// A record that is not whole, or of a later version.
    Broken,
    /// A record of another slot, folder, rank or length.
    Another,
    /// A record from before the last clear: it is not restored.
    Cleared,
    /// A part of a parked request: no restart finds it.
    Parked,
    /// A block that a restart finds.
    Block,
    /// A block or part, whose payload is not what the record is of.
    Torn,
    /// A block or part, whose payload the system cannot read.
    Unreadable,
    /// A block or part that was written to while it was read.
    Busy,
}

impl State {
    /// All of them, as [`Tally`] counts.
    pub const ALL: [Self; 9] = [
        Self::Void,
        Self::Broken,
        Self::Another,
        Self::Cleared,
        Self::Parked,
        Self::Block,
        Self::Torn,
        Self::Unreadable,
        Self::Busy,
    ];
}

/// How many slots have what: together as many as were looked at.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally([u64; State::ALL.len()]);

impl Tally {
    /// How many are in this state.
    pub fn of(&self, state: State) -> u64 {
        self.0[state as usize]
    }

    /// How many were looked at.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    fn note(&mut self, state: State) {
        self.0[state as usize] += 1;
    }
}

/// What a scrub has found.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Scrubbed {
    /// The slots by state.
    pub tally: Tally,
    /// The slots that are [`State::Torn`], [`State::Broken`], [`State::Another`] or [`State::Unreadable`], in
    /// rising order: whoever asks for a block of theirs gets a miss.
    pub bad: Vec<u32>,
    /// Bytes of payloads that were read.
    pub bytes: u64,
}

/// The folder of a rank and an identity.
#[derive(Debug)]
pub struct Inspector {
    path: PathBuf,
    text: String,
    writer: Option<String>,
    identity: u64,
    rank: u16,
    floor: u64,
    owner: Option<u32>,
    payloads: Option<File>,
    table: Option<File>,
    slots: u32,
    stride: u32,
    disk_bytes: u64,
}

impl Inspector {
    /// Looks at a folder `rank-N` of an identity.
    ///
    /// Whether it is owned is found out by taking its locks, shared, and giving them back at once. An owner
    /// that comes in that instant waits for it.
    ///
    /// # Errors
    /// `System` where there is no such folder, a symbolic link is in its place, it is not of this format, its
    /// files do not fit together, its next owner would be refused as in [`Folder::open`], or the system
    /// refuses.
    ///
    /// [`Folder::open`]: crate::Folder::open
    pub fn open(path: &Path) -> Result<Self> {
        let rank = rank_of(path)?;
        let whole = path.join("identity");
        let refused = |doing| Error::system(whole.clone(), doing);
        let payloads = look(&path.join("slots"), OFlags::DIRECT)?;
        let table = look(&path.join("table"), OFlags::empty())?;
        let Some(file) = look(&whole, OFlags::empty())? else {
            let has_blocks = table.as_ref().is_some_and(|table| !is_void(table));
            return Err(if has_blocks {
                spoiled(&whole, LOST)
            } else {
                refused("open")(io::ErrorKind::NotFound.into())
            });
        };
        let mut is_owned = false;
        for file in [payloads.as_ref(), table.as_ref(), Some(&file)] {
            is_owned |= file
                .map_or(Ok(false), is_locked)
                .map_err(refused("try its lock"))?;
        }
        let (text, numbers) = Self::settle(&whole, &file, table.as_ref(), rank)?;
        let mut made = Self {
            identity: XxHash3_64::oneshot(text.as_bytes()),
            path: path.to_owned(),
            text,
            writer: Identity::read(&file).ok().and_then(|found| found.writer()),
            rank,
            floor: numbers.floor,
            owner: is_owned.then_some(numbers.owner),
            payloads,
            table,
            slots: 0,
            stride: 0,
            disk_bytes: 0,
        };
        (made.slots, made.stride) = made.measure(&file)?;
        Ok(made)
    }

    /// The text of a folder, and its numbers, as its next owner would settle them.
    fn settle(
        whole: &Path,
        file: &File,
        table: Option<&File>,
        rank: u16,
    ) -> Result<(String, Numbers)> {
        let refused = |doing| Error::system(whole, doing);
        let mut again = false;
        loop {
            let found = Identity::read(file).map_err(refused("read"))?;
            if found.is_void() && table.is_some_and(|table| !is_void(table)) {
                return Err(spoiled(whole, LOST));
            }
            let Some((text, is_checked)) = found.said() else {
                return Err(refused("read")(io::Error::other("it says nothing yet")));
            };
            version_of(whole, &text, found.writer())?;
            if !is_checked && FolderPlace::is_another(whole, &text) {
                let says = "its text is of another identity, or bits of it have flipped";
                return Err(spoiled(whole, says));
            }
            let known = match table {
                None => Table::VOID,
                Some(table) => Table::read(table, XxHash3_64::oneshot(text.as_bytes()), rank)
                    .map_err(refused("read the table beside"))?,
            };
            formats::check_table(whole.parent().unwrap_or(whole), known)?;
            let witness = look(&whole.with_file_name(FLOOR), OFlags::empty());
            let witness = witness.ok().flatten();
            match settled(whole, &found, known, witness.as_ref()) {
                // An owner may have come, and written, since the identity was read.
                Err(_) if !again => again = true,
                done => return Ok((text, done?)),
            }
        }
    }

    /// Its slots and the bytes from one to the next; both 0 before its files have their length.
    fn measure(&mut self, identity: &File) -> Result<(u32, u32)> {
        let mut sizes = [0; 2];
        let files = [self.payloads.as_ref(), self.table.as_ref()];
        for (file, size) in files.into_iter().zip(&mut sizes) {
            if let Some(file) = file {
                let meta = file.metadata();
                let meta = meta.map_err(Error::system(&self.path, "look at"))?;
                *size = meta.size();
                self.disk_bytes += 512 * meta.blocks();
            }
        }
        let meta = identity.metadata();
        self.disk_bytes += 512 * meta.map_err(Error::system(&self.path, "look at"))?.blocks();
        let [payloads, table] = sizes;
        if payloads == 0 || table == 0 {
            return Ok((0, 0));
        }
        let slots = table / RECORD as u64;
        let fits = table % RECORD as u64 == 0
            && payloads % slots == 0
            && (payloads / slots).is_multiple_of(ALIGNED as u64);
        match (u32::try_from(slots), u32::try_from(payloads / slots.max(1))) {
            (Ok(slots), Ok(stride)) if fits => Ok((slots, stride)),
            _ => {
                let says = format!("slots of {payloads} bytes and a table of {table} do not fit");
                Err(Error::system(&self.path, "read")(io::Error::other(says)))
            }
        }
    }

    /// Its identity in clear text: a title, and a line for each field.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The version of Blockyard that was its last owner, where it has said so.
    pub fn writer(&self) -> Option<&str> {
        self.writer.as_deref()
    }

    /// Its rank.
    pub fn rank(&self) -> u16 {
        self.rank
    }

    /// The process that owned it when this was opened.
    pub fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// Its slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes from a slot to the next.
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// Bytes that its files take on the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// Counts what its slots have by the table alone.
    ///
    /// # Errors
    /// `System` where the system refuses.
    pub fn count(&self) -> Result<Tally> {
        let mut tally = Tally::default();
        for first in (0..self.slots).step_by(AT_ONCE as usize) {
            let places = self.places(first, AT_ONCE.min(self.slots - first))?;
            for (place, slot) in places.as_chunks().0.iter().zip(first..) {
                tally.note(self.state(slot, &Record::decode(place)));
            }
        }
        Ok(tally)
    }

    /// Reads payloads, and says which are what their records are of. It is exact also while the folder's owner
    /// writes: a slot is void before it is written to, so of a payload that was read while its record stayed as
    /// it is, nothing was written meanwhile. INV-30
    ///
    /// # Arguments
    /// Slots from `first` on, `slots` of them or as many as there are.
    ///
    /// # Errors
    /// `System` where the table cannot be read.
    pub fn scrub(&self, first: u32, slots: u32, threads: usize) -> Result<Scrubbed> {
        let first = first.min(self.slots);
        let slots = slots.min(self.slots - first);
        let places = self.places(first, slots)?;
        let places = places.as_chunks().0;
        let threads = threads.clamp(1, 64).min(places.len().max(1));
        let ring = Staging::new(threads, self.stride as usize);
        let next = AtomicUsize::new(0);
        let all = Mutex::new(Scrubbed::default());
        let work = || {
            let mut staged = ring.take();
            let mut own = Scrubbed::default();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(place) = places.get(at) else {
                    break;
                };
                let slot = first + at as u32;
                let state = match Record::decode(place) {
                    Found::Record(record) if self.is_read(slot, &record) => {
                        own.bytes += u64::from(record.length);
                        self.verify(slot, &record, &mut staged)
                    }
                    found => self.state(slot, &found),
                };
                own.tally.note(state);
                if matches!(
                    state,
                    State::Torn | State::Broken | State::Another | State::Unreadable
                ) {
                    own.bad.push(slot);
                }
            }
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            for state in State::ALL {
                all.tally.0[state as usize] += own.tally.of(state);
            }
            all.bad.append(&mut own.bad);
            all.bytes += own.bytes;
        };
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
        let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        all.bad.sort_unstable();
        Ok(all)
    }

    /// Whether a scrub reads the payload: whoever asks for the block would.
    fn is_read(&self, slot: u32, record: &Record) -> bool {
        let state = self.state(slot, &Found::Record(record.clone()));
        matches!(state, State::Block | State::Parked)
    }

    fn verify(&self, slot: u32, record: &Record, staged: &mut [u8]) -> State {
        let at = u64::from(slot) * u64::from(self.stride);
        let read = self
            .payloads
            .as_ref()
            .map(|file| file.read_exact_at(staged, at));
        let is_whole =
            matches!(read, Some(Ok(()))) && sum_of(&staged[..record.length as usize]) == record.sum;
        if is_whole {
            return self.state(slot, &Found::Record(record.clone()));
        }
        let after = self.places(slot, 1);
        let same = after.is_ok_and(|place| place == record.encode());
        match read {
            _ if !same => State::Busy,
            Some(Ok(())) => State::Torn,
            _ => State::Unreadable,
        }
    }

    fn state(&self, slot: u32, found: &Found) -> State {
        let record = match found {
            Found::Void => return State::Void,
            Found::Broken => return State::Broken,
            Found::Record(record) => record,
        };
        let stride = record.length.checked_next_multiple_of(ALIGNED as u32);
        let is_mine = record.slot == slot
            && record.identity == self.identity
            && stride == Some(self.stride)
            && record.rank == self.rank;
        match record.owner {
            _ if !is_mine => State::Another,
            Owner::Nobody(_) => State::Parked,
            _ if record.stamp < self.floor => State::Cleared,
            _ => State::Block,
        }
    }

    fn places(&self, first: u32, count: u32) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count as usize * RECORD];
        if let Some(table) = &self.table {
            let at = u64::from(first) * RECORD as u64;
            let read = table.read_exact_at(&mut bytes, at);
            read.map_err(Error::system(self.path.join("table"), "read"))?;
        }
        Ok(bytes)
    }
}

/// Whether somebody has a lock of a file.
fn is_locked(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            rustix::fs::flock(file, FlockOperation::Unlock)?;
            Ok(false)
        }
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Whether a table has no block. One that cannot be read may have.
fn is_void(table: &File) -> bool {
    Table::read(table, 0, 0).is_ok_and(|table| table.is_void)
}

fn rank_of(path: &Path) -> Result<u16> {
    let name = path.file_name().and_then(|name| name.to_str());
    let rank = name.and_then(|name| name.strip_prefix("rank-")?.parse().ok());
    rank.ok_or_else(|| {
        let says = io::Error::other("its name is not rank- and a number");
        Error::system(path, "open")(says)
    })
}

/// Opens a file to read it, if it is there; past the page cache where that is asked for and can be.
fn look(path: &Path, more: OFlags) -> Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags | more, Mode::empty())
        .or_else(|_| rustix::fs::open(path, flags, Mode::empty()));
    let refused = || Error::system(path, "open");
    let file = match opened {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(refused()(error.into())),
    };
    let meta = file.metadata().map_err(refused())?;
    if meta.is_file() {
        return Ok(Some(file));
    }
    Err(refused()(io::Error::other("it is no file")))
}
