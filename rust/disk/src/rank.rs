//! A rank's slot files: their folder, their blocks and their lane, opened together.

use crate::blocks::{Blocks, Geometry};
use crate::error::{Error, Result};
use crate::files::{Files, Foreign, Way, free_of};
use crate::folder::{Folder, FolderPlace};
use crate::identity::wipe;
use crate::lane::Lane;
use crate::medium::{Epochs, Medium};
use crate::record::Record;
use crate::threads::{Options, Threads};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The slot files of a rank and an identity.
#[derive(Debug)]
pub struct SlotFiles {
    /// What copies blocks from and to them.
    pub lane: Lane,
    folder: Option<Arc<Folder>>,
    path: PathBuf,
    blocks: Blocks,
    way: Way,
    /// Whether its room was taken when it was opened.
    is_new: bool,
}

/// Of a reader: what was cleared is for the owner to note.
#[derive(Debug)]
struct NotMine;

impl Epochs for NotMine {
    fn raise(&self, _floor: u64) -> io::Result<()> {
        Err(io::Error::other("another process owns the folder"))
    }
}

impl SlotFiles {
    /// Opens those in a rank's folder as their one owner, or makes them.
    ///
    /// # Arguments
    /// `group` is that of the layers, and stands in each record; `threads` are those of the disk.
    ///
    /// # Errors
    /// As [`Files::open`]. `NoRoom`, with what all files want, comes last: nothing else is wrong
    /// with the folder then, and no room was taken.
    pub fn own(
        folder: Folder,
        (rank, group): (u16, u16),
        geometry: Geometry,
        way: Way,
        (threads, options): (&Threads, Options),
    ) -> Result<Self> {
        let folder = Arc::new(folder);
        let path = folder.path().to_owned();
        forget_if_empty(&path, geometry).map_err(Error::system(&path, "empty"))?;
        check_length(&path.join("slots"), geometry.payload_bytes(), geometry)?;
        check_length(&path.join("table"), geometry.table_bytes(), geometry)?;
        let wanted = Self::lacking(&path, geometry);
        let free = File::open(&path).ok().and_then(|folder| free_of(&folder));
        let no_room = |free| Error::NoRoom {
            path: path.clone(),
            wanted,
            free,
        };
        if let Some(free) = free.filter(|&free| free < wanted) {
            return Err(no_room(free));
        }
        let files = || {
            let slots = Files::open(&path.join("slots"), geometry.payload_bytes(), way)?;
            let table = path.join("table");
            let table = Files::open(&table, geometry.table_bytes(), Way::Buffered)?;
            Ok((slots, table))
        };
        let (payloads, table) = files().map_err(|error| {
            if wanted > 0 {
                let _ = empty(&path);
            }
            match error {
                Error::NoRoom { free, .. } => no_room(free),
                error => error,
            }
        })?;
        let way = payloads.way();
        let media: [Arc<dyn Medium>; 2] = [Arc::new(payloads), Arc::new(table)];
        let [payloads, table] = media;
        let blocks =
            Blocks::new(payloads, table, geometry, folder.identity(), rank).of_group(group);
        // A thread that hangs keeps it, and with it the folder's lock.
        let floor: Arc<Folder> = Arc::clone(&folder);
        Ok(Self {
            lane: Lane::of(threads, blocks.clone(), floor, options),
            folder: Some(folder),
            path,
            blocks,
            way,
            is_new: wanted > 0,
        })
    }

    /// Bytes of disk that the files of a rank's folder still want, without a look at anything else.
    pub fn lacking(path: &Path, geometry: Geometry) -> u64 {
        let wanted = [
            ("slots", geometry.payload_bytes()),
            ("table", geometry.table_bytes()),
        ];
        let has = |name| fs::symlink_metadata(path.join(name)).map_or(0, |meta| meta.len());
        let lacks = wanted
            .into_iter()
            .filter(|&(name, bytes)| has(name) != bytes);
        lacks.map(|(_, bytes)| bytes).sum()
    }

    /// Reads those that another process owns, as soon as they are there.
    pub fn read(
        place: FolderPlace,
        (rank, group): (u16, u16),
        geometry: Geometry,
        way: Way,
        (threads, options): (&Threads, Options),
    ) -> Self {
        let slots = place.path.join("slots");
        let table = place.path.join("table");
        let payloads = Foreign::at(&slots, geometry.payload_bytes(), way);
        let table = Foreign::at(&table, geometry.table_bytes(), Way::Buffered);
        let media: [Arc<dyn Medium>; 2] = [Arc::new(payloads), Arc::new(table)];
        let [payloads, table] = media;
        let blocks = Blocks::new(payloads, table, geometry, place.identity, rank).of_group(group);
        Self {
            lane: Lane::of(threads, blocks.clone(), Arc::new(NotMine), options),
            folder: None,
            path: place.path,
            blocks,
            way,
            is_new: false,
        }
    }

