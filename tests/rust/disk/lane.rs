//! The lane: copies, group commits, failures and hangs.

use crate::support::{
    Chance, IDENTITY, SLOTS, Written as Safe, crashing_disk, cut, key, over, payload,
};
use blockyard_disk::{
    Asked, Blocks, Copy, CrashingDisk, Doubt, Epochs, Geometry, Landed, Lane, Medium, Memory,
    Options, Owner, Short, Written,
};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Memory of blocks, each of which is the payload of a number.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    from: Vec<u64>,
    to: Mutex<HashMap<usize, Vec<u8>>>,
}

impl Numbers {
    pub(crate) fn of(from: &[u64]) -> Arc<Self> {
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

/// Blocks with stamps of their own, as a tier gives them.
pub(crate) fn stamped(first: u64, blocks: &[(u32, u64)]) -> Copy {
    let blocks = blocks.iter().zip(first..);
    Copy::Down(
        blocks
            .map(|(&(slot, number), stamp)| Written {
                slot,
                owner: Owner::First(key(number)),
                stamp,
            })
            .collect(),
    )
}

pub(crate) fn down(blocks: &[(u32, u64)]) -> Copy {
    static STAMPS: AtomicU64 = AtomicU64::new(1);
    stamped(
        STAMPS.fetch_add(blocks.len() as u64, Ordering::Relaxed),
        blocks,
    )
}

pub(crate) fn up(blocks: &[(u32, u64)]) -> Copy {
    let asked = |&(slot, number)| Asked {
        slot,
        key: key(number),
    };
    Copy::Up(blocks.iter().map(asked).collect())
}

pub(crate) fn landed(lane: &Lane, wanted: usize) -> Vec<Landed> {
    let (mut all, until) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    while all.len() < wanted {
        assert!(Instant::now() < until, "{all:?}");
        all.extend(lane.poll());
        std::thread::yield_now();
    }
    all.sort_by_key(|one: &Landed| one.number);
    all
}

pub(crate) fn whole(number: u64, good: usize) -> Landed {
    Landed {
        number,
        good,
        short: None,
    }
}

pub(crate) fn short(number: u64, good: usize, short: Short) -> Landed {
    Landed {
        number,
        good,
        short: Some(short),
    }
}

/// Notes what was cleared as a file would: a power cut before the sync forgets it.
#[derive(Clone, Debug)]
pub(crate) struct Noted(pub(crate) CrashingDisk);

impl Noted {
    pub(crate) fn new() -> Self {
        Self(CrashingDisk::new(512))
    }

    /// What a restart finds after a power cut now.
    pub(crate) fn floor(&self, chance: &mut Chance) -> u64 {
        let found = self.0.cut(|most| chance.below(most));
        u64::from_le_bytes(found[..8].try_into().unwrap())
    }
}

impl Epochs for Noted {
    fn raise(&self, floor: u64) -> io::Result<()> {
        self.0.write(0, &floor.to_le_bytes())?;
        self.0.sync()
    }
}

fn lane_over(payloads: &CrashingDisk, table: &CrashingDisk, options: Options) -> Lane {
    let blocks = over(payloads.clone(), table.clone());
    Lane::new(blocks, Arc::new(Noted::new()), options)
}

fn lane_of(blocks: Blocks, options: Options) -> Lane {
    Lane::new(blocks, Arc::new(Noted::new()), options)
}

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A clock that stands still until it is turned: a rest is over when the test says so.
#[derive(Debug)]
struct Clock(OnceLock<Instant>, AtomicU64);

impl Clock {
    const fn new() -> Self {
        Self(OnceLock::new(), AtomicU64::new(0))
    }

    fn now(&self) -> Instant {
        let turned = Duration::from_secs(self.1.load(Ordering::Relaxed));
        *self.0.get_or_init(Instant::now) + turned
    }

    fn turn(&self, by: Duration) {
        self.1.fetch_add(by.as_secs(), Ordering::Relaxed);
    }
}

const REST: Duration = Duration::from_secs(1);
/// As long as any rest, or longer.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn what_a_lane_has_written_it_reads() {
    let (payloads, table) = crashing_disk();
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

/// Law: INV-27
#[test]
fn inv_27_what_a_lane_reports_as_written_outlives_a_power_cut() {
    let (payloads, table) = crashing_disk();
    let lane = lane_over(&payloads, &table, Options::default());
    let mut chance = Chance(9);
    let mut written = Safe::default();
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
    let [payloads, table] = bytes.map(|bytes| CrashingDisk::new(usize::try_from(bytes).unwrap()));
    let blocks = Blocks::new(Arc::new(payloads), Arc::new(table), geometry, IDENTITY, 0);
    let lane = lane_of(blocks, Options::default());
    for slot in 0..512 {
        lane.submit(down(&[(slot, slot.into())]), Numbers::of(&[slot.into()]));
    }
    assert!(landed(&lane, 512).iter().all(|one| one.good == 1));
    let memory = Numbers::of(&[]);
    let all: Vec<(u32, u64)> = (0..512).map(|slot| (slot, slot.into())).collect();
    lane.submit(up(&all), memory);
    assert_eq!(landed(&lane, 1), [whole(512, 512)]);
}

/// Law: INV-32
#[test]
fn inv_32_a_disk_that_fails_cuts_copies_and_rests_and_is_tried_again() {
    static CLOCK: Clock = Clock::new();
    let (payloads, table) = crashing_disk();
    let options = Options {
        threads: 1,
        failures: 2,
        rest: REST,
        clock: || CLOCK.now(),
        ..Options::default()
    };
    let lane = lane_over(&payloads, &table, options);
    payloads.fail_after(1);
    lane.submit(down(&[(0, 1), (1, 2), (2, 3)]), Numbers::of(&[1, 2, 3]));
    // The second payload fails, and what is before it is synced.
    assert_eq!(landed(&lane, 1), [short(0, 1, Short::Failed)]);
    assert!(!lane.state().rests[1]);
    for number in 1..3 {
        payloads.fail_after(0);
        lane.submit(up(&[(0, 1)]), Numbers::of(&[]));
        assert_eq!(landed(&lane, 1), [short(number, 0, Short::Failed)]);
    }
    assert!(lane.state().rests[1]);
    let failed = lane.counts().failed;
    lane.submit(up(&[(0, 1)]), Numbers::of(&[]));
    assert_eq!(landed(&lane, 1), [short(3, 0, Short::Failed)]);
    assert_eq!(lane.counts().failed, failed, "the disk is not asked");
    CLOCK.turn(REST);
    assert!(!lane.state().rests[1]);
    lane.submit(up(&[(0, 1)]), Numbers::of(&[]));
    assert_eq!(landed(&lane, 1), [whole(4, 1)]);
}

/// Law: INV-32
#[test]
fn inv_32_a_disk_is_dead_that_takes_no_writes_and_not_one_that_cannot_read_a_block() {
    static CLOCK: Clock = Clock::new();
    // Which of its writes and reads are good, and whether it is dead after some of both.
    for (write, read, dead) in [
        (Some(false), Some(true), true),
        (None, Some(false), true),
        (Some(true), Some(false), false),
    ] {
        let (payloads, table) = crashing_disk();
        let options = Options {
            threads: 1,
            failures: 1,
            rest: REST,
            clock: || CLOCK.now(),
            ..Options::default()
        };
        let lane = lane_over(&payloads, &table, options);
        lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
        assert_eq!(landed(&lane, 1), [whole(0, 1)]);
        for _ in 0..12 {
            for (copy, numbers, good) in [
                (down(&[(1, 2)]), vec![2], write),
                (up(&[(0, 1)]), vec![], read),
            ] {
                let Some(good) = good else { continue };
                payloads.fail_after(if good { u32::MAX } else { 0 });
                CLOCK.turn(LONG);
                assert_eq!(lane.state().rests, [false, false]);
                lane.submit(copy, Numbers::of(&numbers));
                assert_eq!(landed(&lane, 1)[0].good, usize::from(good));
            }
        }
        assert_eq!(lane.state().dead, dead, "{write:?} {read:?}");
    }
}

/// Law: INV-27
#[test]
fn inv_27_what_could_not_be_synced_is_not_reported_as_written() {
    let (payloads, table) = crashing_disk();
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
pub(crate) struct Hanging(pub(crate) CrashingDisk, pub(crate) Arc<Told>);

/// Whether reads and writes hang that begin now; and how often those that hang were let go.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<(bool, bool, u32)>, Condvar);

impl Told {
    pub(crate) fn set(&self, reads: bool, writes: bool) {
        let mut told = self.0.lock().unwrap();
        *told = (reads, writes, told.2 + 1);
        self.1.notify_all();
    }

    /// Lets calls that begin from now on pass those that hang.
    fn pass(&self) {
        let mut told = self.0.lock().unwrap();
        (told.0, told.1) = (false, false);
    }

    fn wait(&self, hangs: impl Fn(&(bool, bool, u32)) -> bool) {
        let told = self.0.lock().unwrap();
        if hangs(&told) {
            let times = told.2;
            let _go = self.1.wait_while(told, |told| told.2 == times).unwrap();
        }
    }

    fn reading(&self) {
        self.wait(|told| told.0);
    }

    fn writing(&self) {
        self.wait(|told| told.1);
    }
}

/// A disk whose payloads hang when they are told to.
fn hanging() -> (Blocks, Arc<Told>) {
    let (payloads, table) = crashing_disk();
    let told = Arc::new(Told::default());
    (over(Hanging(payloads, Arc::clone(&told)), table), told)
}

impl Epochs for Hanging {
    fn raise(&self, floor: u64) -> io::Result<()> {
        self.1.writing();
        Noted(self.0.clone()).raise(floor)
    }
}

impl Medium for Hanging {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.1.reading();
        self.0.read(at, into)
    }

    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.1.writing();
        self.0.write(at, from)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.writing();
        self.0.sync()
    }
}

/// Law: INV-32
#[test]
fn inv_32_a_copy_that_hangs_is_given_up_and_touches_no_memory_afterwards() {
    let (blocks, told) = hanging();
    let options = Options {
        threads: 1,
        ..Options::default()
    };
    let lane = lane_of(blocks, options);
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    assert_eq!(landed(&lane, 1), [whole(0, 1)]);
    told.set(true, true);
    let memory = Numbers::of(&[]);
    lane.submit(up(&[(0, 1)]), memory.clone());
    lane.submit(up(&[(0, 1)]), memory.clone());
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(lane.poll(), [], "nobody has waited for it");
    lane.give_up(1);
    lane.give_up(1);
    lane.give_up(99);
    assert_eq!(lane.poll(), [short(1, 0, Short::GivenUp)]);
    told.set(false, false);
    assert_eq!(landed(&lane, 1), [whole(2, 1)], "the other one goes on");
    assert_eq!(memory.got(0), Some(payload(1)));
    let untouched = Numbers::of(&[]);
    told.set(true, true);
    let number = lane.submit(up(&[(0, 1)]), untouched.clone());
    std::thread::sleep(Duration::from_millis(5));
    lane.give_up(number);
    told.set(false, false);
    assert!(lane.close(SOON));
    assert_eq!(untouched.got(0), None);
}

/// Memory that a thread is at until it is told to go on.
#[derive(Debug, Default)]
struct Touched(Mutex<(bool, bool)>, Condvar);

impl Touched {
    fn tell(&self, what: impl FnOnce(&mut (bool, bool))) {
        what(&mut self.0.lock().unwrap());
        self.1.notify_all();
    }

