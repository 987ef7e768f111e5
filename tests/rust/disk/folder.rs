//! Folders and files of a file system.

use crate::support::*;
use blockyard_disk::{ALIGNED, Asked, Epochs, Error, Files, Folder, Foreign, Owner, Way};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn blocks_of_a_file_system_are_there_when_it_is_opened_again() {
    for way in [Way::Direct, Way::Buffered] {
        let place = Place::new("again");
        let ring = blockyard_disk::Staging::new(1, geometry().stride());
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
fn what_another_process_writes_is_read_as_soon_as_it_is_there() {
    for way in [Way::Direct, Way::Buffered] {
        let place = Place::new("foreign");
        let ring = blockyard_disk::Staging::new(1, geometry().stride());
        let [slots, table] = ["slots", "table"].map(|name| place.0.join(name));
        let bytes = [geometry().payload_bytes(), geometry().table_bytes()];
        let reader = over(
            Foreign::at(&slots, bytes[0], way),
            Foreign::at(&table, bytes[1], Way::Buffered),
        );
        let asked = Asked {
            slot: 5,
            key: key(6),
        };
        let mut staged = ring.take();
        assert!(
            reader.read(&asked, &mut staged).is_err(),
            "there is none yet"
        );
        fs::write(&table, "short").unwrap();
        assert!(reader.read(&asked, &mut staged).is_err());
        fs::remove_file(&table).unwrap();
        let writer = over(
            Files::open(&slots, bytes[0], way).unwrap(),
            Files::open(&table, bytes[1], Way::Buffered).unwrap(),
        );
        staged.copy_from_slice(&payload(6));
        let record = writer.write(5, Owner::First(key(6)), 4, &staged).unwrap();
        assert!(reader.read(&asked, &mut staged).unwrap().is_err());
        writer.commit(std::slice::from_ref(&record)).unwrap();
        staged.fill(0);
        assert_eq!(reader.read(&asked, &mut staged).unwrap(), Ok(record));
        assert_eq!(*staged, payload(6));
        let refused = reader.write(5, Owner::First(key(6)), 5, &staged);
        assert!(refused.is_err() && reader.commit(&[]).is_err());
    }
}

#[test]
fn a_file_that_is_not_as_it_should_be_is_refused() {
    let place = Place::new("files");
    let path = place.0.join("slots");
    let says = |bytes| match Files::open(&path, bytes, Way::Direct) {
        Err(Error::System { source, .. }) => source.to_string(),
        Err(error @ Error::NoRoom { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    fs::write(&path, "four").unwrap();
    assert_eq!(says(8192), "it has 4 bytes, and 8192 are wanted");
    fs::remove_file(&path).unwrap();
    symlink("/dev/null", &path).unwrap();
    assert!(says(8192).contains("symbolic link"), "{}", says(8192));
    fs::remove_file(&path).unwrap();
    // No file system has room for as much, and none of it is left.
    assert!(says(1 << 60).contains("bytes are wanted, and"));
    assert!(!path.exists() || fs::metadata(&path).unwrap().len() == 0);
}

const FIELDS: [(&str, &str); 2] = [("model", "a model"), ("layout", "2 layers\nof 3")];

/// Law: INV-29
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

/// Law: INV-31
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
        ("format 1", "format 2", "its format is 2, and Blockyard "),
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

/// Law: INV-29
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

#[test]
fn the_order_of_a_clean_close_is_for_the_next_owner_alone() {
    let place = Place::new("order");
    let open = || Folder::open(&place.0, &FIELDS, 0).unwrap();
    let one = open();
    assert_eq!(one.take_order(), None);
    one.keep_order(&[3, 1, 2]).unwrap();
    assert_eq!(mode(&one.path().join("order")), 0o600);
    drop(one);
    let two = open();
    assert_eq!(two.take_order(), Some(vec![3, 1, 2]));
    assert_eq!(two.take_order(), None, "it is taken once");
    two.keep_order(&[]).unwrap();
    drop(two);
    // The next owner does not ask, and is killed: the order is of none that comes after it.
    drop(open());
    let four = open();
    assert_eq!(four.take_order(), None);
    four.keep_order(&[7]).unwrap();
    let path = four.path().join("order");
    drop(four);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut torn = whole.clone();
        torn[at] ^= 1;
        fs::write(&path, &torn).unwrap();
        let before = fs::read(place.0.join(&path).with_file_name("identity")).unwrap();
        let found = open();
        assert_eq!(found.take_order(), None, "byte {at}");
        drop(found);
        // As if that owner had not been.
        fs::write(path.with_file_name("identity"), before).unwrap();
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(open().take_order(), Some(vec![7]));
}

#[test]
fn ranks_can_count_as_one_owner() {
    let place = Place::new("run");
    let open = |rank| Folder::open(&place.0, &FIELDS, rank).unwrap();
    // Rank 0 was opened once alone.
    drop(open(0));
    let (one, two) = (open(0), open(1));
    assert_eq!((one.run(), two.run()), (2, 1));
    two.count_as(2).unwrap();
    one.count_as(1).unwrap();
    assert_eq!(one.first_stamp(), two.first_stamp());
    drop((one, two));
    assert_eq!((open(0).run(), open(1).run()), (3, 3), "and it stays so");
}
