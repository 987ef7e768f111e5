//! Files of the system: preallocated, and read and written past the page cache where the system can.

use crate::error::{Error, Result};
use crate::medium::Medium;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// To what addresses, offsets and lengths must be a multiple for direct reads and writes.
pub const ALIGNED: usize = 4096;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Past the page cache: buffers, offsets and lengths are multiples of [`ALIGNED`].
    Direct,
    /// Through the page cache, of which a kill loses nothing.
    Buffered,
}

/// A file of the system.
#[derive(Debug)]
pub struct Files {
    path: PathBuf,
    /// None when it is closed.
    file: Mutex<Option<Arc<File>>>,
    way: Way,
}

impl Files {
    /// Opens a file of a fixed length, or makes it, for its owner alone. Its room is taken at once, so that
    /// no later write lacks it.
    ///
    /// Where the file system cannot do direct writes, the way is buffered; where it cannot take room ahead,
    /// the file is sparse, and a write may fail.
    ///
    /// # Errors
    /// `System` where there is no room, the path is a symbolic link or no file, it has another length, or
    /// the system refuses.
    pub fn open(path: &Path, bytes: u64, way: Way) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let direct = (way == Way::Direct)
            .then(|| rustix::fs::open(path, flags | OFlags::DIRECT, mode).ok())
            .flatten();
        let (fd, way) = match direct {
            Some(fd) => (fd, Way::Direct),
            None => (
                rustix::fs::open(path, flags, mode)
                    .map_err(|error| Error::system(path, "open")(error.into()))?,
                Way::Buffered,
            ),
        };
        let file = File::from(fd);
        take_room(path, &file, bytes)?;
        Ok(Self::over(path, file, way))
    }

    fn over(path: &Path, file: File, way: Way) -> Self {
        Self {
            path: path.to_owned(),
            file: Mutex::new(Some(Arc::new(file))),
            way,
        }
    }

    /// How it is read and written.
    pub fn way(&self) -> Way {
        self.way
    }

    /// The file, which stays open for as long as somebody is at it.
    fn file(&self) -> io::Result<Arc<File>> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.clone().ok_or_else(|| {
            let says = format!("{}: it is closed", self.path.display());
            io::Error::other(says)
        })
    }
}

/// Gives a file its length, with all of the room for it.
fn take_room(path: &Path, file: &File, bytes: u64) -> Result<()> {
    let refused = |doing| Error::system(path, doing);
    let meta = file.metadata().map_err(refused("look at"))?;
    if !meta.is_file() {
        return Err(refused("open")(io::Error::other(
            "it is no file: remove it",
        )));
    }
    if meta.len() == bytes {
        return Ok(());
    }
    if meta.len() != 0 {
        let other = format!("it has {} bytes, and {bytes} are wanted", meta.len());
        return Err(refused("open")(io::Error::other(other)));
    }
    let no_room = |free| Error::NoRoom {
        path: path.to_owned(),
        wanted: bytes,
        free,
    };
    // Else a file system takes what it has, and refuses then.
    let free = free_of(file);
    if let Some(free) = free.filter(|&free| free < bytes) {
        let _ = std::fs::remove_file(path);
        return Err(no_room(free));
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP) => file.set_len(bytes).map_err(refused("grow")),
        Err(error) => {
            // A file system may keep what it had taken.
            let _ = file.set_len(0);
            let _ = std::fs::remove_file(path);
            match error {
                // Less than the file system says, as of a quota.
                Errno::NOSPC | Errno::DQUOT => Err(no_room(free.unwrap_or(0))),
                error => Err(refused("take its room")(error.into())),
            }
        }
    }
}

/// Bytes that whoever has this file may still take of its file system.
pub(crate) fn free_of(file: &File) -> Option<u64> {
    let system = rustix::fs::fstatvfs(file).ok()?;
    Some(system.f_bavail.saturating_mul(system.f_frsize))
}

/// A file that another process writes, which is opened when it is first read.
#[derive(Debug)]
pub struct Foreign {
    path: PathBuf,
    bytes: u64,
    way: Way,
    opened: OnceLock<Files>,
    closed: AtomicBool,
}

impl Foreign {
    /// The file at a path, of this length. It need not be there yet.
    pub fn at(path: &Path, bytes: u64, way: Way) -> Self {
        Self {
            path: path.to_owned(),
            bytes,
            way,
            opened: OnceLock::new(),
            closed: AtomicBool::new(false),
        }
    }

    fn opened(&self) -> io::Result<&Files> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(io::Error::other("it is closed"));
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let direct = (self.way == Way::Direct)
            .then(|| rustix::fs::open(&self.path, flags | OFlags::DIRECT, Mode::empty()).ok())
            .flatten();
        let (fd, way) = match direct {
            Some(fd) => (fd, Way::Direct),
            None => (
                rustix::fs::open(&self.path, flags, Mode::empty())?,
                Way::Buffered,
            ),
        };
        let file = File::from(fd);
        let bytes = file.metadata()?.len();
        if bytes != self.bytes {
            let says = format!("it has {bytes} bytes, and {} are wanted", self.bytes);
            return Err(io::Error::other(says));
        }
        let made = || Files::over(&self.path, file, way);
        Ok(self.opened.get_or_init(made))
    }
}

impl Medium for Foreign {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.opened()?.read(at, into)
    }

    fn write(&self, _at: u64, _from: &[u8]) -> io::Result<()> {
        Err(io::Error::other("another process writes this file"))
    }

    fn sync(&self) -> io::Result<()> {
        Err(io::Error::other("another process writes this file"))
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(opened) = self.opened.get() {
            opened.close();
        }
    }
}

impl Medium for Files {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file()?.read_exact_at(into, at)
    }

    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.file()?.write_all_at(from, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    fn close(&self) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        *file = None;
    }
}

/// Makes a folder for its owner alone, unless it is there.
pub(crate) fn make_folder(path: &Path) -> Result<()> {
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
        "it is a symbolic link: give the folder that it leads to"
    } else if !meta.is_dir() {
        "it is no folder: give another path, or remove it"
    } else if meta.mode() & 0o022 != 0 {
        "others may write to it: chmod go-w"
    } else {
        return Ok(());
    };
    Err(refused("open")(io::Error::other(says)))
}