    fn wait(&self, until: impl Fn(&(bool, bool)) -> bool) {
        let told = self.0.lock().unwrap();
        let _told = self.1.wait_while(told, |told| !until(told)).unwrap();
    }
}

impl Memory for Touched {
    fn gather(&self, _: usize, _: &mut [u8]) {}

    fn scatter(&self, _: usize, _: &[u8]) {
        self.tell(|told| told.0 = true);
        self.wait(|told| told.1);
    }
}

#[test]
fn inv_32_a_copy_that_is_given_up_lands_when_nobody_is_at_its_memory_any_more() {
    for in_time in [true, false] {
        // A busy machine may end the copy before the thread runs that gives it up.
        let gives_up =
            |&tries: &u32| given_up_at_its_memory(in_time, Duration::from_millis(20) * tries);
        assert!([1, 2, 4, 8, 16, 32].iter().any(gives_up), "{in_time}");
    }
}

/// Whether a copy is given up while a thread is at its memory, which that leaves after so long.
fn given_up_at_its_memory(in_time: bool, leaves: Duration) -> bool {
    let (payloads, table) = crashing_disk();
    let lane = lane_over(&payloads, &table, Options::default());
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    assert_eq!(landed(&lane, 1), [whole(0, 1)]);
    let memory = Arc::new(Touched::default());
    let number = lane.submit(up(&[(0, 1)]), memory.clone());
    memory.wait(|told| told.0);
    let mut early = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if in_time {
                lane.give_up(number);
            } else {
                lane.give_up_late(number);
            }
        });
        std::thread::sleep(leaves);
        early = lane.poll();
        memory.tell(|told| told.1 = true);
    });
    assert_eq!(early, [], "its memory is written still");
    let ended = landed(&lane, 1);
    if ended == [whole(number, 1)] {
        return false;
    }
    assert_eq!(ended, [short(number, 0, Short::GivenUp)]);
    true
}

