//! An engine that gives out its blocks itself, by seed: every block has bytes, copies read and write
//! them when they may, and each position that a request uses is checked (laws E1 to E7).

#[path = "support/listener.rs"]
mod listener;
#[path = "engine/naive.rs"]
mod naive;
#[path = "engine/sets.rs"]
mod sets;
#[path = "engine/world.rs"]
mod world;

use world::{Seen, World};

fn live(seed: u64) -> Seen {
    let mut world = World::new(seed);
    for _ in 0..250 {
        world.act();
    }
    world.end()
}

fn seeds() -> u64 {
    let told = std::env::var("BLOCKYARD_ENGINES").ok();
    told.map_or(300, |told| told.parse().expect("a number of seeds"))
}

/// Law: INV-35a, O1, O2, O3
#[test]
fn no_request_of_an_engine_meets_a_wrong_byte() {
    let mut all = Seen::default();
    for seed in 0..seeds() {
        let seen = std::panic::catch_unwind(|| live(seed));
        let seen = seen.unwrap_or_else(|why| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(why)
        });
        all.kept += seen.kept;
        all.cut += seen.cut;
        all.broken += seen.broken;
        all.fetched += seen.fetched;
        all.soon += seen.soon;
        all.fenced += seen.fenced;
        all.corrupt += seen.corrupt;
        all.unknown += seen.unknown;
        all.refused += seen.refused;
        all.resumed_whole += seen.resumed_whole;
        all.adopted += seen.adopted;
        all.loaded += seen.loaded;
        all.lost += seen.lost;
        all.heard = all.heard.max(seen.heard);
    }
    let Seen {
        kept,
        cut,
        broken,
        fetched,
        soon,
        fenced,
        ..
    } = all;
    assert!(
        kept.min(cut).min(broken).min(fetched).min(soon).min(fenced) > 0,
        "{all:?}"
    );
    let Seen {
        corrupt,
        unknown,
        refused,
        resumed_whole,
        adopted,
        loaded,
        lost,
        heard,
        ..
    } = all;
    assert!(adopted.min(loaded).min(lost) > 0, "{all:?}");
    assert!(heard > 20, "{heard} blocks at most are known to a listener");
    assert!(
        corrupt.min(unknown).min(refused).min(resumed_whole) > 0,
        "{all:?}"
    );
}

/// Law: G4, G8
#[test]
fn no_set_of_an_engine_meets_a_wrong_byte() {
    let mut all = sets::Seen::default();
    for seed in 0..seeds() {
        let seen = std::panic::catch_unwind(|| sets::live(seed));
        let seen = seen.unwrap_or_else(|why| {
            eprintln!("seed {seed} of sets");
            std::panic::resume_unwind(why)
        });
        for (what, count) in seen {
            *all.entry(what).or_default() += count;
        }
    }
    for what in sets::MET {
        assert!(all.contains_key(what), "no life met {what}: {all:?}");
    }
}

#[test]
fn the_same_steps_give_the_same_plans() {
    for seed in 0..10 {
        assert_eq!(live(seed), live(seed));
    }
}
