//! The native side of `benches/python`: `test_boundary.py` and `instructions.py`.
//!
//! ```text
//! floor serve                   reads "row blocks" lines; answers each with its ns per operation
//! floor count row blocks times  runs a row for callgrind with --toggle-collect='*floor::measured';
//!                               answers operations, of one time, and allocations, of all times
//! floor trace row blocks        answers where it marks its operations, and runs a row for lackey
//! floor worst blocks calls      the longest of as many calls, three times over
//! floor slices blocks           nanoseconds for which each slice of a resync holds the lock
//! floor bytes slots             live bytes per slot, by a counting allocator
//! ```

mod adopt;
mod engine;
mod forget;
mod list;
mod tiers;
mod told;
mod verbs;
mod work;

use blockyard_core::{Key, Tier};
use cpu_time::ThreadTime;
use list::ROWS;
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use work::{Rig, Row};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's; only sizes and calls are added up beside it.
#[expect(unsafe_code, reason = "a counting allocator is one")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: handed through.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: handed through.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Rounds of prepare, run and restore in one measurement.
const ROUNDS: u32 = 10;

#[inline(never)]
fn measured(row: &mut dyn Row) -> u64 {
    row.run()
}

fn nanoseconds(row: &mut dyn Row) -> f64 {
    let (mut spent, mut operations) = (0, 0);
    for _ in 0..ROUNDS {
        row.prepare();
        let start = ThreadTime::now();
        operations += measured(row);
        spent += start.elapsed().as_nanos();
        row.restore();
    }
    spent as f64 / operations as f64
}

fn row(name: &str, blocks: u32) -> Box<dyn Row> {
    let names: Vec<&str> = ROWS.iter().map(|row| row.0).collect();
    let known = names.iter().position(|&known| known == name);
    let at = known.unwrap_or_else(|| panic!("no row {name}; there are {names:?}"));
    (ROWS[at].1)(blocks)
}

fn serve() {
    let mut rows: BTreeMap<String, Box<dyn Row>> = BTreeMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let (name, blocks) = line.split_once(' ').expect("row and blocks");
        let make = || row(name, blocks.parse().expect("a number"));
        let mut fresh = false;
        let row = rows.entry(line.clone()).or_insert_with(|| {
            fresh = true;
            make()
        });
        if fresh {
            // Warm-up.
            nanoseconds(row.as_mut());
        }
        answer(&format!("{:.2}", nanoseconds(row.as_mut())));
    }
}

/// With more than one time the row looks as much slower.
fn count(name: &str, blocks: u32, times: u32) {
    let mut row = row(name, blocks);
    let (mut operations, mut allocations) = (0, 0);
    for _ in 0..times {
        row.prepare();
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        operations = measured(row.as_mut());
        allocations += ALLOCATIONS.load(Ordering::Relaxed) - before;
        row.restore();
    }
    answer(&format!("{operations} {allocations}"));
}

fn trace(name: &str, blocks: u32) {
    let mut row = row(name, blocks);
    row.prepare();
    answer(&format!("{:p}", work::MARK.as_ptr()));
    measured(row.as_mut());
}

/// Calls of all verbs, each timed: verb, blocks it named, and its ns.
fn timed(blocks: u32, calls: usize) -> Vec<(&'static str, usize, u64)> {
    let mut rig = Rig::new(blocks, blocks, blockyard_core::EvictionPolicy::Recency, 100);
    let mut all = Vec::with_capacity(calls + 8);
    let mut round = 0_usize;
    while all.len() < calls {
        let mut note = |verb: &'static str, named: usize, start: ThreadTime| {
            all.push((verb, named, start.elapsed().as_nanos() as u64));
        };
        round += 1;
        let length = 1 + round * 7919 % 306;
        let keys = rig.source.keys(length);
        let start = ThreadTime::now();
        let lease = rig.begin(&keys, 64);
        note("begin", length, start);
        let start = ThreadTime::now();
        rig.seal(lease, 0, &keys);
        note("seal", length, start);
        let start = ThreadTime::now();
        let mut unserved = Vec::new();
        rig.cache
            .lock()
            .grow(&[lease], |_| 16, &mut unserved)
            .expect("live");
        note("grow", 1, start);
        let start = ThreadTime::now();
        rig.finish(lease);
        note("finish", length + 1, start);
        let start = ThreadTime::now();
        let plan = rig.cache.lock().demote(Tier::DEVICE, 64);
        note("demote", 64, start);
        if let Some(plan) = plan {
            let start = ThreadTime::now();
            let outcome = plan.whole();
            rig.cache.lock().commit(&[outcome], None).expect("known");
            note("commit", plan.len(), start);
        }
    }
    all
}

