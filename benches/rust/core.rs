//! The rows of `list.rs` under criterion: `make bench`.

mod adopt;
mod engine;
mod forget;
mod list;
mod tiers;
mod told;
mod verbs;
mod work;

use criterion::{Criterion, criterion_group, criterion_main};
use list::ROWS;
use std::time::{Duration, Instant};

/// Blocks of the full pool.
const BLOCKS: u32 = 100_000;

fn rows(criterion: &mut Criterion) {
    for (name, make) in ROWS {
        let mut made = None;
        criterion.bench_function(name, |bencher| {
            let row = made.get_or_insert_with(|| make(BLOCKS));
            bencher.iter_custom(|iterations| {
                let (mut spent, mut done) = (Duration::ZERO, 0);
                while done < iterations {
                    row.prepare();
                    let start = Instant::now();
                    done += row.run();
                    spent += start.elapsed();
                    row.restore();
                }
                spent.mul_f64(iterations as f64 / done as f64)
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(2));
    targets = rows
}
criterion_main!(benches);
