//! A folder of blocks: whose they are in clear text, which process owns them, and what was cleared.

use crate::disk::Epochs;
use crate::error::{Error, Result};
use crate::order;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The version of the format, which a folder names.
const VERSION: u32 = 1;
const TITLE: &str = "Blockyard's blocks, format ";
/// Where the numbers of a folder lie, behind the text: floor, run, owner, and a check of the three.
const NUMBERS: u64 = 4096;
const NUMBERS_BYTES: usize = 32;
const COPIES: [u64; 2] = [NUMBERS, 2 * NUMBERS];

/// Where the folder of a rank and an identity is, whoever owns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its path.
    pub path: PathBuf,
    /// The number of its identity, which every record has.
    pub identity: u64,
}

impl Place {
    /// The place under a root, as in [`Folder::open`].
    pub fn of(root: &Path, fields: &[(&str, &str)], rank: u16) -> Self {
        let text = text_of(fields);
        let name = format!("{:016x}", xxh3_128(text.as_bytes()) as u64);
        Self {
            path: root.join(name).join(format!("rank-{rank}")),
            identity: xxh3_64(text.as_bytes()),
        }
    }
}

/// A folder that this process owns, until it is dropped or dies.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    file: File,
    identity: u64,
    /// Of the owner before.
    before: u32,
    run: AtomicU32,
    floor: Mutex<u64>,
}

impl Folder {
    /// Opens the folder of a rank and an identity under a root, or makes it, for its owner alone. INV-29
    /// INV-37
    ///
    /// # Arguments
    /// `fields` say what the bytes depend on: model, weights, type, layout and the like. Another value of any
    /// of them is another folder.
    ///
    /// # Errors
    /// `System` where another process owns it, whose number is said, its format is a later one, its text is
    /// of another identity, a symbolic link is in the way, others may write to it, or the system refuses.
    pub fn open(root: &Path, fields: &[(&str, &str)], rank: u16) -> Result<Self> {
        let text = text_of(fields);
        if text.len() as u64 > NUMBERS {
            return Err(Error::Argument {
                name: "bytes of an identity",
                value: text.len() as u64,
                help: "must be 4096 at most",
            });
        }
        let Place { path, identity } = Place::of(root, fields, rank);
        for folder in [root, path.parent().unwrap_or(root), &path] {
            make(folder)?;
        }
        let whole = path.join("identity");
        let refused = |doing| Error::system(whole.clone(), doing);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&whole, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|error| refused("open")(error.into()))?);
        if !lock(&file) {
            let owner = Numbers::read(&file).map_or(0, |numbers| numbers.owner);
            let says = format!("process {owner} owns it: a folder has one writer");
            return Err(refused("lock")(io::Error::other(says)));
        }
        // Who wipes a folder holds the lock until its files are gone: then this one has no name.
        let own = file.metadata().map_err(refused("look at"))?.ino();
        if fs::symlink_metadata(&whole).map_or(true, |meta| meta.ino() != own) {
            let says = "it was removed meanwhile: open it again";
            return Err(refused("lock")(io::Error::other(says)));
        }
        let found = read_text(&file).map_err(refused("read"))?;
        if let Some(found) = &found {
            check_text(&whole, found, &text)?;
        }
        let before = match Numbers::read(&file) {
            Some(numbers) => numbers,
            None if found.is_none() => Numbers::default(),
            None => {
                let says = "nobody can say what of it was cleared: wipe it";
                return Err(refused("read")(io::Error::other(says)));
            }
        };
        let made = Self {
            identity,
            before: before.run,
            run: AtomicU32::new(before.run.saturating_add(1)),
            floor: Mutex::new(before.floor),
            path,
            file,
        };
        made.write_numbers(before.floor)?;
        if found.is_none() {
            made.file
                .write_all_at(text.as_bytes(), 0)
                .and_then(|()| made.file.sync_all())
                .map_err(refused("write"))?;
        }
        Ok(made)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A number for its identity, which every record has.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// The stamp of the first block that this owner writes: above all that any owner before has given.
    pub fn first_stamp(&self) -> u64 {
        u64::from(self.run()) << 32
    }

    /// The number of this owner: higher than that of any before.
    pub fn run(&self) -> u32 {
        self.run.load(Ordering::Relaxed)
    }

    /// Counts as this owner, where that is a later one: all ranks have one number, so that their stamps
    /// agree. It comes before the first block is written.
    ///
    /// # Errors
    /// `System` where the system refuses; then the number is as it was.
    pub fn count_as(&self, run: u32) -> Result<()> {
        let own = self.run();
        if run > own {
            self.run.store(run, Ordering::Relaxed);
            let written = self.write_numbers(self.floor());
            if written.is_err() {
                self.run.store(own, Ordering::Relaxed);
            }
            return written;
        }
        Ok(())
    }

    /// Notes the eviction order for the next owner, at a clean close.
    ///
    /// # Errors
    /// `System` where the system refuses; stamps stand in for it then.
    pub fn keep_order(&self, slots: &[u32]) -> Result<()> {
        order::write(&self.path, self.run(), slots)
    }

    /// Takes the order that the owner before has kept, if it has come so far. Later calls find none.
    pub fn take_order(&self) -> Option<Vec<u32>> {
        order::take(&self.path, self.before)
    }

    /// The floor: what has a smaller stamp was cleared, and is not restored. INV-31
    pub fn floor(&self) -> u64 {
        *self.floor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives it to the next owner. Nothing of it may be written afterwards: end the lane before.
    ///
    /// # Errors
    /// `System` where the system refuses; then it is given up when this is dropped.
    pub fn release(&self) -> Result<()> {
        let unlocked = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        unlocked.map_err(|error| Error::system(&self.path, "unlock")(error.into()))
    }

    fn write_numbers(&self, floor: u64) -> Result<()> {
        let numbers = Numbers {
            floor,
            run: self.run(),
            owner: process::id(),
        };
        let refused = |doing| Error::system(self.path.join("identity"), doing);
        // In two sectors, so that one that has gone bad undoes no clear.
        for copy in COPIES {
            self.file
                .write_all_at(&numbers.encode(), copy)
                .map_err(refused("write"))?;
        }
        self.file.sync_all().map_err(refused("sync"))
    }
}

