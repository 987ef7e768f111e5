//! The whole core under random operations, beside a naive model of it, audited after every step.
//!
//! The core is built with one tier more than is shipped, and scripts have caches of one tier to four.
//! `BLOCKYARD_CASES=n` runs n times as many scripts, `BLOCKYARD_SEED=n` others. What fails is printed as a short script:
//! it belongs into `regressions.rs`.

#![expect(
    clippy::too_many_arguments,
    clippy::too_many_lines,
    reason = "the model of a verb is one function, of what the verb takes and has answered"
)]

#[path = "model/act.rs"]
mod act;
#[path = "model/admit.rs"]
mod admit;
#[path = "model/compare.rs"]
mod compare;
#[path = "model/down.rs"]
mod down;
#[path = "model/forget.rs"]
mod forget;
#[path = "model/fresh.rs"]
mod fresh;
#[path = "model/holds.rs"]
mod holds;
#[path = "model/keeps.rs"]
mod keeps;
#[path = "model/land.rs"]
mod land;
#[path = "model/lift.rs"]
mod lift;
#[path = "support/listener.rs"]
mod listener;
#[path = "model/moves.rs"]
mod moves;
#[path = "model/names.rs"]
mod names;
#[path = "model/ops.rs"]
mod ops;
#[path = "model/resize.rs"]
mod resize;
#[path = "model/step.rs"]
mod step;
#[path = "model/tickets.rs"]
mod tickets;
#[path = "model/verbs.rs"]
mod verbs;
#[path = "model/walk.rs"]
mod walk;
#[path = "model/world.rs"]
mod world;
#[path = "model/yard.rs"]
mod yard;

use ops::{
    Op, Script, Setup, decodes, forgets, holds as held, losses, script, stops, stores, withdrawals,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use std::panic;
use world::World;

fn config() -> Config {
    let times = std::env::var("BLOCKYARD_CASES").map_or(Ok(1), |times| times.parse::<u32>());
    // The same scripts everywhere; another seed, other scripts.
    let seed = std::env::var("BLOCKYARD_SEED").map_or(Ok(7), |seed| seed.parse::<u64>());
    Config {
        rng_seed: RngSeed::Fixed(seed.expect("BLOCKYARD_SEED is a number")),
        cases: 2048 * times.expect("BLOCKYARD_CASES is a number"),
        // `shorten` does better: operations depend on those before them.
        max_shrink_iters: 0,
        // A seed would mean another script as soon as operations are drawn otherwise.
        failure_persistence: None,
        ..Config::default()
    }
}

fn walk(setup: &Setup, ops: &[Op]) {
    let mut world = World::new(setup);
    for op in ops {
        world.apply(op);
    }
}

fn complaint(setup: &Setup, ops: &[Op]) -> Option<String> {
    let panic = panic::catch_unwind(|| walk(setup, ops)).err()?;
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .or(Some(String::new()))
}

/// Leaves out what the failure does not need: long runs of operations first, then single ones.
fn shorten(setup: &Setup, ops: &[Op]) -> Vec<Op> {
    let mut ops = ops.to_vec();
    let mut run = ops.len();
    while run > 0 {
        let (mut at, before) = (0, ops.len());
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + run).min(ops.len()));
            if complaint(setup, &fewer).is_some() {
                ops = fewer;
            } else {
                at += run;
            }
        }
        if run > 1 || ops.len() == before {
            run /= 2;
        }
    }
    ops
}

/// Fails with the fewest operations that still fail.
fn passes(setup: &Setup, ops: &[Op]) -> Result<(), TestCaseError> {
    if complaint(setup, ops).is_none() {
        return Ok(());
    }
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let ops = shorten(setup, ops);
    let what = complaint(setup, &ops).unwrap_or_default();
    panic::set_hook(hook);
    let lines: Vec<String> = ops.iter().map(|op| format!("    {op:?}")).collect();
    let script = lines.join("\n");
    Err(TestCaseError::fail(format!("{what}\n{setup:?}\n{script}")))
}

/// Fewer and shorter scripts.
fn two_cores() -> Config {
    Config {
        cases: config().cases / 8,
        ..config()
    }
}

