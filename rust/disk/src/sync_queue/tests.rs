//! A lane's queue in the hands of one thread.

use super::*;
use crate::blocks::{Asked, Doubt};
use crate::flight::Written;
use crate::record::Owner;

const STRIDE: usize = 4096;
const WINDOW: Duration = Duration::from_millis(20);
const MOST: u64 = 3 * STRIDE as u64;
const KEY: [u8; 32] = [1; 32];

#[derive(Debug)]
struct Nothing;

impl Memory for Nothing {
    fn gather(&self, _: usize, _: &mut [u8]) {}

    fn scatter(&self, _: usize, _: &[u8]) {}
}

/// A queue, whose disk is tried again after `rest`, and the time that is told to it.
struct Driven {
    queue: Queue,
    now: Instant,
}

impl Driven {
    fn new() -> Self {
        let queue = Queue::new(Breaker::new(2, Duration::from_secs(1)));
        let now = Instant::now();
        Self { queue, now }
    }

    fn down(&mut self, slots: &[u32]) -> u64 {
        let block = |&slot| Written {
            slot,
            owner: Owner::First(KEY),
            stamp: 1,
        };
        let copy = Copy::Down(slots.iter().map(block).collect());
        self.queue.submit(copy, 0, Arc::new(Nothing))
    }

    fn up(&mut self, slots: &[u32]) -> u64 {
        let copy = slots.iter().map(|&slot| Asked { slot, key: KEY });
        let copy = Copy::Up(copy.collect());
        self.queue.submit(copy, 0, Arc::new(Nothing))
    }

    fn next(&mut self, direction: Direction) -> Option<Task> {
        self.queue.next_block(direction, self.now)
    }

    /// The next block to write.
    fn write(&mut self) -> Task {
        self.next(Direction::Down).expect("a block waits")
    }

    /// Its thread has written it.
    fn written(&mut self, task: &Task) -> bool {
        let Copy::Down(blocks) = &task.flying.copy else {
            unreachable!("it goes down")
        };
        let Written { slot, owner, stamp } = blocks[task.at];
        let record = Record {
            owner,
            stamp,
            sum: 0,
            identity: 0,
            length: 1,
            slot,
            group: 0,
            rank: 0,
            plan: 0,
        };
        let done = Ok(Some(record));
        self.queue.end_block(task, done, STRIDE, self.now)
    }

    fn short(&mut self, task: &Task, short: Short) {
        self.queue.end_block(task, Err(short), STRIDE, self.now);
    }

    fn give_up(&mut self, number: u64) {
        assert!(self.queue.give_up(number).is_some());
        self.queue.land(number);
    }

    /// Takes what is to be synced; and the slots whose records that are.
    fn begin_sync(&mut self) -> (Group, Vec<u32>) {
        let (group, records) = self.queue.take_group();
        let mut slots: Vec<u32> = records.iter().map(|record| record.slot).collect();
        slots.sort_unstable();
        (group, slots)
    }

    fn end_sync(&mut self, group: &Group, done: bool) {
        self.queue.end_group(group, done, self.now);
    }

    fn due(&self) -> Due {
        self.queue.due(WINDOW, MOST, self.now)
    }

    fn held(&self) -> usize {
        self.queue.state(self.now).held
    }

    fn landed(&mut self) -> Vec<(u64, usize, Option<Short>)> {
        let landed = self.queue.take_landed();
        landed
            .iter()
            .map(|one| (one.number, one.good, one.short))
            .collect()
    }
}

#[test]
fn inv_27_a_copy_that_is_given_up_during_its_sync_holds_its_slots_until_that_has_ended() {
    for done in [true, false] {
        let mut lane = Driven::new();
        let gone = lane.down(&[3, 4]);
        let tasks = [lane.write(), lane.write()];
        for task in &tasks {
            lane.written(task);
        }
        let (group, slots) = lane.begin_sync();
        assert_eq!(slots, [3, 4]);
        lane.give_up(gone);
        assert_eq!(lane.landed(), [(gone, 0, Some(Short::GivenUp))]);
        assert_eq!(lane.held(), 2, "their records are on their way");
        let next = lane.down(&[4]);
        assert!(lane.next(Direction::Down).is_none());
        lane.end_sync(&group, done);
        assert_eq!((lane.held(), lane.landed()), (0, vec![]));
        assert!(lane.queue.take_blocked(), "the threads are told");
        assert_eq!(lane.write().number, next);
    }
}

#[test]
fn inv_27_a_slot_is_held_from_the_first_byte_of_a_block_until_its_copy_has_landed() {
    let mut lane = Driven::new();
    let (first, second) = (lane.down(&[1]), lane.down(&[1, 2]));
    let other = lane.down(&[5]);
    let task = lane.write();
    let beside = lane.write();
    assert_eq!(beside.number, other, "one that has to wait stops no other");
    assert!(lane.next(Direction::Down).is_none());
    lane.written(&task);
    assert_eq!(lane.held(), 2, "it is not synced");
    assert!(lane.next(Direction::Down).is_none());
    lane.short(&beside, Short::Failed);
    assert_eq!(lane.held(), 1, "no record of it follows");
    let (group, _) = lane.begin_sync();
    lane.end_sync(&group, true);
    let landed = [(other, 0, Some(Short::Failed)), (first, 1, None)];
    assert_eq!(lane.landed(), landed);
    assert_eq!(lane.write().number, second);
    assert_eq!(lane.held(), 1);
}

