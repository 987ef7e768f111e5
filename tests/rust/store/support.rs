//! A little memory, and a lane over it.

use blockyard_disk::{Key, Memory, Owner};
use blockyard_store::{Copy, Job, Kind, Landed, Lane, Options, Shape, Way};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const BYTES: usize = 300;
pub(crate) const AT_ONCE: Duration = Duration::ZERO;
pub(crate) const SHAPE: Shape = Shape {
    identity: 77,
    rank: 1,
    group: 2,
    bytes: 300,
};

/// Blocks in memory, which say where they were touched after they were given up.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) bytes: Mutex<Vec<Vec<u8>>>,
    pub(crate) touched: AtomicUsize,
    pub(crate) left: AtomicBool,
}

impl Blocks {
    pub(crate) fn new(blocks: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new((0..blocks).map(|_| vec![0; BYTES]).collect()),
            touched: AtomicUsize::new(0),
            left: AtomicBool::new(false),
        })
    }

    /// Blocks full of what their numbers say.
    pub(crate) fn filled(numbers: &[u8]) -> Arc<Self> {
        let made = Self::new(numbers.len());
        for (block, &number) in made.bytes.lock().unwrap().iter_mut().zip(numbers) {
            *block = payload(number);
        }
        made
    }

    pub(crate) fn block(&self, at: usize) -> Vec<u8> {
        self.bytes.lock().unwrap()[at].clone()
    }

    pub(crate) fn touches(&self) -> usize {
        self.touched.load(Ordering::SeqCst)
    }

    fn touch(&self) {
        assert!(!self.left.load(Ordering::SeqCst), "it was given up");
        self.touched.fetch_add(1, Ordering::SeqCst);
    }
}

impl Memory for Blocks {
    fn gather(&self, at: usize, staged: &mut [u8]) {
        self.touch();
        staged.copy_from_slice(&self.bytes.lock().unwrap()[at]);
        self.touch();
    }

    fn scatter(&self, at: usize, staged: &[u8]) {
        self.touch();
        self.bytes.lock().unwrap()[at].copy_from_slice(staged);
        self.touch();
    }
}

pub(crate) fn payload(number: u8) -> Vec<u8> {
    (0..BYTES)
        .map(|at| (usize::from(number) * 31 + at * 7) as u8)
        .collect()
}

pub(crate) fn key(number: u8) -> Key {
    [number; 32]
}

pub(crate) fn owner(number: u8) -> Owner {
    Owner::After {
        key: key(number),
        parent: [9; 32],
    }
}

pub(crate) fn down(numbers: &[u8]) -> Copy {
    Copy::Down(numbers.iter().map(|&number| owner(number)).collect())
}

pub(crate) fn up(numbers: &[u8]) -> Copy {
    Copy::Up(numbers.iter().map(|&number| key(number)).collect())
}

pub(crate) fn options() -> Options {
    Options {
        buffers: 4,
        ..Options::default()
    }
}

pub(crate) fn lane() -> Lane {
    Lane::new(SHAPE, &options())
}

pub(crate) fn take(lane: &Lane, way: Way) -> Option<Job> {
    lane.take(way, AT_ONCE, f64::NAN)
}

/// The value of a block, as a lane puts it.
pub(crate) fn value_of(shape: Shape, whose: Owner, number: u8) -> Vec<u8> {
    let lane = Lane::new(shape, &options());
    let memory = Blocks::new(1);
    let mut bytes = payload(number);
    bytes.resize(shape.bytes as usize, 3);
    *memory.bytes.lock().unwrap() = vec![bytes];
    lane.submit(Copy::Down(vec![whose]), memory);
    let job = take(&lane, Way::Down).unwrap();
    assert_eq!(job.kind(), Kind::Put(whose));
    job.room.as_ref().unwrap()[..shape.value_bytes()].to_vec()
}

pub(crate) fn value(number: u8) -> Vec<u8> {
    value_of(SHAPE, owner(number), number)
}

/// Asks the first store, and has it refuse.
pub(crate) fn refuse(job: &Job) {
    assert!(job.ask(0));
    job.refused("it is down", AT_ONCE);
    job.fail();
}

pub(crate) fn only(landed: &[Landed]) -> (usize, Option<blockyard_store::Short>) {
    assert_eq!(landed.len(), 1, "{landed:?}");
    (landed[0].good, landed[0].short)
}

/// A stream of numbers by seed: `SplitMix64`.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((bits ^ (bits >> 31)) % most as u64).unwrap()
    }
}
