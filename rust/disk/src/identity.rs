//! The file `identity` of a folder: whose its blocks are in clear text, and the numbers that change. It has
//! both twice, with checks, so that a rotten bit or a bad sector takes nothing.
//!
//! ```text
//!      0  text, then zeros                                       8192  the numbers again, check of the other text
//!   4096  numbers; at 64 the check of the text, XXH3-64 of its page    12288  the text again
//! ```
//! Numbers are floor 8, run 4, owner 4, and the XXH3-64 of these. At 128 behind them is the version of Blockyard
//! that has written them: 56 bytes of text, and the XXH3-64 of these. All are little-endian. Versions before
//! have no version, nor the last page and the checks of texts, and read this one.

use crate::error::{Error, Result};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use twox_hash::XxHash3_64;

/// The version of the format, which a folder names.
const VERSION: u32 = 1;
/// The version that the name of a folder is made with, whatever its format: so each version finds the folder of
/// the others, and says what it cannot read.
const NAMED: u32 = 1;
const TITLE: &str = "Blockyard's blocks, format ";
/// The version of Blockyard that writes here.
const OWN: &str = env!("CARGO_PKG_VERSION");
/// Bytes of a page: as many as a text may have.
pub(crate) const PAGE: usize = 4096;
const PAGES: usize = 4;
/// The pages of the two texts, and of the numbers beside each.
const TEXTS: [usize; 2] = [0, 3];
const NUMBERS: [usize; 2] = [1, 2];
/// Where the check of a text is in the page of numbers beside it.
const CHECK: usize = 64;
/// Where the version of the writer is there, and its bytes without the check.
const WRITER: usize = 128;
const WRITER_BYTES: usize = 56;

/// The bytes of a file of numbers.
pub(crate) const NUMBERS_BYTES: usize = 32;

/// What changes in a folder, in one sector.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Numbers {
    /// What has a smaller stamp was cleared.
    pub(crate) floor: u64,
    /// How many owners it has had.
    pub(crate) run: u32,
    /// The process that is the last of them.
    pub(crate) owner: u32,
}

impl Numbers {
    pub(crate) fn encode(self) -> [u8; NUMBERS_BYTES] {
        let mut bytes = [0; NUMBERS_BYTES];
        bytes[..8].copy_from_slice(&self.floor.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.run.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.owner.to_le_bytes());
        let check = XxHash3_64::oneshot(&bytes[..16]);
        bytes[16..24].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads numbers that are whole.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..NUMBERS_BYTES)?;
        let numbers = Self {
            floor: u64::from_le_bytes(bytes[..8].try_into().ok()?),
            run: u32::from_le_bytes(bytes[8..12].try_into().ok()?),
            owner: u32::from_le_bytes(bytes[12..16].try_into().ok()?),
        };
        (numbers.encode() == bytes).then_some(numbers)
    }

    /// The later of two: floor and run rise only.
    pub(crate) fn or_later(self, other: Self) -> Self {
        Self {
            floor: self.floor.max(other.floor),
            run: self.run.max(other.run),
            owner: if other.run > self.run {
                other.owner
            } else {
                self.owner
            },
        }
    }
}

/// What such a file has.
#[derive(Debug)]
pub(crate) struct Identity {
    bytes: Vec<u8>,
    /// Whether the system could not read a page, which is zeros then.
    unreadable: bool,
}

impl Identity {
    /// Reads a file, which may be shorter, page by page: a bad sector costs its own page alone.
    pub(crate) fn read(file: &File) -> io::Result<Self> {
        let mut bytes = vec![0; PAGES * PAGE];
        let mut failed = Vec::new();
        for (page, at) in bytes.chunks_mut(PAGE).zip((0..).step_by(PAGE)) {
            if let Err(error) = read_some(file, page, at) {
                page.fill(0);
                failed.push(error);
            }
        }
        let unreadable = !failed.is_empty();
        match failed.pop() {
            Some(error) if failed.len() + 1 == PAGES => Err(error),
            _ => Ok(Self { bytes, unreadable }),
        }
    }

