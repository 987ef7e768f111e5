//! Folders of blocks as they are seen without owning them: what is counted is what is there, what is torn is
//! found, and an owner goes on writing meanwhile. INV-26, INV-29, INV-30

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use blockyard_disk::{
    Baseline, Blocks, Epochs, Error, Files, Folder, Geometry, Inspector, Key, Medium, Owner, State,
    Way,
};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const SLOTS: u32 = 32;
const BYTES: u32 = 5000;
const STRIDE: u64 = 8192;
const FIELDS: [(&str, &str); 2] = [("model", "m"), ("weights", "w")];

/// A folder that goes away with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("blockyard-inspector-{name}-{}", process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn geometry() -> Geometry {
    Geometry::new(SLOTS, BYTES).unwrap()
}

fn key(number: u32) -> Key {
    let mut key = [1; 32];
    key[..4].copy_from_slice(&number.to_le_bytes());
    key
}

fn owned(root: &Path, rank: u16) -> (Folder, Blocks) {
    let folder = Folder::open(root, &FIELDS, rank).unwrap();
    let open = |name, bytes| Files::open(&folder.path().join(name), bytes, Way::Direct).unwrap();
    let payloads: Arc<dyn Medium> = Arc::new(open("slots", geometry().payload_bytes()));
    let path = folder.path().join("table");
    let table = Files::open(&path, geometry().table_bytes(), Way::Buffered).unwrap();
    let identity = folder.identity();
    let blocks = Blocks::new(payloads, Arc::new(table), geometry(), identity, rank);
    (folder, blocks)
}

/// A staged block at an aligned address, as direct writes need it.
fn staged(number: u32) -> blockyard_disk::Buffer {
    let mut buffer = blockyard_disk::Staging::new(1, STRIDE as usize).take();
    for (at, byte) in buffer.iter_mut().take(BYTES as usize).enumerate() {
        *byte = (number as usize + at / 64) as u8;
    }
    buffer
}

fn write(blocks: &Blocks, slot: u32, owner: Owner, stamp: u64) {
    let record = blocks.write(slot, owner, stamp, &staged(slot)).unwrap();
    blocks.commit(&[record]).unwrap();
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let (file, mut byte) = (file.unwrap(), [0]);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
    file.sync_all().unwrap();
}