/// The same calls three times over. First the longest call of each run, then, of the shortest of
/// the three times of each call, the longest: what the machine did meanwhile is in the former.
fn worst(blocks: u32, calls: usize) {
    let runs: Vec<_> = (0..3).map(|_| timed(blocks, calls)).collect();
    let longest = |calls: &mut dyn Iterator<Item = (&'static str, usize, u64)>| {
        let (verb, named, spent) = calls.max_by_key(|call| call.2).expect("calls");
        format!("{verb} of {named} blocks, {:.0} µs", spent as f64 / 1000.0)
    };
    for run in &runs {
        answer(&format!(
            "in one run: {}",
            longest(&mut run.iter().copied())
        ));
    }
    let mut shortest = (0..runs[0].len()).map(|at| {
        let spent = runs.iter().map(|run| run[at].2).min().unwrap_or(0);
        (runs[0][at].0, runs[0][at].1, spent)
    });
    answer(&format!(
        "the same call in all three runs: {}",
        longest(&mut shortest)
    ));
}

/// Everything is told again, beside a thread that asks for the lock all the time: how long it is away.
fn slices(blocks: u32) {
    let mut told = told::Told::new(blocks, told::Verb::Resync, true);
    let cache = told.cache.clone();
    told.prepare();
    let done = AtomicBool::new(false);
    let away = std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let mut away = Vec::new();
            while !done.load(Ordering::Relaxed) {
                if cache.try_lock().is_none() {
                    let start = Instant::now();
                    while cache.try_lock().is_none() {}
                    away.push(start.elapsed().as_nanos());
                }
            }
            away
        });
        measured(&mut told);
        done.store(true, Ordering::Relaxed);
        asks.join().expect("no panic")
    });
    let text: Vec<String> = away.iter().map(ToString::to_string).collect();
    answer(&text.join(" "));
}

fn bytes(slots: u32) {
    let before = LIVE.load(Ordering::Relaxed);
    let rig = Rig::new(
        slots / 2,
        slots - slots / 2,
        blockyard_core::EvictionPolicy::Recency,
        100,
    );
    // Half of the slots hold blocks once, the other half copies of other blocks.
    let all = rig.cache.lock().stats().tiers[0].idle as u32;
    let plan = rig.cache.lock().demote(Tier::DEVICE, all);
    if let Some(plan) = plan {
        let outcome = plan.whole();
        rig.cache.lock().commit(&[outcome], None).expect("known");
    }
    let live = LIVE.load(Ordering::Relaxed) - before;
    answer(&format!("{:.2}", live as f64 / f64::from(slots)));
    drop(rig);
}

/// Seconds of this thread to restore so many rows, in sequences of 64 blocks, in no order at all.
fn restore(rows: u32) {
    let mut source = work::Source::default();
    let keys = source.keys(rows as usize);
    let mut order: Vec<(u64, u32)> = (0..rows).map(|row| (source.number(), row)).collect();
    order.sort_unstable();
    let key = |&(_, row): &(u64, u32)| keys[row as usize];
    let parent = |&(_, row): &(u64, u32)| match row % 64 {
        0 => Key([0; 32]),
        _ => keys[row as usize - 1],
    };
    let parents: Vec<Key> = order.iter().map(parent).collect();
    let shuffled: Vec<Key> = order.iter().map(key).collect();
    let slots: Vec<u32> = order.iter().map(|&(number, _)| number as u32).collect();
    let mut places: Vec<u32> = (0..rows).collect();
    places.sort_unstable_by_key(|&place| slots[place as usize]);
    let rig = Rig::with_disk(1000, 1000, rows);
    let start = ThreadTime::now();
    let restored = rig
        .cache
        .lock()
        .restore(Tier::DISK, &places, &shuffled, &parents);
    restored.expect("good rows");
    answer(&format!("{:.2} s", start.elapsed().as_secs_f64()));
}

#[expect(
    clippy::print_stdout,
    reason = "its answers are read by benches/python/native.py"
)]
fn answer(line: &str) {
    println!("{line}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse::<u32>().expect("a number");
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(),
        Some("count") => count(&arguments[1], number(2), number(3)),
        Some("trace") => trace(&arguments[1], number(2)),
        Some("worst") => worst(number(1), number(2) as usize),
        Some("slices") => slices(number(1)),
        Some("bytes") => bytes(number(1)),
        Some("restore") => restore(number(1)),
        _ => answer(
            "floor serve | count row blocks times | trace row blocks | worst blocks calls | slices blocks | bytes slots \
             | restore rows",
        ),
    }
}