/// Law: INV-27
#[test]
fn inv_27_what_hangs_is_not_written_over_what_was_written_after_it() {
    let (blocks, told) = hanging();
    let lane = lane_of(blocks.clone(), Options::default());
    told.set(false, true);
    lane.submit(down(&[(3, 1), (4, 2)]), Numbers::of(&[1, 2]));
    while lane.state().held < 2 {
        std::thread::yield_now();
    }
    lane.give_up(0);
    assert_eq!(landed(&lane, 1), [short(0, 0, Short::GivenUp)]);
    // The yard has the slot again, and gives it to another block.
    lane.submit(down(&[(3, 7)]), Numbers::of(&[7]));
    told.pass();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(lane.poll(), [], "what hangs is at slot 3 still");
    told.set(false, false);
    assert_eq!(landed(&lane, 1), [whole(1, 1)]);
    let memory = Numbers::of(&[]);
    lane.submit(up(&[(3, 7)]), memory.clone());
    assert_eq!(landed(&lane, 1), [whole(2, 1)]);
    assert_eq!(memory.got(0), Some(payload(7)));
    while lane.state().held > 0 {
        std::thread::yield_now();
    }
    let restored = blocks.restore().unwrap();
    assert_eq!(restored.len(), 1, "what was given up is not found again");
}

