//! Blocks in slot files: whatever a power cut, a kill or a flipped bit leaves, nothing wrong is served, and
//! nothing acknowledged is lost. INV-26 to INV-31, INV-37

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]
#![expect(
    clippy::disallowed_methods,
    reason = "no yard is here whose lock it could be"
)]

use blockyard_disk::{
    ALIGNED, Asked, Blocks, Doubt, Error, Files, Folder, Geometry, Key, Medium, Owner, Paper,
    Record, Way,
};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const SLOTS: u32 = 8;
/// Three sectors, and not the whole of a fourth.
const BYTES: u32 = 1700;
const IDENTITY: u64 = 77;

/// A stream of numbers by seed: `SplitMix64`.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap()
    }
}

fn geometry() -> Geometry {
    Geometry::new(SLOTS, BYTES).unwrap()
}

fn key(number: u64) -> Key {
    let mut key = [1; 32];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

/// The bytes of a block: each sector says whose it is.
fn payload(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; geometry().stride()];
    for (at, byte) in bytes.iter_mut().take(BYTES as usize).enumerate() {
        *byte = (number.wrapping_mul(31).wrapping_add(at as u64 / 64) % 251) as u8;
    }
    bytes
}

fn over(payloads: impl Medium + 'static, table: impl Medium + 'static) -> Blocks {
    Blocks::new(Arc::new(payloads), Arc::new(table), geometry(), IDENTITY, 0)
}

fn paper() -> (Paper, Paper) {
    let geometry = geometry();
    let bytes = [geometry.payload_bytes(), geometry.table_bytes()];
    let [payloads, table] = bytes.map(|bytes| Paper::new(usize::try_from(bytes).unwrap()));
    (payloads, table)
}

/// A file that is synced by hand alone.
#[derive(Debug)]
struct ByHand(Paper);