    /// What a file is to have.
    pub(crate) fn write(text: &str, numbers: Numbers) -> Self {
        let mut bytes = vec![0; PAGES * PAGE];
        for (page, beside) in TEXTS.into_iter().zip(NUMBERS) {
            bytes[page * PAGE..][..text.len()].copy_from_slice(text.as_bytes());
            let check = XxHash3_64::oneshot(&bytes[page * PAGE..][..PAGE]);
            let beside = &mut bytes[beside * PAGE..][..PAGE];
            beside[..NUMBERS_BYTES].copy_from_slice(&numbers.encode());
            beside[CHECK..CHECK + 8].copy_from_slice(&check.to_le_bytes());
            let writer = &mut beside[WRITER..][..WRITER_BYTES];
            writer[..OWN.len()].copy_from_slice(OWN.as_bytes());
            let check = XxHash3_64::oneshot(writer).to_le_bytes();
            beside[WRITER + WRITER_BYTES..][..8].copy_from_slice(&check);
        }
        let unreadable = false;
        Self { bytes, unreadable }
    }

    /// Its numbers, a page each, and where they lie.
    pub(crate) fn numbers_pages(&self) -> (u64, &[u8]) {
        let (first, last) = (NUMBERS[0] * PAGE, TEXTS[1] * PAGE);
        (first as u64, &self.bytes[first..last])
    }

    /// The page of a text, and where it lies: that of the second copy, or of the first.
    pub(crate) fn text_page(&self, copy: usize) -> (u64, &[u8]) {
        let at = TEXTS[copy] * PAGE;
        (at as u64, &self.bytes[at..at + PAGE])
    }

    /// Whether it has nothing but zeros, and all could be read.
    pub(crate) fn is_void(&self) -> bool {
        !self.unreadable && self.bytes.iter().all(|&byte| byte == 0)
    }

    /// The numbers, of the copies that are whole.
    pub(crate) fn numbers(&self) -> Option<Numbers> {
        let copies = NUMBERS.into_iter();
        let whole = copies.filter_map(|page| Numbers::decode(&self.bytes[page * PAGE..]));
        whole.reduce(Numbers::or_later)
    }

    /// Refuses another format than this version's, where no copy of the text says this one.
    pub(crate) fn check_format(&self, path: &Path) -> Result<()> {
        let texts = (0..TEXTS.len()).filter_map(|copy| self.text(copy));
        let found: Vec<u32> = texts.filter_map(|text| titled_as(&text)).collect();
        match found.first() {
            Some(&first) if !found.contains(&VERSION) => {
                Err(other_format(path, first, VERSION, self.writer()))
            }
            _ => Ok(()),
        }
    }

    /// The version of Blockyard that was the last owner, where it has said so.
    pub(crate) fn writer(&self) -> Option<String> {
        NUMBERS.into_iter().find_map(|page| {
            let at = page * PAGE + WRITER;
            let (text, check) = self.bytes[at..at + WRITER_BYTES + 8].split_at(WRITER_BYTES);
            let end = text.iter().position(|&byte| byte == 0)?;
            let is_whole = end > 0 && *check == XxHash3_64::oneshot(text).to_le_bytes();
            is_whole.then(|| String::from_utf8_lossy(&text[..end]).into_owned())
        })
    }

    fn text(&self, copy: usize) -> Option<String> {
        let (_, page) = self.text_page(copy);
        let end = page.iter().position(|&byte| byte == 0).unwrap_or(PAGE);
        (end > 0).then(|| String::from_utf8_lossy(&page[..end]).into_owned())
    }

    /// Whether a text agrees with its check.
    fn is_checked(&self, copy: usize) -> bool {
        let check = &self.bytes[NUMBERS[copy] * PAGE + CHECK..][..8];
        self.text(copy).is_some()
            && *check == XxHash3_64::oneshot(self.text_page(copy).1).to_le_bytes()
    }

    /// The text as somebody reads it who does not know it: a copy that agrees with its check, else the first
    /// that says anything. Also whether it agrees.
    pub(crate) fn said(&self) -> Option<(String, bool)> {
        let mut checked = (0..TEXTS.len()).filter(|&copy| self.is_checked(copy));
        let copy = checked.next();
        let text = copy.map_or_else(|| self.text(0).or_else(|| self.text(1)), |it| self.text(it));
        Some((text?, copy.is_some()))
    }