#[test]
fn inv_27_of_a_copy_that_is_cut_only_what_is_before_is_synced_and_nothing_behind_is_begun() {
    let mut lane = Driven::new();
    let cut = lane.down(&[0, 1, 2, 3, 4]);
    let tasks: Vec<Task> = (0..4).map(|_| lane.write()).collect();
    lane.written(&tasks[3]);
    lane.short(&tasks[1], Short::Failed);
    assert!(lane.next(Direction::Down).is_none(), "it is cut to 1");
    lane.short(&tasks[2], Short::GivenUp);
    lane.written(&tasks[0]);
    let (group, slots) = lane.begin_sync();
    assert_eq!(slots, [0]);
    lane.end_sync(&group, true);
    assert_eq!(lane.landed(), [(cut, 1, Some(Short::Failed))]);
    assert_eq!((lane.held(), lane.queue.counts().written), (0, 1));
    // The one that has cut it says why, whatever a block at the same place or behind it says.
    let cut = lane.up(&[0, 1]);
    let tasks = [Direction::Up; 2].map(|way| lane.next(way).expect("it waits"));
    lane.short(&tasks[0], Short::Doubt(Doubt::Sum));
    lane.give_up(cut);
    lane.short(&tasks[1], Short::Failed);
    assert_eq!(lane.landed(), [(cut, 0, Some(Short::Doubt(Doubt::Sum)))]);
    let counts = lane.queue.counts();
    assert_eq!((counts.read, counts.doubted), (0, 1));
}

#[test]
fn a_group_is_synced_when_nothing_waits_or_it_is_full_or_late() {
    let mut lane = Driven::new();
    assert!(matches!(lane.due(), Due::Never));
    lane.down(&[0]);
    lane.down(&[1, 2]);
    lane.down(&[3]);
    let first = lane.write();
    assert!(lane.written(&first), "the first one says when");
    lane.now += WINDOW / 4;
    assert!(matches!(lane.due(), Due::In(left) if left == 3 * WINDOW / 4));
    let tasks = [lane.write(), lane.write()];
    assert!(!lane.written(&tasks[0]) && !lane.written(&tasks[1]));
    assert!(lane.queue.is_full(MOST), "of blocks, not of copies");
    assert!(!lane.queue.is_full(MOST + 1));
    assert!(matches!(lane.due(), Due::Now));
    assert!(matches!(
        lane.queue.due(WINDOW, MOST + 1, lane.now),
        Due::In(_)
    ));
    lane.now += 3 * WINDOW / 4;
    assert!(matches!(
        lane.queue.due(WINDOW, MOST + 1, lane.now),
        Due::Now
    ));
    let (group, slots) = lane.begin_sync();
    assert_eq!(slots, [0, 1, 2]);
    assert!(matches!(lane.due(), Due::Never), "nothing is left of it");
    lane.end_sync(&group, true);
    let last = lane.write();
    assert!(lane.written(&last));
    assert!(matches!(lane.due(), Due::Now), "nobody else comes");
}

#[test]
fn what_hangs_are_threads_at_copies_that_were_given_up() {
    let mut lane = Driven::new();
    let (gone, runs) = (lane.down(&[0, 1]), lane.down(&[2]));
    let tasks = [lane.write(), lane.write(), lane.write()];
    assert_eq!(lane.queue.state(lane.now).hung, 0);
    lane.give_up(gone);
    let state = lane.queue.state(lane.now);
    assert_eq!((state.flying, state.held, state.hung), (1, 3, 2));
    lane.written(&tasks[0]);
    lane.written(&tasks[1]);
    let state = lane.queue.state(lane.now);
    assert_eq!((state.flying, state.held, state.hung), (1, 1, 0));
    assert!(lane.queue.flies(runs) && !lane.queue.flies(gone));
}

#[test]
fn inv_32_where_each_sync_fails_the_disk_rests_and_a_rest_is_no_failure() {
    let mut lane = Driven::new();
    for _ in 0..2 {
        lane.down(&[0]);
        let task = lane.write();
        lane.written(&task);
        let (group, _) = lane.begin_sync();
        lane.end_sync(&group, false);
    }
    let counts = lane.queue.counts();
    assert_eq!((counts.failed, counts.syncs, counts.written), (2, 0, 0));
    assert_eq!(lane.queue.state(lane.now).rests, [true, false]);
    lane.down(&[0]);
    let task = lane.write();
    assert!(task.rests);
    lane.short(&task, Short::Failed);
    let counts = lane.queue.counts();
    assert_eq!((counts.failed, counts.rests), (2, 1), "nobody was asked");
    lane.now += Duration::from_secs(1);
    lane.down(&[0]);
    assert!(!lane.write().rests, "it is tried again");
}

#[test]
fn inv_31_a_floor_rises_and_only_what_was_noted_of_it_is_durable() {
    let mut lane = Driven::new();
    lane.queue.clear(9);
    lane.queue.clear(5);
    assert_eq!(lane.queue.pending_floor(), Some(9));
    lane.queue.clear(12);
    lane.queue.floor_is_durable(9);
    assert_eq!(lane.queue.pending_floor(), Some(12));
    lane.queue.floor_is_durable(12);
    lane.queue.floor_is_durable(9);
    assert_eq!(lane.queue.pending_floor(), None);
}