fn refused(path: &Path) -> String {
    match Inspector::open(path) {
        Err(error @ (Error::System { .. } | Error::Format { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_counted_is_what_is_there() {
    let place = Place::new("count");
    let (folder, blocks) = owned(&place.0, 3);
    let first = folder.first_stamp();
    for slot in 0..10 {
        write(
            &blocks,
            slot,
            Owner::First(key(slot)),
            first + u64::from(slot),
        );
    }
    write(&blocks, 10, Owner::Nobody(key(10)), first + 10);
    folder.raise(first + 4).unwrap();
    blocks.void(9).unwrap();
    let path = folder.path().to_owned();
    flip(&path.join("table"), 8 * 128 + 50);
    // A whole record, of another slot.
    let table = fs::read(path.join("table")).unwrap();
    let file = OpenOptions::new().write(true).open(path.join("table"));
    let seven = &table[7 * 128..8 * 128];
    file.unwrap().write_all_at(seven, 20 * 128).unwrap();
    let inspector = Inspector::open(&path).unwrap();
    assert_eq!(
        (inspector.slots(), inspector.stride()),
        (SLOTS, STRIDE as u32)
    );
    assert_eq!(
        (inspector.rank(), inspector.owner()),
        (3, Some(process::id()))
    );
    assert!(
        inspector
            .text()
            .ends_with("model = \"m\"\nweights = \"w\"\n")
    );
    assert!(inspector.disk_bytes() >= u64::from(SLOTS) * STRIDE);
    let tally = inspector.count().unwrap();
    let counted = State::ALL.map(|state| tally.of(state));
    // Void, broken, another, cleared, parked, blocks, torn, unreadable, busy.
    assert_eq!(counted, [21, 1, 1, 4, 1, 4, 0, 0, 0]);
    assert_eq!(tally.all(), u64::from(SLOTS));
    let scrubbed = inspector.scrub(0, u32::MAX, 3).unwrap();
    assert_eq!(scrubbed.tally, tally, "all payloads are whole");
    assert_eq!(scrubbed.bad, [8, 20]);
    assert_eq!(
        scrubbed.bytes,
        5 * u64::from(BYTES),
        "what was cleared is not read"
    );
    drop(folder);
    assert_eq!(Inspector::open(&path).unwrap().owner(), None);
}

#[test]
fn inv_26_a_scrub_finds_each_flipped_bit() {
    let place = Place::new("flips");
    let (folder, blocks) = owned(&place.0, 0);
    for slot in 0..SLOTS {
        let stamp = folder.first_stamp() + u64::from(slot);
        write(&blocks, slot, Owner::First(key(slot)), stamp);
    }
    let path = folder.path().to_owned();
    let inspector = Inspector::open(&path).unwrap();
    for (slot, at) in [(5, 0), (17, 4999), (31, 4095)] {
        flip(&path.join("slots"), slot * STRIDE + at);
    }
    // What fills a slot up is nobody's byte.
    flip(&path.join("slots"), 9 * STRIDE + 5000);
    let found = inspector.scrub(0, SLOTS, 4).unwrap();
    assert_eq!(found.bad, [5, 17, 31]);
    assert_eq!(
        (found.tally.of(State::Torn), found.tally.of(State::Block)),
        (3, 29)
    );
    let part = inspector.scrub(6, 12, 1).unwrap();
    assert_eq!((part.bad, part.tally.all()), (vec![17], 12));
    assert_eq!(inspector.scrub(SLOTS, 4, 2).unwrap().tally.all(), 0);
    fs::OpenOptions::new()
        .write(true)
        .open(path.join("slots"))
        .unwrap()
        .set_len(30 * STRIDE)
        .unwrap();
    let found = inspector.scrub(0, SLOTS, 4).unwrap();
    assert_eq!(found.tally.of(State::Unreadable), 2, "{found:?}");
    assert!(refused(&path).contains("do not fit"));
}

#[test]
fn inv_30_what_is_written_meanwhile_is_never_torn() {
    let place = Place::new("live");
    let (folder, blocks) = owned(&place.0, 0);
    let first = folder.first_stamp();
    let over = Arc::new(AtomicBool::new(false));
    let writer = thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                // Each time with other bytes and another stamp.
                let slot = number % SLOTS;
                let owner = Owner::First(key(number));
                let stamp = first + u64::from(number);
                let record = blocks.write(slot, owner, stamp, &staged(number));
                blocks.commit(&[record.unwrap()]).unwrap();
                number += 1;
            }
        }
    });
    let inspector = Inspector::open(folder.path()).unwrap();
    let (mut whole, mut busy) = (0, 0);
    while whole < 500 || busy < 5 {
        let found = inspector.scrub(0, SLOTS, 1).unwrap();
        assert_eq!(found.bad, [] as [u32; 0], "{found:?}");
        whole += found.tally.of(State::Block);
        busy += found.tally.of(State::Busy);
        assert!(!writer.is_finished(), "it has failed");
    }
    over.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

#[test]
fn inv_29_a_look_leaves_the_folder_to_its_next_owner() {
    let place = Place::new("lock");
    let (folder, _) = owned(&place.0, 0);
    let path = folder.path().to_owned();
    drop(folder);
    let inspector = Inspector::open(&path).unwrap();
    let (again, _) = owned(&place.0, 0);
    assert_eq!(inspector.owner(), None);
    assert_eq!(Inspector::open(&path).unwrap().owner(), Some(process::id()));
    drop(again);
}

#[test]
fn what_is_no_folder_of_blocks_is_refused() {
    let place = Place::new("wrong");
    let path = place.0.join("rank-0");
    assert!(refused(&place.0).contains("its name is not rank-"));
    assert!(refused(&path).contains("identity: open"));
    fs::create_dir(&path).unwrap();
    fs::write(path.join("identity"), "").unwrap();
    assert!(refused(&path).contains("it says nothing yet"));
    fs::write(path.join("identity"), "a diary\n").unwrap();
    assert!(refused(&path).contains("it is no folder of blocks"));
    fs::write(path.join("identity"), "Blockyard's blocks, format 9\n").unwrap();
    assert!(refused(&path).contains("its format is 9"));
    fs::write(path.join("identity"), "Blockyard's blocks, format 1\n").unwrap();
    let young = Inspector::open(&path).unwrap();
    assert_eq!((young.slots(), young.count().unwrap().all()), (0, 0));
    assert_eq!(young.scrub(0, 9, 2).unwrap().tally.all(), 0);
    fs::write(place.0.join("elsewhere"), "secret").unwrap();
    symlink(place.0.join("elsewhere"), path.join("slots")).unwrap();
    assert!(refused(&path).contains("slots: open"));
    fs::remove_file(path.join("slots")).unwrap();
    fs::create_dir(path.join("slots")).unwrap();
    assert!(refused(&path).contains("it is no file"));
}

#[test]
fn the_floor_writes_and_reads_each_block() {
    let place = Place::new("floor");
    let path = place.0.join("floor");
    let floor = Baseline::open(&path, geometry(), 3).unwrap();
    floor.write().unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, geometry().payload_bytes());
    let is_written = |block: &[u8]| block.iter().any(|&byte| byte != 0);
    assert!(bytes.chunks(STRIDE as usize).all(is_written));
    floor.read().unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(STRIDE).unwrap();
    let error = floor.read().unwrap_err().to_string();
    assert!(error.contains("the floor's file: read"), "{error}");
}
