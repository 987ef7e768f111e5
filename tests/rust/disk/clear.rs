//! Clears: what was cleared comes back by no late write and by no power cut. (INV-31)

use crate::lane::{Hanging, Noted, Numbers, SOON, Told, down, landed, short, stamped, whole};
use crate::support::{Chance, crashing_disk, over};
use blockyard_disk::{CrashingDisk, Epochs, Lane, Options, Short};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Law: INV-31
#[test]
fn inv_31_what_was_asked_for_before_a_clear_is_below_its_floor_however_late_it_is_written() {
    let (payloads, table) = crashing_disk();
    let told = Arc::new(Told::default());
    told.set(false, true);
    let blocks = over(Hanging(payloads.clone(), Arc::clone(&told)), table.clone());
    let noted = Noted::new();
    let lane = Lane::new(blocks, Arc::new(noted.clone()), Options::default());
    lane.submit(stamped(70, &[(0, 1), (1, 2)]), Numbers::of(&[1, 2]));
    assert!(lane.clear(72, SOON));
    let floor = noted.floor(&mut Chance(1));
    lane.submit(stamped(72, &[(2, 3)]), Numbers::of(&[3]));
    told.set(false, false);
    assert_eq!(landed(&lane, 2).len(), 2);
    let records = over(payloads, table).restore().unwrap();
    let mut stamps: Vec<(u64, bool)> = records
        .iter()
        .map(|one| (one.stamp, one.stamp < floor))
        .collect();
    stamps.sort_unstable();
    assert_eq!(stamps, [(70, true), (71, true), (72, false)]);
}

/// Law: INV-31
#[test]
fn inv_31_nothing_is_acknowledged_before_what_was_cleared_is_durable() {
    let (payloads, table) = crashing_disk();
    let told = Arc::new(Told::default());
    let floors = Hanging(CrashingDisk::new(512), Arc::clone(&told));
    let noted = Noted(floors.0.clone());
    let blocks = over(payloads, table);
    let lane = Lane::new(blocks, Arc::new(floors), Options::default());
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    assert_eq!(landed(&lane, 1), [whole(0, 1)]);
    told.set(false, true);
    assert!(
        !lane.clear(2, Duration::from_millis(2)),
        "it is not waited for"
    );
    assert!(lane.state().clearing);
    lane.submit(down(&[(1, 2)]), Numbers::of(&[2]));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(lane.poll(), []);
    assert_eq!(noted.floor(&mut Chance(1)), 0);
    told.set(false, false);
    assert_eq!(landed(&lane, 1), [whole(1, 1)]);
    assert_eq!(noted.floor(&mut Chance(1)), 2);
    assert!(!lane.state().clearing);
}

/// Law: INV-31
#[test]
fn inv_31_no_power_cut_undoes_a_clear() {
    let (payloads, table) = crashing_disk();
    let noted = Noted::new();
    let lane = Lane::new(
        over(payloads, table),
        Arc::new(noted.clone()),
        Options::default(),
    );
    let (mut chance, mut stamps) = (Chance(4), 1_u64);
    for round in 0..200 {
        let waits = chance.below(2) == 0;
        let done = lane.clear(stamps, if waits { SOON } else { Duration::ZERO });
        assert!(done || !waits);
        if done {
            assert!(noted.floor(&mut chance) >= stamps, "round {round}");
        }
        let cleared = stamps;
        lane.submit(stamped(stamps, &[(0, round)]), Numbers::of(&[round]));
        stamps += 1;
        assert_eq!(landed(&lane, 1).len(), 1);
        assert!(noted.floor(&mut chance) >= cleared, "round {round}");
    }
}

/// Where nothing can be noted.
#[derive(Debug)]
struct Full;

impl Epochs for Full {
    fn raise(&self, _floor: u64) -> io::Result<()> {
        Err(io::Error::other("on purpose"))
    }
}

/// Law: INV-31
#[test]
fn inv_31_while_a_clear_cannot_be_noted_nothing_is_acknowledged() {
    let (payloads, table) = crashing_disk();
    let lane = Lane::new(over(payloads, table), Arc::new(Full), Options::default());
    assert!(!lane.clear(2, Duration::from_millis(2)));
    lane.submit(stamped(2, &[(0, 1)]), Numbers::of(&[1]));
    assert_eq!(landed(&lane, 1), [short(0, 0, Short::Failed)]);
    assert!(lane.state().clearing);
}

/// Law: INV-31
#[test]
fn inv_31_a_floor_that_cannot_be_noted_is_tried_again() {
    let (payloads, table) = crashing_disk();
    let noted = Noted::new();
    let options = Options {
        rest: Duration::from_millis(5),
        ..Options::default()
    };
    let lane = Lane::new(over(payloads, table), Arc::new(noted.clone()), options);
    noted.0.fail_after(0);
    assert!(lane.clear(1, SOON));
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    assert_eq!(landed(&lane, 1), [whole(0, 1)]);
}