impl Epochs for Folder {
    fn raise(&self, floor: u64) -> io::Result<()> {
        let mut own = self.floor.lock().unwrap_or_else(PoisonError::into_inner);
        let floor = floor.max(*own);
        self.write_numbers(floor)
            .map_err(|error| io::Error::other(error.to_string()))?;
        *own = floor;
        Ok(())
    }
}

/// Takes the lock. Who only looks at a folder has it for an instant, and is waited for.
fn lock(file: &File) -> bool {
    (0..20).any(|tries| {
        if tries > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

/// What changes in a folder, in one sector.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Numbers {
    pub(crate) floor: u64,
    run: u32,
    pub(crate) owner: u32,
}

impl Numbers {
    fn encode(self) -> [u8; NUMBERS_BYTES] {
        let mut bytes = [0; NUMBERS_BYTES];
        bytes[..8].copy_from_slice(&self.floor.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.run.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.owner.to_le_bytes());
        let check = xxh3_64(&bytes[..16]);
        bytes[16..24].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    pub(crate) fn read(file: &File) -> Option<Self> {
        let found = COPIES.iter().filter_map(|&at| Self::read_at(file, at));
        // Both rise only, so that the higher one is the later one.
        found.reduce(|one, other| Self {
            floor: one.floor.max(other.floor),
            run: one.run.max(other.run),
            owner: if other.run > one.run {
                other.owner
            } else {
                one.owner
            },
        })
    }

    fn read_at(file: &File, at: u64) -> Option<Self> {
        let mut bytes = [0; NUMBERS_BYTES];
        file.read_exact_at(&mut bytes, at).ok()?;
        let numbers = Self {
            floor: u64::from_le_bytes(bytes[..8].try_into().ok()?),
            run: u32::from_le_bytes(bytes[8..12].try_into().ok()?),
            owner: u32::from_le_bytes(bytes[12..16].try_into().ok()?),
        };
        (numbers.encode() == bytes).then_some(numbers)
    }
}

/// The clear text of an identity: a line for each field, in their order.
fn text_of(fields: &[(&str, &str)]) -> String {
    let mut text = format!("{TITLE}{VERSION}\n");
    for (name, value) in fields {
        // As Rust writes text, so that no value reads as a further line.
        let _ = writeln!(text, "{name} = {value:?}");
    }
    text
}

pub(crate) fn read_text(file: &File) -> io::Result<Option<String>> {
    let mut bytes = vec![0; NUMBERS as usize];
    let mut have = 0;
    while have < bytes.len() {
        match file.read_at(&mut bytes[have..], have as u64)? {
            0 => break,
            more => have += more,
        }
    }
    bytes.truncate(have);
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(have);
    bytes.truncate(end);
    Ok((!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned()))
}

fn check_text(path: &Path, found: &str, wanted: &str) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    version_of(path, found)?;
    let says = "its text is of another identity, though its name is the same";
    Err(Error::system(path, "open")(io::Error::other(says)))
}

/// The version of the format that a text names, which is one that is known.
pub(crate) fn version_of(path: &Path, text: &str) -> Result<u32> {
    let version = text
        .strip_prefix(TITLE)
        .and_then(|rest| rest.lines().next()?.parse::<u32>().ok());
    match version {
        Some(found) if found > VERSION => Err(Error::Format {
            path: path.to_owned(),
            found,
            known: VERSION,
        }),
        Some(version) => Ok(version),
        None => {
            let says = "it is no folder of blocks";
            Err(Error::system(path, "open")(io::Error::other(says)))
        }
    }
}

/// Makes a folder for its owner alone, unless it is there.
fn make(path: &Path) -> Result<()> {
    let refused = |doing| Error::system(path, doing);
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let says = "the folder that it is to be in is not there: make that one first";
            return Err(refused("make")(io::Error::other(says)));
        }
        Err(error) => return Err(refused("make")(error)),
    }
    let meta = fs::symlink_metadata(path).map_err(refused("look at"))?;
    let says = if meta.is_symlink() {
        "it is a symbolic link"
    } else if !meta.is_dir() {
        "it is no folder"
    } else if meta.mode() & 0o022 != 0 {
        "others may write to it: chmod go-w"
    } else {
        return Ok(());
    };
    Err(refused("open")(io::Error::other(says)))
}