proptest! {
    #![proptest_config(two_cores())]
    /// Law: INV-17, INV-20h, O4
    #[test]
    fn two_cores_over_one_script_have_one_digest(Script { setup, ops } in script(120)) {
        // One has a listener and the other none. O4
        let mut worlds = [World::new(&setup), World::deaf(&setup)];
        for op in &ops {
            let [one, other] = worlds.each_mut().map(|world| {
                world.apply(op);
                world.cache.lock().digest()
            });
            prop_assert_eq!(one, other, "{:?} on {:?}", op, setup);
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: two_cores().cases / 2, ..two_cores() })]
    /// Law: INV-17, R2-10
    #[test]
    fn a_decode_step_is_its_four_verbs(Script { setup, ops } in decodes(120)) {
        let mut worlds = [World::new(&setup), World::new(&setup)];
        worlds[1].one_verb = false;
        for op in &ops {
            let [one, four] = worlds.each_mut().map(|world| {
                world.apply(op);
                let state = world.cache.lock();
                let lengths = world.leases.iter().map(blockyard_core::Lease::tokens);
                (state.digest(), state.stats(), lengths.collect::<Vec<u64>>())
            });
            prop_assert_eq!(one, four, "{:?} on {:?}", op, setup);
        }
    }
}

proptest! {
    #![proptest_config(two_cores())]
    /// Law: 2.7-5
    #[test]
    fn no_withdrawn_slot_is_in_service_again(Script { setup, ops } in withdrawals(200)) {
        passes(&setup, &ops)?;
    }
}

proptest! {
    #![proptest_config(two_cores())]
    /// Law: INV-24
    #[test]
    fn what_a_rank_has_lost_is_found_by_nobody_and_what_is_kept_is(Script { setup, ops } in losses(200)) {
        passes(&setup, &ops)?;
    }
}

proptest! {
    #![proptest_config(two_cores())]
    /// Law: INV-39, INV-40
    #[test]
    fn what_goes_down_by_itself_goes_behind_its_prefix(Script { setup, ops } in stops(200)) {
        passes(&setup, &ops)?;
    }

    /// Law: INV-42
    #[test]
    fn what_was_forgotten_is_found_by_nobody_and_goes_when_nobody_uses_it(Script { setup, ops } in forgets(200)) {
        passes(&setup, &ops)?;
    }
}

proptest! {
    #![proptest_config(two_cores())]
    /// Law: INV-34, INV-35a, INV-35c, INV-42
    #[test]
    fn what_stores_are_said_to_have_is_found_and_not_believed(Script { setup, ops } in stores(200)) {
        passes(&setup, &ops)?;
    }
}

proptest! {
    #![proptest_config(two_cores())]
    /// Law: INV-36a, INV-36b
    #[test]
    fn what_is_held_stays_and_no_generation_comes_back(Script { setup, ops } in held(200)) {
        passes(&setup, &ops)?;
    }
}

/// This many tests share the scripts, so that each is short and they run side by side.
const PARTS: u32 = 8;

/// Runs the scripts of one part, which draws them by a seed of its own.
fn walk_part(part: u32) {
    let all = config();
    let RngSeed::Fixed(seed) = all.rng_seed else {
        unreachable!("it is fixed");
    };
    let own = seed
        .wrapping_mul(u64::from(PARTS))
        .wrapping_add(part.into());
    let mut runner = TestRunner::new(Config {
        rng_seed: RngSeed::Fixed(own),
        cases: all.cases / PARTS,
        ..all
    });
    if let Err(error) = runner.run(&script(300), |Script { setup, ops }| passes(&setup, &ops)) {
        panic!("{error}");
    }
}

/// Every verb in random histories, beside the naive model, with an audit and a listener; so do the seven below.
/// Law: INV-1, INV-3, INV-6, INV-14, INV-20, INV-20g, INV-22, INV-23, INV-24, INV-33, INV-34, O1
/// Law: O2, O3, R2-3, R2-10
#[test]
fn the_core_does_what_the_model_says_1_of_8() {
    walk_part(0);
}

#[test]
fn the_core_does_what_the_model_says_2_of_8() {
    walk_part(1);
}

#[test]
fn the_core_does_what_the_model_says_3_of_8() {
    walk_part(2);
}

#[test]
fn the_core_does_what_the_model_says_4_of_8() {
    walk_part(3);
}

#[test]
fn the_core_does_what_the_model_says_5_of_8() {
    walk_part(4);
}

#[test]
fn the_core_does_what_the_model_says_6_of_8() {
    walk_part(5);
}

#[test]
fn the_core_does_what_the_model_says_7_of_8() {
    walk_part(6);
}

#[test]
fn the_core_does_what_the_model_says_8_of_8() {
    walk_part(7);
}
