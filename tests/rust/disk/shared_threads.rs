//! Lanes that share the threads of a disk.

use crate::lane::{Hanging, Noted, Numbers, SOON, Told, down, landed, short, up, whole};
use crate::support::{IDENTITY, crashing_disk, over, payload};
use blockyard_disk::{
    Blocks, CrashingDisk, Geometry, Lane, Medium, Memory, Options, Short, Threads,
};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

fn lane_of(threads: &Threads, blocks: Blocks) -> Lane {
    Lane::of(threads, blocks, Arc::new(Noted::new()), Options::default())
}

/// A disk that notes which threads have come.
#[derive(Debug, Clone)]
struct Visited(CrashingDisk, Arc<Mutex<HashSet<ThreadId>>>);

impl Medium for Visited {
    fn read(&self, at: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.1.lock().unwrap().insert(thread::current().id());
        self.0.read(at, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> std::io::Result<()> {
        self.1.lock().unwrap().insert(thread::current().id());
        self.0.write(at, from)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.1.lock().unwrap().insert(thread::current().id());
        self.0.sync()
    }
}

#[test]
fn six_lanes_have_the_threads_of_one() {
    let threads = Threads::new(2);
    let visitors = Arc::new(Mutex::new(HashSet::new()));
    let lanes: Vec<Lane> = (0..6)
        .map(|_| {
            let (payloads, table) = crashing_disk();
            let visited = Visited(payloads, Arc::clone(&visitors));
            lane_of(&threads, over(visited, table))
        })
        .collect();
    for round in 0..20 {
        for (lane, at) in lanes.iter().zip(0u64..) {
            let number = 10 * round + at;
            lane.submit(down(&[(0, number)]), Numbers::of(&[number]));
        }
        for (lane, at) in lanes.iter().zip(0u64..) {
            assert_eq!(landed(lane, 1), [whole(2 * round, 1)]);
            lane.submit(up(&[(0, 10 * round + at)]), Numbers::of(&[]));
            assert_eq!(landed(lane, 1), [whole(2 * round + 1, 1)]);
        }
    }
    assert!(
        visitors.lock().unwrap().len() <= 5,
        "2 each way, and 1 that syncs"
    );
}

#[test]
fn a_lane_is_closed_while_another_goes_on_and_a_later_one_has_threads_again() {
    let threads = Threads::new(1);
    let [one, other] = [0, 1].map(|_| {
        let (payloads, table) = crashing_disk();
        lane_of(&threads, over(payloads, table))
    });
    one.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    assert!(one.close(SOON));
    assert_eq!(one.poll().len(), 1, "it has ended, written or not");
    other.submit(down(&[(0, 2)]), Numbers::of(&[2]));
    assert_eq!(landed(&other, 1), [whole(0, 1)]);
    drop(one);
    assert!(other.close(SOON));
    assert!(other.close(SOON));
    let (payloads, table) = crashing_disk();
    let later = lane_of(&threads, over(payloads, table));
    later.submit(down(&[(0, 3)]), Numbers::of(&[3]));
    assert_eq!(landed(&later, 1), [whole(0, 1)]);
    assert!(later.close(SOON));
}

/// Law: INV-31
#[test]
fn inv_31_a_clear_of_one_lane_waits_for_no_other_lane() {
    let threads = Threads::new(1);
    let [one, other] = [0, 1].map(|_| {
        let (payloads, table) = crashing_disk();
        let noted = Noted::new();
        let blocks = over(payloads, table);
        (
            Lane::of(
                &threads,
                blocks,
                Arc::new(noted.clone()),
                Options::default(),
            ),
            noted,
        )
    });
    one.1.0.fail_after(0);
    assert!(!one.0.clear(5, Duration::from_millis(2)));
    assert!(other.0.clear(5, SOON));
    other.0.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    assert_eq!(landed(&other.0, 1), [whole(0, 1)]);
    assert!(one.0.clear(5, SOON), "it is tried again");
    assert!(one.0.close(SOON) && other.0.close(SOON));
}

/// Law: INV-32
#[test]
fn inv_32_a_lane_that_hangs_holds_up_its_own_close_alone() {
    let threads = Threads::new(2);
    let told = Arc::new(Told::default());
    let (payloads, table) = crashing_disk();
    let hanging = lane_of(&threads, over(Hanging(payloads, Arc::clone(&told)), table));
    let (payloads, table) = crashing_disk();
    let other = lane_of(&threads, over(payloads, table));
    told.set(true, true);
    hanging.submit(up(&[(0, 1)]), Numbers::of(&[]));
    hanging.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    thread::sleep(Duration::from_millis(5));
    other.submit(down(&[(0, 2)]), Numbers::of(&[2]));
    assert_eq!(landed(&other, 1), [whole(0, 1)], "there is a thread left");
    assert!(!hanging.close(Duration::from_millis(2)));
    assert_eq!(hanging.poll().len(), 2);
    other.submit(up(&[(0, 2)]), Numbers::of(&[]));
    assert_eq!(landed(&other, 1), [whole(1, 1)]);
    told.set(false, false);
    assert!(hanging.close(SOON));
    assert!(other.close(SOON));
}

/// Memory of blocks of so many bytes, all of one value.
#[derive(Debug)]
struct Same(u8);

impl Memory for Same {
    fn gather(&self, _at: usize, staged: &mut [u8]) {
        let payload = staged.len() - 4096 + 1;
        staged[..payload].fill(self.0);
    }

    fn scatter(&self, _at: usize, staged: &[u8]) {
        let payload = staged.len() - 4096 + 1;
        assert!(staged[..payload].iter().all(|&byte| byte == self.0));
    }
}

#[test]
fn lanes_of_unequal_blocks_share_threads_and_no_byte_of_one_comes_to_another() {
    let threads = Threads::new(1);
    let lanes = [1, 5, 2, 9].map(|pages| {
        let geometry = Geometry::new(4, 4096 * (pages - 1) + 1).unwrap();
        let bytes = [geometry.payload_bytes(), geometry.table_bytes()];
        let [payloads, table] = bytes.map(|n| CrashingDisk::new(usize::try_from(n).unwrap()));
        let blocks = Blocks::new(
            Arc::new(payloads.clone()),
            Arc::new(table),
            geometry,
            IDENTITY,
            0,
        );
        (lane_of(&threads, blocks), payloads, geometry)
    });
    for (at, (lane, payloads, geometry)) in (1u8..).zip(&lanes) {
        lane.submit(down(&[(0, at.into())]), Arc::new(Same(at)));
        assert_eq!(landed(lane, 1), [whole(0, 1)]);
        let mut found = vec![0; geometry.stride()];
        payloads.read(0, &mut found).unwrap();
        let (bytes, padding) = found.split_at(geometry.bytes() as usize);
        assert!(bytes.iter().all(|&byte| byte == at));
        assert!(
            padding.iter().all(|&byte| byte == 0),
            "nothing of another lane"
        );
        lane.submit(up(&[(0, at.into())]), Arc::new(Same(at)));
        assert_eq!(landed(lane, 1), [whole(1, 1)]);
    }
}

/// Law: INV-28
#[test]
fn inv_28_a_block_of_another_group_is_a_miss() {
    let (payloads, table) = crashing_disk();
    let blocks = over(payloads, table);
    let [one, two] = [1, 2].map(|group| blocks.clone().of_group(group));
    let threads = Threads::new(1);
    let lane = lane_of(&threads, one.clone());
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    assert_eq!(landed(&lane, 1), [whole(0, 1)]);
    assert_eq!(one.restore().unwrap().len(), 1);
    assert_eq!(one.restore().unwrap()[0].group, 1);
    assert!(two.restore().unwrap().is_empty() && blocks.restore().unwrap().is_empty());
    for other in [two, blocks] {
        let lane = lane_of(&threads, other);
        lane.submit(up(&[(0, 1)]), Numbers::of(&[]));
        let found = landed(&lane, 1);
        assert!(matches!(found[0].short, Some(Short::Doubt(_))), "{found:?}");
        assert_ne!(found, [short(0, 0, Short::Failed)]);
    }
    assert_eq!(payload(1).len() % 4096, 0);
}
