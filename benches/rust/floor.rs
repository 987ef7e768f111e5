//! The native side of `benches/python/measure.py`.
//!
//! ```text
//! floor serve               reads "row blocks" lines; answers each with its ns per operation
//! floor count row blocks    runs a row once, for callgrind with --toggle-collect='*measured*'
//! floor worst blocks calls  the longest of as many calls
//! floor bytes slots         live bytes per slot, by a counting allocator
//! ```

#[path = "work.rs"]
mod work;

use cpu_time::ThreadTime;
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::atomic::{AtomicUsize, Ordering};
use work::{Rig, Row, row};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's; only sizes are added up beside it.
#[expect(unsafe_code, reason = "a counting allocator is one")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
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

fn serve() {
    let mut rows: BTreeMap<String, Box<dyn Row>> = BTreeMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        if line == "forget" {
            rows.clear();
            answer("forgotten");
            continue;
        }
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

fn count(name: &str, blocks: u32) {
    let mut row = row(name, blocks);
    row.prepare();
    let operations = measured(row.as_mut());
    row.restore();
    answer(&operations.to_string());
}

/// A million calls of every verb, each timed: the longest, of which verb, and per block it named.
fn worst(blocks: u32, calls: u64) {
    let mut rig = Rig::new(blocks, blocks, blockyard_core::Kind::Recency, 100);
    let mut longest: BTreeMap<&str, (u128, usize)> = BTreeMap::new();
    let mut made = 0;
    let mut note = |verb: &'static str, named: usize, start: ThreadTime| {
        let spent = start.elapsed().as_nanos();
        let worst = longest.entry(verb).or_default();
        if spent > worst.0 {
            *worst = (spent, named);
        }
    };
    let mut round = 0_usize;
    while made < calls {
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
        let plan = rig.cache.lock().demote(64);
        note("demote", 64, start);
        made += 5;
        if let Some(plan) = plan {
            let start = ThreadTime::now();
            let outcome = (plan.flight, plan.len() as u32, false);
            rig.cache.lock().commit(&[outcome], None).expect("known");
            note("commit", plan.len(), start);
            made += 1;
        }
    }
    for (verb, (spent, named)) in longest {
        answer(&format!("{verb} {spent} {named}"));
    }
}

fn bytes(slots: u32) {
    let before = LIVE.load(Ordering::Relaxed);
    let rig = Rig::new(
        slots / 2,
        slots - slots / 2,
        blockyard_core::Kind::Recency,
        100,
    );
    // Half of the slots hold blocks once, the other half copies of other blocks.
    let all = rig.cache.lock().stats().tiers[0].idle as u32;
    let plan = rig.cache.lock().demote(all);
    if let Some(plan) = plan {
        let outcome = (plan.flight, plan.len() as u32, false);
        rig.cache.lock().commit(&[outcome], None).expect("known");
    }
    let live = LIVE.load(Ordering::Relaxed) - before;
    answer(&format!("{:.2}", live as f64 / f64::from(slots)));
    drop(rig);
}

#[expect(clippy::print_stdout, reason = "its answers are read by measure.py")]
fn answer(line: &str) {
    println!("{line}");
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let number = |at: usize| arguments[at].parse::<u32>().expect("a number");
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(),
        Some("count") => count(&arguments[1], number(2)),
        Some("worst") => worst(number(1), u64::from(number(2))),
        Some("bytes") => bytes(number(1)),
        // `cargo bench` runs every bench: nothing to do without a word.
        _ => {}
    }
}