    /// The folder, if this process owns it.
    pub fn folder(&self) -> Option<&Folder> {
        self.folder.as_deref()
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where blocks lie in them.
    pub fn geometry(&self) -> Geometry {
        self.blocks.geometry()
    }

    /// How payloads are read and written.
    pub fn way(&self) -> Way {
        self.way
    }

    /// What is found again: above the floor, the next to be evicted first. That is the order which the owner
    /// before has kept, where it has closed them, else that of the stamps. A key may be in two slots: the
    /// later one counts, but only where all ranks have it. INV-28
    ///
    /// # Errors
    /// `System` where the table cannot be read.
    pub fn restore(&self) -> Result<Vec<Record>> {
        let found = self.blocks.restore();
        let found = found.map_err(Error::system(self.path.join("table"), "read"))?;
        let folder = self.folder();
        let floor = folder.map_or(0, Folder::floor);
        Ok(in_order(found, floor, folder.and_then(Folder::take_order)))
    }

    /// Ends the lane, closes all files and gives the folder to the next owner: at once where no thread hangs in
    /// the system, else when the last one has ended.
    pub fn close(&self, patience: Duration) {
        self.lane.close(patience);
    }

    /// Gives back the room that was taken when it was opened, and closes it: for a start that fails elsewhere,
    /// before anything is written.
    pub fn abandon(&self, patience: Duration) {
        if self.is_new {
            // Where that fails the next owner has it.
            let _ = empty(&self.path);
        }
        self.close(patience);
    }
}

/// Empties files of another size that have no block, as an open that found no room elsewhere leaves them; and
/// a table whose blocks have lost their bytes.
fn forget_if_empty(path: &Path, geometry: Geometry) -> io::Result<()> {
    let [slots, table] = ["slots", "table"].map(|name| path.join(name));
    let length = |path: &Path| fs::symlink_metadata(path).map_or(0, |meta| meta.len());
    let sizes = (length(&slots), length(&table));
    let fits = [0, geometry.payload_bytes()].contains(&sizes.0)
        && [0, geometry.table_bytes()].contains(&sizes.1);
    let is_void = || fs::read(&table).is_ok_and(|all| all.iter().all(|&byte| byte == 0));
    if sizes.0 == 0 || (!fits && is_void()) {
        empty(path)?;
    }
    Ok(())
}

/// Empties the files of a rank's folder. They keep their names, and with these their locks.
fn empty(path: &Path) -> io::Result<()> {
    let files = ["slots", "table"].map(|name| path.join(name));
    for one in files.iter().filter(|one| one.exists()) {
        File::options().write(true).open(one)?.set_len(0)?;
    }
    Ok(())
}

/// Refuses a file of another length, which has blocks.
fn check_length(path: &Path, bytes: u64, geometry: Geometry) -> Result<()> {
    let found = fs::symlink_metadata(path).map_or(0, |meta| meta.len());
    if [0, bytes].contains(&found) {
        return Ok(());
    }
    let one = bytes / u64::from(geometry.slots());
    let size = if found.is_multiple_of(one) {
        format!("give the size of before, {} blocks", found / one)
    } else {
        "it was cut or is of other blocks".to_owned()
    };
    let says = format!(
        "it has {found} bytes, and {bytes} are wanted: {size}; or {}",
        wipe(path, "")
    );
    Err(Error::system(path, "open")(io::Error::other(says)))
}

fn in_order(mut found: Vec<Record>, floor: u64, kept: Option<Vec<u32>>) -> Vec<Record> {
    found.retain(|record| record.stamp >= floor);
    found.sort_by_key(|record| record.stamp);
    if let Some(kept) = kept {
        let last = found.iter().map(|record| record.slot).max().unwrap_or(0);
        // What nobody could evict then was in use.
        let mut places = vec![u32::MAX; last as usize + 1];
        for (slot, place) in kept.into_iter().zip(0..) {
            if let Some(one) = places.get_mut(slot as usize) {
                *one = place;
            }
        }
        found.sort_by_key(|record| places[record.slot as usize]);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Owner;

    #[test]
    fn a_kept_order_comes_before_stamps_and_of_two_slots_with_one_key_both_are_told() {
        let record = |slot: u32, stamp: u64, key: u8| Record {
            owner: Owner::First([key; 32]),
            stamp,
            sum: 0,
            identity: 0,
            length: 1,
            slot,
            group: 0,
            rank: 0,
            plan: 0,
        };
        let found = || {
            vec![
                record(0, 9, 1),
                record(1, 3, 2),
                record(2, 5, 1),
                record(3, 7, 3),
                record(4, 8, 4),
            ]
        };
        let slots = |all: Vec<Record>| all.iter().map(|one| one.slot).collect::<Vec<_>>();
        assert_eq!(slots(in_order(found(), 0, None)), [1, 2, 3, 4, 0]);
        assert_eq!(slots(in_order(found(), 7, None)), [3, 4, 0]);
        assert_eq!(
            slots(in_order(found(), 0, Some(vec![4, 1]))),
            [4, 1, 2, 3, 0]
        );
    }
}