/// Law: INV-27
#[test]
fn inv_27_a_slot_whose_record_is_on_its_way_is_not_written_for_another_copy() {
    let (blocks, told) = hanging();
    let lane = lane_of(blocks, Options::default());
    // The payload is there, and the sync hangs: as one that was written waits for its group.
    lane.submit(down(&[(3, 1)]), Numbers::of(&[1]));
    let _ = landed(&lane, 1);
    for round in 0..50 {
        told.set(false, true);
        let number = lane.submit(down(&[(3, 2 * round)]), Numbers::of(&[2 * round]));
        lane.give_up(number);
        lane.submit(down(&[(3, 2 * round + 1)]), Numbers::of(&[2 * round + 1]));
        told.set(false, false);
        assert_eq!(landed(&lane, 2)[1], whole(number + 1, 1));
        let memory = Numbers::of(&[]);
        lane.submit(up(&[(3, 2 * round + 1)]), memory.clone());
        assert_eq!(landed(&lane, 1), [whole(number + 2, 1)], "round {round}");
        assert_eq!(memory.got(0), Some(payload(2 * round + 1)));
    }
}

/// Law: INV-32
#[test]
fn inv_32_reads_go_on_where_writes_hang() {
    static CLOCK: Clock = Clock::new();
    let (blocks, told) = hanging();
    let options = Options {
        clock: || CLOCK.now(),
        ..Options::default()
    };
    let lane = lane_of(blocks, options);
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    assert_eq!(landed(&lane, 1), [whole(0, 1)]);
    told.set(false, true);
    for slot in 1..SLOTS {
        lane.submit(down(&[(slot, 9)]), Numbers::of(&[9]));
    }
    let number = lane.submit(up(&[(0, 1)]), Numbers::of(&[]));
    assert_eq!(landed(&lane, 1), [whole(number, 1)]);
    // Copies that were not answered in time are failures: the others fail at once then.
    for late in 1..4 {
        lane.give_up_late(late);
    }
    assert_eq!(lane.state().rests, [true, false]);
    assert_eq!((lane.counts().given_up, lane.counts().rests), (3, 1));
    told.set(false, false);
}

