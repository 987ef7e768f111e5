//! A folder of blocks: which process owns it, and what was cleared.

use crate::error::{Error, Result};
use crate::eviction_order;
use crate::files::make_folder;
use crate::formats;
use crate::identity::{Identity, Numbers, PAGE, name_text, spoiled, text_of};
use crate::medium::Epochs;
use crate::witness::{self, FLOOR, Table};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use twox_hash::{XxHash3_64, XxHash3_128};

/// The files that are locked. Whoever finds one of them locked is not the owner, so that a second process is
/// refused also where somebody has removed the others beside the first.
pub(crate) const LOCKED: [&str; 3] = ["slots", "table", "identity"];

/// Where the folder of a rank and an identity is, whoever owns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FolderPlace {
    /// Its path.
    pub path: PathBuf,
    /// The number of its identity, which every record has.
    pub identity: u64,
}

impl FolderPlace {
    /// The place under a root, as in [`Folder::open`].
    pub fn of(root: &Path, fields: &[(&str, &str)], rank: u16) -> Self {
        let text = text_of(fields);
        Self {
            path: root.join(name_of(&text)).join(format!("rank-{rank}")),
            identity: XxHash3_64::oneshot(text.as_bytes()),
        }
    }

    /// Whether the folder that a rank's file lies in has the name of another identity than a text's.
    pub(crate) fn is_another(file: &Path, text: &str) -> bool {
        let name = file.ancestors().nth(2).and_then(Path::file_name);
        name.and_then(|name| name.to_str()).is_some_and(|name| {
            let is_one = name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_one && name != name_of(text)
        })
    }
}

/// The name of the folder of a text.
fn name_of(text: &str) -> String {
    format!(
        "{:016x}",
        XxHash3_128::oneshot(name_text(text).as_bytes()) as u64
    )
}

/// A folder that this process owns, until it is released or dropped, or the process dies.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    text: String,
    identity: u64,
    /// Of the owner before, by the identity alone.
    before: u32,
    run: AtomicU32,
    floor: Mutex<u64>,
    held: Mutex<Option<Arc<Held>>>,
}

/// The open files of a folder, which have its locks.
#[derive(Debug)]
struct Held {
    slots: File,
    table: File,
    identity: File,
    /// The numbers once more; none where there is no room for it.
    witness: Option<File>,
    /// Which files these are, as in [`LOCKED`].
    seen: [Seen; 3],
}

/// A device and a number on it, by which a file is known whatever its name.
type Seen = (u64, u64);