impl Medium for ByHand {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read(at, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.0.write(at, from)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// What was written to each slot, and what of it was acknowledged and not begun to be overwritten.
#[derive(Default)]
struct Written {
    of: HashMap<u32, Vec<u64>>,
    safe: HashMap<u32, u64>,
}

impl Written {
    /// Checks what a disk that was found may return; returns how many blocks it has, and how many torn.
    fn check(&self, found: &Blocks, what: &str) -> (usize, usize) {
        let (mut served, mut torn) = (0, 0);
        let mut staged = vec![0; geometry().stride()];
        for slot in 0..SLOTS {
            for &number in self.of.get(&slot).into_iter().flatten() {
                let asked = Asked {
                    slot,
                    key: key(number),
                };
                match found.read(&asked, &mut staged).unwrap() {
                    Ok(_) => {
                        assert_eq!(
                            staged[..BYTES as usize],
                            payload(number)[..BYTES as usize],
                            "{what}: slot {slot}"
                        );
                        served += 1;
                    }
                    Err(doubt) => {
                        torn += usize::from(doubt == Doubt::Sum);
                        let safe = self.safe.get(&slot) == Some(&number);
                        assert!(
                            !safe,
                            "{what}: {number} was acknowledged in slot {slot}: {doubt:?}"
                        );
                    }
                }
            }
        }
        let restored = found.restore().unwrap();
        for record in restored {
            let known = &self.of[&record.slot];
            let number = u64::from_le_bytes(record.owner.key()[..8].try_into().unwrap());
            assert!(
                known.contains(&number),
                "{what}: nobody has written {record:?}"
            );
        }
        (served, torn)
    }
}

/// Writes blocks in groups, and cuts the power after any call.
fn cuts(seed: u64, cuts: usize, ordered: bool) -> (usize, usize) {
    let mut chance = Chance(seed);
    let (payloads, table) = paper();
    let blocks = if ordered {
        over(payloads.clone(), table.clone())
    } else {
        over(ByHand(payloads.clone()), ByHand(table.clone()))
    };
    let mut written = Written::default();
    let mut group: Vec<(Record, u64)> = Vec::new();
    let (mut served, mut torn) = (0, 0);
    for number in 0..cuts as u64 {
        let slot = u32::try_from(chance.below(SLOTS as usize)).unwrap();
        if group.iter().all(|(record, _)| record.slot != slot) {
            written.safe.remove(&slot);
            written.of.entry(slot).or_default().push(number);
            let owner = Owner::First(key(number));
            let record = blocks.write(slot, owner, number, &payload(number)).unwrap();
            group.push((record, number));
        }
        if group.len() > chance.below(6) {
            let records: Vec<Record> = group.iter().map(|(record, _)| record.clone()).collect();
            blocks.commit(&records).unwrap();
            if !ordered {
                // Records and payloads were written in no order: a cut here may leave any of them.
                (served, torn) = cut(&mut chance, &payloads, &table, &written, (served, torn));
                payloads.sync().unwrap();
                table.sync().unwrap();
            }
            written.safe.extend(
                group
                    .drain(..)
                    .map(|(record, number)| (record.slot, number)),
            );
        }
        (served, torn) = cut(&mut chance, &payloads, &table, &written, (served, torn));
    }
    (served, torn)
}

fn cut(
    chance: &mut Chance,
    payloads: &Paper,
    table: &Paper,
    written: &Written,
    sums: (usize, usize),
) -> (usize, usize) {
    let [payloads, table] =
        [payloads, table].map(|paper| Paper::holding(paper.cut(|most| chance.below(most))));
    let (served, torn) = written.check(&over(payloads, table), "after a power cut");
    (sums.0 + served, sums.1 + torn)
}

#[test]
fn inv_27_no_power_cut_loses_what_was_acknowledged_or_serves_what_was_torn() {
    for seed in 0..10 {
        let (served, _) = cuts(seed, 100, true);
        assert!(served > 200, "{served} served");
    }
}

#[test]
fn inv_26_where_nothing_is_ordered_what_is_torn_is_found_out() {
    let mut all = 0;
    for seed in 0..10 {
        let (served, torn) = cuts(100 + seed, 100, false);
        assert!(served > 200, "{served} served");
        all += torn;
    }
    assert!(all > 50, "{all} torn blocks were found out");
}

#[test]
fn inv_26_each_flipped_bit_is_one_miss() {
    let mut chance = Chance(5);
    let (payloads, table) = paper();
    let blocks = over(payloads.clone(), table.clone());
    let mut written = Written::default();
    for slot in 0..SLOTS {
        let owner = Owner::First(key(slot.into()));
        let record = blocks.write(slot, owner, 1, &payload(slot.into())).unwrap();
        blocks.commit(&[record]).unwrap();
        written.of.insert(slot, vec![slot.into()]);
    }
    assert_eq!(written.check(&blocks, "whole"), (SLOTS as usize, 0));
    for _ in 0..600 {
        let slot = chance.below(SLOTS as usize);
        let (paper, start, bytes) = if chance.below(2) == 0 {
            (&table, slot * 128, 128)
        } else {
            (&payloads, slot * geometry().stride(), BYTES as usize)
        };
        let bit = start * 8 + chance.below(bytes * 8);
        paper.flip(bit);
        let (served, _) = written.check(&blocks, "after a flip");
        assert_eq!(served, SLOTS as usize - 1, "bit {bit}");
        paper.flip(bit);
        assert_eq!(written.check(&blocks, "undone").0, SLOTS as usize);
    }
}

#[test]
fn inv_26_what_is_of_another_is_not_served() {
    let (payloads, table) = paper();
    let one = over(payloads.clone(), table.clone());
    let record = one.write(3, Owner::First(key(1)), 9, &payload(1)).unwrap();
    one.commit(std::slice::from_ref(&record)).unwrap();
    let mut staged = vec![0; geometry().stride()];
    let mut ask =
        |blocks: &Blocks, slot, key| blocks.read(&Asked { slot, key }, &mut staged).unwrap();
    assert_eq!(ask(&one, 3, key(1)), Ok(record));
    assert_eq!(ask(&one, 3, key(2)), Err(Doubt::Another));
    assert_eq!(ask(&one, 4, key(1)), Err(Doubt::NoRecord));
    for (identity, rank, bytes) in [
        (IDENTITY + 1, 0, BYTES),
        (IDENTITY, 1, BYTES),
        (IDENTITY, 0, BYTES - 1),
    ] {
        let geometry = Geometry::new(SLOTS, bytes).unwrap();
        let media = (Arc::new(payloads.clone()), Arc::new(table.clone()));
        let other = Blocks::new(media.0, media.1, geometry, identity, rank);
        assert_eq!(ask(&other, 3, key(1)), Err(Doubt::Another));
        assert_eq!(other.restore().unwrap(), []);
    }
    // A record that has come to another slot, whole as it is.
    let mut bytes = [0; 128];
    table.read(3 * 128, &mut bytes).unwrap();
    table.write(5 * 128, &bytes).unwrap();
    assert_eq!(ask(&one, 5, key(1)), Err(Doubt::Another));
    assert_eq!(one.restore().unwrap().len(), 1);
}

#[test]
fn inv_30_a_slot_has_no_record_while_another_block_comes() {
    let (payloads, table) = paper();
    let blocks = over(payloads.clone(), table.clone());
    let record = blocks
        .write(2, Owner::First(key(1)), 1, &payload(1))
        .unwrap();
    blocks.commit(&[record]).unwrap();
    // The payload's write fails: its record must be gone by then, though nothing was written.
    payloads.fail_after(0);
    blocks
        .write(2, Owner::First(key(2)), 2, &payload(2))
        .unwrap_err();
    let mut staged = vec![0; geometry().stride()];
    let asked = Asked {
        slot: 2,
        key: key(1),
    };
    assert_eq!(
        blocks.read(&asked, &mut staged).unwrap(),
        Err(Doubt::NoRecord)
    );
}

#[test]
fn inv_28_what_is_nobodys_is_read_and_never_restored() {
    let (payloads, table) = paper();
    let blocks = over(payloads, table);
    let record = blocks
        .write(1, Owner::Nobody(key(4)), 1, &payload(8))
        .unwrap();
    blocks.commit(&[record]).unwrap();
    let mut staged = vec![0; geometry().stride()];
    let asked = Asked {
        slot: 1,
        key: key(4),
    };
    assert!(blocks.read(&asked, &mut staged).unwrap().is_ok());
    assert_eq!(blocks.restore().unwrap(), []);
}

#[test]
fn what_is_not_there_is_an_error_and_no_panic() {
    let (payloads, table) = paper();
    let blocks = over(payloads, table);
    let says = |error: io::Error| error.to_string();
    let staged = payload(1);
    let wrong = blocks.write(SLOTS, Owner::Nobody(key(1)), 1, &staged);
    assert_eq!(says(wrong.unwrap_err()), "slot 8: there are slots 0 to 7");
    let wrong = blocks.write(0, Owner::Nobody(key(1)), 1, &staged[1..]);
    assert_eq!(
        says(wrong.unwrap_err()),
        "4095 bytes are staged, and a slot has 4096"
    );
    assert_eq!(
        Geometry::new(0, 1).unwrap_err().to_string(),
        "slots = 0: must be 1 or more"
    );
    let error = Geometry::new(1, (1 << 31) + 1).unwrap_err().to_string();
    assert_eq!(error, "bytes = 2147483649: must be 1 to 2^31");
}

// -- on a file system ---------------------------------------------------------------------------

/// A folder of a test, which goes with it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("blockyard-disk-{name}-{}", std::process::id()));
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

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn blocks_of_a_file_system_are_there_when_it_is_opened_again() {
    for way in [Way::Direct, Way::Buffered] {
        let place = Place::new("again");
        let ring = blockyard_disk::Ring::new(1, geometry().stride());
        let open = || {
            let [payloads, table] = [
                ("slots", geometry().payload_bytes(), way),
                ("table", geometry().table_bytes(), Way::Buffered),
            ]
            .map(|(name, bytes, way)| Files::open(&place.0.join(name), bytes, way).unwrap());
            over(payloads, table)
        };
        let blocks = open();
        let mut staged = ring.take();
        staged.copy_from_slice(&payload(6));
        let record = blocks.write(5, Owner::First(key(6)), 4, &staged).unwrap();
        blocks.commit(std::slice::from_ref(&record)).unwrap();
        drop(blocks);
        let again = open();
        assert_eq!(again.restore().unwrap(), std::slice::from_ref(&record));
        staged.fill(0);
        let asked = Asked {
            slot: 5,
            key: key(6),
        };
        assert_eq!(again.read(&asked, &mut staged).unwrap(), Ok(record));
        assert_eq!(*staged, payload(6));
        assert_eq!(mode(&place.0.join("slots")), 0o600);
        let file = fs::metadata(place.0.join("slots")).unwrap();
        assert_eq!(file.len(), u64::from(SLOTS) * ALIGNED as u64);
    }
}

#[test]
fn a_file_that_is_not_as_it_should_be_is_refused() {
    let place = Place::new("files");
    let path = place.0.join("slots");
    let says = |bytes| match Files::open(&path, bytes, Way::Direct) {
        Err(Error::System { source, .. }) => source.to_string(),
        other => panic!("{other:?}"),
    };
    fs::write(&path, "four").unwrap();
    assert_eq!(says(8192), "it has 4 bytes, and 8192 are wanted");
    fs::remove_file(&path).unwrap();
    symlink("/dev/null", &path).unwrap();
    assert!(says(8192).contains("symbolic link"), "{}", says(8192));
    fs::remove_file(&path).unwrap();
    // No file system has room for as much, and none of it is left.
    assert!(!says(1 << 60).is_empty());
    assert!(!path.exists() || fs::metadata(&path).unwrap().len() == 0);
}

const FIELDS: [(&str, &str); 2] = [("model", "a model"), ("layout", "2 layers\nof 3")];

#[test]
fn inv_29_a_folder_has_one_owner_and_the_second_is_told_who() {
    let place = Place::new("owner");
    let one = Folder::open(&place.0, &FIELDS, 0).unwrap();
    assert_eq!(
        (mode(one.path()), mode(&one.path().join("identity"))),
        (0o700, 0o600)
    );
    let error = Folder::open(&place.0, &FIELDS, 0).unwrap_err().to_string();
    assert!(
        error.contains(&format!("process {} owns it", std::process::id())),
        "{error}"
    );
    let other = Folder::open(&place.0, &FIELDS, 1).unwrap();
    assert_eq!(
        other.identity(),
        one.identity(),
        "each rank has a folder and a lock"
    );
    let first = one.first_stamp();
    one.release().unwrap();
    let two = Folder::open(&place.0, &FIELDS, 0).unwrap();
    assert!(two.first_stamp() > first, "no stamp is given twice");
}

#[test]
fn another_identity_is_another_folder_in_clear_text() {
    let place = Place::new("identity");
    let one = Folder::open(&place.0, &FIELDS, 0).unwrap();
    for other in [
        ("model", "another"),
        ("models", "a model"),
        ("model", "a model\"\nlayout = \""),
    ] {
        let two = Folder::open(&place.0, &[other, FIELDS[1]], 0).unwrap();
        assert_ne!((one.path(), one.identity()), (two.path(), two.identity()));
    }
    let text = fs::read(one.path().join("identity")).unwrap();
    let text = String::from_utf8_lossy(&text);
    let wanted =
        "Blockyard's blocks, format 1\nmodel = \"a model\"\nlayout = \"2 layers\\nof 3\"\n";
    assert!(text.starts_with(wanted), "{text}");
    let long = "x".repeat(5000);
    let error = Folder::open(&place.0, &[("model", &long)], 0)
        .unwrap_err()
        .to_string();
    assert!(error.contains("must be 4096 at most"), "{error}");
}

#[test]
fn inv_31_a_floor_stays_also_after_a_kill() {
    let place = Place::new("floor");
    let one = Folder::open(&place.0, &FIELDS, 0).unwrap();
    assert_eq!(one.floor(), 0);
    one.raise(one.first_stamp() + 5).unwrap();
    let floor = one.floor();
    one.raise(3).unwrap();
    assert_eq!(one.floor(), floor, "it never falls");
    drop(one);
    assert_eq!(Folder::open(&place.0, &FIELDS, 0).unwrap().floor(), floor);
}

#[test]
fn a_folder_that_is_not_as_it_should_be_is_refused() {
    let place = Place::new("folder");
    let one = Folder::open(&place.0, &FIELDS, 0).unwrap();
    let (path, whole) = (one.path().to_owned(), one.path().join("identity"));
    drop(one);
    let says = || Folder::open(&place.0, &FIELDS, 0).unwrap_err().to_string();
    let text = fs::read(&whole).unwrap();
    for (from, to, wanted) in [
        (
            "format 1",
            "format 2",
            "its format is 2, and this version knows 1",
        ),
        ("a model", "b model", "of another identity"),
        ("Blockyard", "Somebody", "no folder of blocks"),
    ] {
        let changed =
            String::from_utf8(text[..text.iter().position(|&byte| byte == 0).unwrap()].to_vec())
                .unwrap()
                .replacen(from, to, 1);
        fs::write(&whole, changed).unwrap();
        assert!(says().contains(wanted), "{}", says());
    }
    fs::remove_dir_all(&path).unwrap();
    symlink(&place.0, &path).unwrap();
    assert!(says().contains("it is a symbolic link"), "{}", says());
    fs::remove_file(&path).unwrap();
    fs::write(&path, "").unwrap();
    assert!(says().contains("it is no folder"), "{}", says());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(says().contains("others may write to it"), "{}", says());
}

#[test]
fn a_lock_dies_with_its_process() {
    let place = Place::new("dies");
    // A shell that holds the lock through a copy of the file, and is killed.
    let one = Folder::open(&place.0, &FIELDS, 0).unwrap();
    let whole = one.path().join("identity");
    drop(one);
    let flock = Command::new("flock")
        .arg("-x")
        .arg(&whole)
        .args(["sleep", "60"])
        .spawn();
    let Ok(mut child) = flock else {
        // util-linux is not everywhere.
        return;
    };
    while Folder::open(&place.0, &FIELDS, 0).is_ok() {
        std::thread::yield_now();
    }
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let sleeping = fs::read_to_string(children).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    for id in sleeping.split_whitespace() {
        let _ = Command::new("kill").args(["-9", id]).status();
    }
    for _ in 0..10_000 {
        if Folder::open(&place.0, &FIELDS, 0).is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("nobody owns it, and it cannot be opened");
}

// -- the lane -----------------------------------------------------------------------------------

use blockyard_disk::{Copy, Landed, Lane, Memory, Options, Short};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Memory of blocks, each of which is the payload of a number.
#[derive(Debug, Default)]
struct Numbers {
    from: Vec<u64>,
    to: Mutex<HashMap<usize, Vec<u8>>>,
}

impl Numbers {
    fn of(from: &[u64]) -> Arc<Self> {
        Arc::new(Self {
            from: from.to_vec(),
            to: Mutex::default(),
        })
    }

    fn got(&self, at: usize) -> Option<Vec<u8>> {
        self.to.lock().unwrap().get(&at).cloned()
    }
}

impl Memory for Numbers {
    fn gather(&self, at: usize, staged: &mut [u8]) {
        staged.copy_from_slice(&payload(self.from[at]));
    }

    fn scatter(&self, at: usize, staged: &[u8]) {
        self.to.lock().unwrap().insert(at, staged.to_vec());
    }
}

fn down(blocks: &[(u32, u64)]) -> Copy {
    Copy::Down(
        blocks
            .iter()
            .map(|&(slot, number)| (slot, Owner::First(key(number))))
            .collect(),
    )
}

fn up(blocks: &[(u32, u64)]) -> Copy {
    let asked = |&(slot, number)| Asked {
        slot,
        key: key(number),
    };
    Copy::Up(blocks.iter().map(asked).collect())
}

fn landed(lane: &Lane, wanted: usize) -> Vec<Landed> {
    let (mut all, until) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    while all.len() < wanted {
        assert!(Instant::now() < until, "{all:?}");
        all.extend(lane.poll());
        std::thread::yield_now();
    }
    all.sort_by_key(|one: &Landed| one.number);
    all
}

fn whole(number: u64, good: usize) -> Landed {
    Landed {
        number,
        good,
        short: None,
    }
}

fn short(number: u64, good: usize, short: Short) -> Landed {
    Landed {
        number,
        good,
        short: Some(short),
    }
}

fn lane_over(payloads: &Paper, table: &Paper, options: Options) -> Lane {
    Lane::new(over(payloads.clone(), table.clone()), 0, options)
}

#[test]
fn what_a_lane_has_written_it_reads() {
    let (payloads, table) = paper();
    for threads in [1, 4] {
        let lane = lane_over(
            &payloads,
            &table,
            Options {
                threads,
                ..Options::default()
            },
        );
        let some = [(3, 10), (1, 11), (6, 12)];
        lane.submit(down(&some), Numbers::of(&[10, 11, 12]));
        lane.submit(down(&[(0, 13)]), Numbers::of(&[13]));
        assert_eq!(landed(&lane, 2), [whole(0, 3), whole(1, 1)]);
        let memory = Numbers::of(&[]);
        lane.submit(up(&[(1, 11), (0, 13)]), memory.clone());
        lane.submit(up(&[(6, 12), (3, 99), (3, 10)]), memory.clone());
        lane.submit(up(&[]), memory.clone());
        let doubt = Short::Doubt(Doubt::Another);
        assert_eq!(
            landed(&lane, 3),
            [whole(2, 2), short(3, 1, doubt), whole(4, 0)]
        );
        assert_eq!(memory.got(1), Some(payload(13)));
        // It was written by all threads, and no stamp is given twice.
        let blocks = over(payloads.clone(), table.clone());
        let mut stamps: Vec<u64> = blocks
            .restore()
            .unwrap()
            .iter()
            .map(|one| one.stamp)
            .collect();
        stamps.sort_unstable();
        stamps.dedup();
        assert_eq!(stamps.len(), 4);
    }
}

#[test]
fn inv_27_what_a_lane_reports_as_written_outlives_a_power_cut() {
    let (payloads, table) = paper();
    let lane = lane_over(&payloads, &table, Options::default());
    let mut chance = Chance(9);
    let mut written = Written::default();
    for number in 0..100 {
        let slot = u32::try_from(chance.below(SLOTS as usize)).unwrap();
        written.safe.remove(&slot);
        written.of.entry(slot).or_default().push(number);
        lane.submit(down(&[(slot, number)]), Numbers::of(&[number]));
        if chance.below(3) > 0 {
            assert_eq!(landed(&lane, 1).len(), 1);
            written.safe.insert(slot, number);
            cut(&mut chance, &payloads, &table, &written, (0, 0));
        } else {
            let _ = landed(&lane, 1);
        }
    }
}

#[test]
fn many_blocks_at_once_are_all_there() {
    let geometry = Geometry::new(512, 100).unwrap();
    let bytes = [geometry.payload_bytes(), geometry.table_bytes()];
    let [payloads, table] = bytes.map(|bytes| Paper::new(usize::try_from(bytes).unwrap()));
    let lane = Lane::new(
        Blocks::new(Arc::new(payloads), Arc::new(table), geometry, IDENTITY, 0),
        0,
        Options::default(),
    );
    for slot in 0..512 {
        let one = Copy::Down(vec![(slot, Owner::First(key(slot.into())))]);
        lane.submit(one, Numbers::of(&[slot.into()]));
    }
    assert!(landed(&lane, 512).iter().all(|one| one.good == 1));
    let memory = Numbers::of(&[]);
    let all: Vec<(u32, u64)> = (0..512).map(|slot| (slot, slot.into())).collect();
    lane.submit(up(&all), memory);
    assert_eq!(landed(&lane, 1), [whole(512, 512)]);
}

#[test]
fn inv_32_a_disk_that_fails_cuts_copies_and_rests_and_is_tried_again() {
    let (payloads, table) = paper();
    let options = Options {
        threads: 1,
        failures: 2,
        rest: Duration::from_millis(40),
        ..Options::default()
    };
    let lane = lane_over(&payloads, &table, options);
    payloads.fail_after(1);
    lane.submit(down(&[(0, 1), (1, 2), (2, 3)]), Numbers::of(&[1, 2, 3]));
    // The second payload fails, and what is before it is synced.
    assert_eq!(landed(&lane, 1), [short(0, 1, Short::Failed)]);
    assert!(!lane.rests());
    for number in 1..3 {
        payloads.fail_after(0);
        lane.submit(up(&[(0, 1)]), Numbers::of(&[]));
        assert_eq!(landed(&lane, 1), [short(number, 0, Short::Failed)]);
    }
    assert!(lane.rests());
    lane.submit(up(&[(0, 1)]), Numbers::of(&[]));
    assert_eq!(
        landed(&lane, 1),
        [short(3, 0, Short::Failed)],
        "the disk is not asked"
    );
    while lane.rests() {
        std::thread::yield_now();
    }
    lane.submit(up(&[(0, 1)]), Numbers::of(&[]));
    assert_eq!(landed(&lane, 1), [whole(4, 1)]);
}

#[test]
fn inv_27_what_could_not_be_synced_is_not_reported_as_written() {
    let (payloads, table) = paper();
    let lane = lane_over(
        &payloads,
        &table,
        Options {
            threads: 1,
            ..Options::default()
        },
    );
    // The payload is written, and its sync fails.
    payloads.fail_after(1);
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    assert_eq!(landed(&lane, 1), [short(0, 0, Short::Failed)]);
}

/// A file that hangs in reads and writes until it is told to go on.
#[derive(Debug)]
struct Hanging(Paper, Arc<(Mutex<bool>, Condvar)>);

impl Hanging {
    fn wait(&self) {
        let (hangs, told) = &*self.1;
        let _go = told
            .wait_while(hangs.lock().unwrap(), |hangs| *hangs)
            .unwrap();
    }
}

impl Medium for Hanging {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.wait();
        self.0.read(at, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.wait();
        self.0.write(at, from)
    }

    fn sync(&self) -> io::Result<()> {
        self.wait();
        self.0.sync()
    }
}

#[test]
fn inv_32_a_copy_that_hangs_is_given_up_and_touches_no_memory_afterwards() {
    let (payloads, table) = paper();
    let told = Arc::new((Mutex::new(false), Condvar::new()));
    let set = |hangs| {
        *told.0.lock().unwrap() = hangs;
        told.1.notify_all();
    };
    let hanging = Hanging(payloads.clone(), Arc::clone(&told));
    let options = Options {
        threads: 1,
        ..Options::default()
    };
    let lane = Lane::new(over(hanging, table.clone()), 0, options);
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    assert_eq!(landed(&lane, 1), [whole(0, 1)]);
    set(true);
    let memory = Numbers::of(&[]);
    lane.submit(up(&[(0, 1)]), memory.clone());
    lane.submit(up(&[(0, 1)]), memory.clone());
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(lane.poll(), [], "nobody has waited for it");
    lane.give_up(1);
    lane.give_up(1);
    lane.give_up(99);
    assert_eq!(lane.poll(), [short(1, 0, Short::GivenUp)]);
    set(false);
    assert_eq!(landed(&lane, 1), [whole(2, 1)], "the other one goes on");
    assert_eq!(memory.got(0), Some(payload(1)));
    let untouched = Numbers::of(&[]);
    set(true);
    let number = lane.submit(up(&[(0, 1)]), untouched.clone());
    std::thread::sleep(Duration::from_millis(5));
    lane.give_up(number);
    set(false);
    lane.close();
    assert_eq!(untouched.got(0), None);
}

#[test]
fn inv_31_what_was_asked_for_before_a_clear_is_below_its_floor_however_late_it_is_written() {
    let (payloads, table) = paper();
    let told = Arc::new((Mutex::new(true), Condvar::new()));
    let hanging = Hanging(payloads.clone(), Arc::clone(&told));
    let lane = Lane::new(over(hanging, table.clone()), 70, Options::default());
    lane.submit(down(&[(0, 1), (1, 2)]), Numbers::of(&[1, 2]));
    let floor = lane.next_stamp();
    lane.submit(down(&[(2, 3)]), Numbers::of(&[3]));
    *told.0.lock().unwrap() = false;
    told.1.notify_all();
    assert_eq!(landed(&lane, 2).len(), 2);
    let records = over(payloads, table).restore().unwrap();
    let mut stamps: Vec<(u64, bool)> = records
        .iter()
        .map(|one| (one.stamp, one.stamp < floor))
        .collect();
    stamps.sort_unstable();
    assert_eq!(stamps, [(70, true), (71, true), (72, false)]);
}

#[test]
fn a_lane_that_closes_reports_all() {
    let (payloads, table) = paper();
    let lane = lane_over(&payloads, &table, Options::default());
    for number in 0..50 {
        lane.submit(down(&[(0, number)]), Numbers::of(&[number]));
    }
    lane.close();
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    let all = landed(&lane, 51);
    assert!(
        all.iter()
            .all(|one| one.short.is_none() || one.short == Some(Short::GivenUp))
    );
    assert_eq!(all.last(), Some(&short(50, 0, Short::GivenUp)));
}