/// Law: INV-32
#[test]
fn inv_32_a_lane_does_not_close_before_its_threads_have_ended() {
    let (blocks, told) = hanging();
    let lane = lane_of(blocks, Options::default());
    told.set(false, true);
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    while lane.state().held == 0 {
        std::thread::yield_now();
    }
    assert!(!lane.close(Duration::from_millis(5)), "one may still write");
    told.set(false, false);
    assert!(lane.close(SOON));
}

#[test]
fn a_lane_that_closes_reports_all() {
    let (payloads, table) = crashing_disk();
    let lane = lane_over(&payloads, &table, Options::default());
    for number in 0..50 {
        lane.submit(down(&[(0, number)]), Numbers::of(&[number]));
    }
    assert!(lane.close(SOON));
    lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    let all = landed(&lane, 51);
    assert!(
        all.iter()
            .all(|one| one.short.is_none() || one.short == Some(Short::GivenUp))
    );
    assert_eq!(all.last(), Some(&short(50, 0, Short::GivenUp)));
}

#[test]
fn who_waits_for_a_copy_is_woken_when_it_lands_and_not_before() {
    let (blocks, told) = hanging();
    let lane = lane_of(blocks, Options::default());
    told.set(false, true);
    let one = lane.submit(down(&[(0, 1)]), Numbers::of(&[1]));
    let other = lane.submit(up(&[(1, 2)]), Numbers::of(&[]));
    assert!(lane.wait(other, LONG), "it has no record, and is not read");
    assert!(!lane.wait(one, Duration::from_millis(5)));
    assert_eq!(lane.poll().len(), 1, "a wait takes nothing");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| lane.wait(one, LONG));
        told.set(false, false);
        assert!(waits.join().unwrap());
    });
    assert_eq!(lane.poll(), [whole(one, 1)]);
    let ends: [fn(&Lane, u64); 3] = [Lane::give_up, Lane::give_up_late, |lane, _| {
        lane.close(SOON);
    }];
    for end in ends {
        told.set(true, true);
        let hung = lane.submit(up(&[(0, 1)]), Numbers::of(&[]));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lane.wait(hung, LONG));
            std::thread::sleep(Duration::from_millis(5));
            let ends = scope.spawn(|| end(&lane, hung));
            assert!(waits.join().unwrap(), "whoever ends it");
            told.set(false, false);
            ends.join().unwrap();
        });
    }
    assert!(lane.wait(99, LONG), "one that was never taken");
}