impl Folder {
    /// Opens the folder of a rank and an identity under a root, or makes it, for its owner alone. INV-29
    /// INV-37
    ///
    /// What is rotten in one of two copies is written anew. Where nobody can say what of its blocks was cleared
    /// it is refused, and nothing of it is changed. INV-31
    ///
    /// # Arguments
    /// `fields` say what the bytes depend on: model, weights, type, layout and the like. Another value of any
    /// of them is another folder.
    ///
    /// # Errors
    /// `System` where another process owns it, whose number is said, its text is of another identity or not
    /// whole, its numbers are lost or older than its blocks, a symbolic link is in the way, others may write to
    /// it, or the system refuses; `Format` where a file in it has another format: nothing of it is changed then.
    pub fn open(root: &Path, fields: &[(&str, &str)], rank: u16) -> Result<Self> {
        let text = text_of(fields);
        if text.len() > PAGE {
            return Err(Error::Argument {
                name: "bytes of an identity",
                value: text.len() as u64,
                help: "must be 4096 at most: shorten the namespace",
            });
        }
        let FolderPlace { path, identity } = FolderPlace::of(root, fields, rank);
        formats::check(&path)?;
        for folder in [root, path.parent().unwrap_or(root), &path] {
            make_folder(folder)?;
        }
        let whole = path.join("identity");
        let [slots, table] = [LOCKED[0], LOCKED[1]].map(|name| own(&path, name, OFlags::CREATE));
        let (slots, table) = (slots?, table?);
        let known = Table::read(&table, identity, rank);
        let known = known.map_err(Error::system(path.join("table"), "read"))?;
        formats::check_table(&path, known)?;
        // Where it is lost it is not made, so that the next process finds the folder as this one did.
        let lost = if known.is_void {
            OFlags::CREATE
        } else {
            OFlags::empty()
        };
        let held = own(&path, "identity", lost)?;
        let found = Identity::read(&held).map_err(Error::system(&whole, "read"))?;
        let witness = open(&path.join(FLOOR), OFlags::CREATE).ok();
        let before = check(&whole, &found, &text, known, witness.as_ref())?;
        let mut seen = [(0, 0); 3];
        for (one, file) in seen.iter_mut().zip([&slots, &table, &held]) {
            *one = seen_as(&file.metadata().map_err(Error::system(&path, "look at"))?);
        }
        let held = Held {
            slots,
            table,
            identity: held,
            witness,
            seen,
        };
        let made = Self {
            path,
            text,
            identity,
            before: found.numbers().map_or(0, |numbers| numbers.run),
            run: AtomicU32::new(before.run.saturating_add(1)),
            floor: Mutex::new(before.floor),
            held: Mutex::new(Some(Arc::new(held))),
        };
        // Who wipes a folder holds the locks until its files are gone: then these have no name.
        made.check().map_err(Error::system(&whole, "lock"))?;
        made.write_numbers(before.floor)?;
        made.write_text(&found)?;
        if found.is_void() {
            made.keep_names();
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
    /// `System` where the folder is no longer this owner's, or the system refuses; stamps stand in for it then.
    pub fn keep_order(&self, slots: &[u32]) -> Result<()> {
        self.check().map_err(Error::system(&self.path, "look at"))?;
        eviction_order::write(&self.path, self.run(), slots)
    }

    /// Takes the order that the owner before has kept, if it has come so far. Later calls find none.
    pub fn take_order(&self) -> Option<Vec<u32>> {
        eviction_order::take(&self.path, self.before)
    }

    /// The floor: what has a smaller stamp was cleared, and is not restored. INV-31
    pub fn floor(&self) -> u64 {
        *self.floor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes its files and gives it to the next owner. Nothing of it may be written afterwards: end the lane
    /// before.
    ///
    /// # Errors
    /// `System` where the system refuses; the files are closed all the same.
    pub fn release(&self) -> Result<()> {
        let held = self
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // By hand, as a process that was forked may have the files open, too.
        let mut done = Ok(());
        for file in held.iter().flat_map(|held| held.locked()) {
            done = done.and(rustix::fs::flock(file, FlockOperation::Unlock));
        }
        done.map_err(|error| Error::system(&self.path, "unlock")(error.into()))
    }

    fn held(&self) -> io::Result<Arc<Held>> {
        let held = self
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        held.ok_or_else(|| io::Error::other("the folder is closed"))
    }

    fn write_numbers(&self, floor: u64) -> Result<()> {
        let numbers = Numbers {
            floor,
            run: self.run(),
            owner: process::id(),
        };
        let refused = |doing| Error::system(self.path.join("identity"), doing);
        let held = self.held().map_err(refused("write"))?;
        let pages = Identity::write(&self.text, numbers);
        held.put(pages.numbers_pages()).map_err(refused("write"))?;
        if let Some(witness) = &held.witness {
            // What was cleared is durable without it.
            let _ = witness::note(witness, numbers);
        }
        Ok(())
    }

    /// Writes the text where a copy of it is missing or rotten, one after the other.
    fn write_text(&self, found: &Identity) -> Result<()> {
        let refused = |doing| Error::system(self.path.join("identity"), doing);
        let held = self.held().map_err(refused("write"))?;
        let wanted = Identity::write(&self.text, Numbers::default());
        if wanted.text_page(1) != found.text_page(1) {
            // A disk may be full, and have no room for what versions before did not have.
            let _ = held.put(wanted.text_page(1));
        }
        if wanted.text_page(0) != found.text_page(0) {
            held.put(wanted.text_page(0)).map_err(refused("write"))?;
        }
        Ok(())
    }

    /// Makes the names of new files durable.
    fn keep_names(&self) {
        for folder in self.path.ancestors().take(3) {
            // Where a file system cannot, it does it by itself.
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
    }
}

impl Held {
    /// Writes a part of the identity, durably.
    fn put(&self, (at, bytes): (u64, &[u8])) -> io::Result<()> {
        self.identity.write_all_at(bytes, at)?;
        self.identity.sync_all()
    }

    fn locked(&self) -> [&File; 3] {
        [&self.slots, &self.table, &self.identity]
    }
}

impl Epochs for Folder {
    fn raise(&self, floor: u64) -> io::Result<()> {
        let mut own = self.floor.lock().unwrap_or_else(PoisonError::into_inner);
        let floor = floor.max(*own);
        self.check()?;
        self.write_numbers(floor)
            .map_err(|error| io::Error::other(error.to_string()))?;
        *own = floor;
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        let held = self.held()?;
        for (name, seen) in LOCKED.into_iter().zip(held.seen) {
            let there = fs::symlink_metadata(self.path.join(name));
            if there.map_or(true, |there| seen_as(&there) != seen) {
                let path = self.path.join(name);
                let says = "it was removed or replaced while this process owned the folder";
                let says = format!("{}: {says}: open it again", path.display());
                return Err(io::Error::other(says));
            }
        }
        Ok(())
    }

    fn close(&self) {
        // Where that fails the system does it at the end of the process.
        let _ = self.release();
    }
}

fn seen_as(meta: &fs::Metadata) -> Seen {
    (meta.dev(), meta.ino())
}

/// Opens a file of a folder to read and write it.
fn open(path: &Path, more: OFlags) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags | more, Mode::RUSR | Mode::WUSR);
    let refused = Error::system(path, "open");
    let says = match file.map(File::from) {
        Ok(file) if file.metadata().is_ok_and(|meta| meta.is_file()) => return Ok(file),
        Ok(_) => "it is no file: remove it",
        Err(Errno::LOOP) => "it is a symbolic link: remove it",
        Err(Errno::ISDIR) => "it is a folder: remove it",
        Err(error) => return Err(refused(error.into())),
    };
    Err(refused(io::Error::other(says)))
}

/// Opens a file of a folder, and takes its lock.
fn own(folder: &Path, name: &str, more: OFlags) -> Result<File> {
    let path = folder.join(name);
    let file = match open(&path, more) {
        Err(Error::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Err(spoiled(&path, LOST));
        }
        opened => opened?,
    };
    if lock(&file) {
        return Ok(file);
    }
    let read = |name| open(&folder.join(name), OFlags::empty()).ok();
    let identity = read("identity").and_then(|file| Identity::read(&file).ok()?.numbers());
    let numbers = identity.or_else(|| witness::numbers(&read(FLOOR)?));
    let owner = numbers.map(|numbers| numbers.owner);
    let named = owner.map_or("another process".to_owned(), |pid| format!("process {pid}"));
    let remedy = [OTHERS, MINE][usize::from(owner == Some(process::id()))];
    let says = format!("{named} owns it: a folder has one writer{remedy}");
    Err(Error::system(path, "lock")(io::Error::other(says)))
}

const OTHERS: &str = "; end that one first";
const MINE: &str = ", and that is this very process; close the cache that has it, or `del` it";

/// Why a folder with blocks is refused that does not say what of them was cleared.
pub(crate) const LOST: &str = "it is lost, and nobody can say what of the blocks was cleared";

/// Checks what a folder says of itself; returns the last numbers of the owner before.
fn check(
    path: &Path,
    found: &Identity,
    text: &str,
    table: Table,
    witness: Option<&File>,
) -> Result<Numbers> {
    if found.is_void() && !table.is_void {
        return Err(spoiled(path, LOST));
    }
    found.check(path, text)?;
    settled(path, found, table, witness)
}

/// The numbers of a folder: the latest that are found anywhere.
pub(crate) fn settled(
    path: &Path,
    found: &Identity,
    table: Table,
    witness: Option<&File>,
) -> Result<Numbers> {
    let numbers = match found.numbers() {
        Some(numbers) => numbers,
        // No block was ever written.
        None if table.is_void => Numbers::default(),
        None => {
            let says = "its numbers are lost, and nobody can say what of the blocks was cleared";
            return Err(spoiled(path, says));
        }
    };
    let numbers = witness
        .and_then(witness::numbers)
        .map_or(numbers, |other| numbers.or_later(other));
    if table.run > numbers.run {
        let says = "it is older than the table, and nobody can say what of the blocks was cleared";
        return Err(spoiled(path, says));
    }
    Ok(numbers)
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