    /// Checks that a copy of the text is the one that is wanted. Where the first one says nothing, as after a
    /// power cut while the folder was made, there is none yet.
    pub(crate) fn check(&self, path: &Path, wanted: &str) -> Result<()> {
        let is_wanted = |copy| self.text(copy).is_some_and(|text| text == wanted);
        if (0..TEXTS.len()).any(is_wanted) {
            return Ok(());
        }
        let Some(said) = self.text(0) else {
            return Ok(());
        };
        version_of(path, &said, self.writer())?;
        let says = if self.is_checked(0) {
            "its text is of another identity, though its name is the same"
        } else {
            "its text is of another identity, or bits of it have flipped"
        };
        Err(spoiled(path, says))
    }
}

/// Reads until the buffer is full, or the file ends; returns how many bytes that are.
pub(crate) fn read_some(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    let mut have = 0;
    while have < into.len() {
        match file.read_at(&mut into[have..], at + have as u64)? {
            0 => break,
            more => have += more,
        }
    }
    Ok(have)
}

fn titled(version: u32) -> String {
    format!("{TITLE}{version}\n")
}

/// The format in the title of a text.
fn titled_as(text: &str) -> Option<u32> {
    text.strip_prefix(TITLE)?.lines().next()?.parse().ok()
}

/// What the name of a folder is made of: its text, under the title of the first format.
pub(crate) fn name_text(text: &str) -> String {
    let fields = text.split_once('\n').map_or("", |(_, fields)| fields);
    titled(NAMED) + fields
}

/// The clear text of an identity: a line for each field, in their order.
pub(crate) fn text_of(fields: &[(&str, &str)]) -> String {
    let mut text = titled(VERSION);
    for (name, value) in fields {
        // As Rust writes text, so that no value reads as a further line.
        let _ = writeln!(text, "{name} = {value:?}");
    }
    text
}

/// The version of the format that a text names, which is one that is known.
pub(crate) fn version_of(path: &Path, text: &str, writer: Option<String>) -> Result<u32> {
    match titled_as(text) {
        Some(VERSION) => Ok(VERSION),
        Some(found) => Err(other_format(path, found, VERSION, writer)),
        None => Err(spoiled(
            path,
            "it is no folder of blocks, or its title is not whole",
        )),
    }
}

/// A file of a format that another version has made.
///
/// # Arguments
/// `path` is the file's, `ROOT/IDENTITY/rank-N/FILE` or `ROOT/IDENTITY/FILE`.
pub(crate) fn other_format(path: &Path, found: u32, known: u32, by: Option<String>) -> Error {
    let above = path.parent().unwrap_or(path);
    let name = above.file_name().and_then(|name| name.to_str());
    let is_rank = name.is_some_and(|name| name.starts_with("rank-"));
    let identity = if is_rank {
        above.parent().unwrap_or(above)
    } else {
        above
    };
    Error::Format {
        path: path.to_owned(),
        found,
        known,
        by,
        wipe: command(identity, ""),
    }
}

/// An identity file of which what is there cannot be used, and what to do about that.
///
/// # Arguments
/// `path` is the file's, `ROOT/IDENTITY/rank-N/identity`.
pub(crate) fn spoiled(path: &Path, says: &str) -> Error {
    let says = format!("{says}: {}", wipe(path, " --broken"));
    Error::system(path, "open")(io::Error::other(says))
}

/// Says how the blocks of an identity are removed.
///
/// # Arguments
/// `path` is of a file in a rank's folder, `ROOT/IDENTITY/rank-N/FILE`; `more` are further options.
pub(crate) fn wipe(path: &Path, more: &str) -> String {
    let identity = path.ancestors().nth(2).unwrap_or(path);
    let command = command(identity, more);
    format!("put back what it was, or wipe it: {command}")
}

/// The command that removes the blocks of an identity's folder.
fn command(identity: &Path, more: &str) -> String {
    let name = identity.file_name().unwrap_or_default().to_string_lossy();
    let root = identity.parent().unwrap_or(identity).display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let root = if root.chars().all(is_plain) {
        root
    } else {
        format!("'{}'", root.replace('\'', r"'\''"))
    };
    format!("blockyard disk wipe {root} {name}{more}")
}
