//! Copies below are reachable: a path goes down root first, and what is dropped is its end (INV-39).

use crate::yard::{KINDS, Yard, and_one, config, text, three};
use blockyard_core::{Config, HostCopies, Plan, Tier, WritePolicy};

const WRITES: [WritePolicy; 3] = [
    WritePolicy::OnEvict,
    WritePolicy::Through,
    WritePolicy::SecondTouch,
];

/// What each order, policy and place of copies makes of a configuration.
fn each(config: &Config, test: impl Fn(&dyn Fn() -> Yard, &str)) {
    for policy in KINDS {
        for write in WRITES {
            for copies in [HostCopies::First, HostCopies::Last] {
                let own = Config {
                    policy,
                    write,
                    writes_below: vec![write; config.slots.len() - 2],
                    host_copies: Some(copies),
                    ..config.clone()
                };
                let name = format!("{policy:?}, {write:?}, {copies:?}");
                test(&|| Yard::of(own.clone()), &name);
            }
        }
    }
}

/// Copies ahead from every tier, as a dispatch makes them; they land at once.
fn step(yard: &Yard, least: u32) -> Vec<Plan> {
    let tiers = yard.stats().tiers.len() - 1;
    let plans = (0..tiers).filter_map(|tier| yard.cache.lock().copy_ahead(Tier(tier), least, true));
    let plans: Vec<Plan> = plans.collect();
    yard.cache.lock().dispatch();
    yard.land(&plans);
    plans
}

fn run_again(yard: &Yard, prompt: &[u32]) -> u64 {
    let (lease, begun) = yard.begin(prompt);
    yard.land(&begun.plans);
    yard.seal(&lease, prompt.len() as u64);
    yard.finish(lease);
    begun.cached
}

/// Prompts in turn that all fit below, each longer than the copies that are made ahead at first.
fn rounds(yard: &Yard, prompts: u32, blocks: u64, pause: u32) -> f64 {
    let mut found = 0;
    for turn in 0..4 {
        for name in 0..prompts {
            let cached = run_again(yard, &and_one(&text(name + 1, blocks)));
            found += if turn > 1 { cached } else { 0 };
            for _ in 0..pause {
                step(yard, 2);
            }
        }
    }
    found as f64 / f64::from(2 * prompts) / (4 * blocks) as f64
}

#[test]
fn long_prompts_in_turn_are_found_again_where_a_tier_below_holds_them_all() {
    for slots in [config(41, 140), three(41, 0, 140), three(41, 50, 140)] {
        each(&slots, |make, name| {
            for (prompts, blocks) in [(8, 9), (6, 17)] {
                let yard = make();
                let found = rounds(&yard, prompts, blocks, 4);
                let slots = &slots.slots;
                // What was used once goes down no sooner than it is used again.
                let least = if name.contains("SecondTouch") {
                    0.8
                } else {
                    0.95
                };
                assert!(
                    found > least,
                    "{found} of {blocks} blocks, {slots:?} {name}"
                );
                assert_eq!(yard.cache.lock().unreachable(), 0, "{name}");
            }
        });
    }
}

#[test]
fn a_path_that_cannot_go_down_whole_goes_down_from_its_beginning() {
    each(&config(24, 64), |make, name| {
        let (yard, prompt) = (make(), text(1, 20));
        yard.publish(&prompt);
        yard.finish(yard.begin(&and_one(&prompt)).0);
        let plan = yard.cache.lock().copy_ahead(Tier::DEVICE, 5, false);
        let plan = plan.expect("four are free, and five should be");
        assert_eq!(plan.len(), 5);
        yard.land(&[plan]);
        yard.squeeze(20);
        assert_eq!(yard.hits(&prompt), [0, 5, 0], "{name}");
    });
}
