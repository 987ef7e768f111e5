//! The same calls give the same answers, whatever else is going on in the process. (INV-17)
//! On these random histories, the audit also counts again what eviction may take. (R2-3)

use crate::verbs::Verbs as _;
use crate::yard::{KINDS, SIZE, Yard, cat, config, text, tokens};
use blockyard_core::{
    BlockCosts, Config, EvictionPolicy, Lease, MAX_TIERS, Outcome, Parked, Plan, Retention, Ticket,
    Tier, WritePolicy,
};

/// A small generator of our own: the numbers must not change with the version of a crate.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    fn take<T>(&mut self, from: &mut Vec<T>) -> Option<T> {
        let at = self.roll(from.len().max(1) as u64) as usize;
        (at < from.len()).then(|| from.swap_remove(at))
    }
}

#[derive(Default)]
struct Hands {
    leases: Vec<Lease>,
    parked: Vec<Parked>,
    tickets: Vec<Ticket>,
    in_flight: Vec<Plan>,
}

/// A history of so many calls, and everything that was answered.
fn history(seed: u64, calls: u32, policy: EvictionPolicy) -> Vec<String> {
    let writes = [
        WritePolicy::OnEvict,
        WritePolicy::Through,
        WritePolicy::SecondTouch,
    ];
    let block_costs = BlockCosts {
        load: [5; MAX_TIERS],
        compute: 3,
        attend: 1,
    };
    let yard = Yard::of(Config {
        policy,
        write: writes[seed as usize % writes.len()],
        block_costs: Some(block_costs).filter(|_| seed.is_multiple_of(2)),
        ..config(24, 12)
    });
    let (mut dice, mut hands) = (Dice(seed), Hands::default());
    let mut told = vec![];
    for _ in 0..calls {
        told.push(call(&yard, &mut dice, &mut hands));
        told.push(format!("{:?}", yard.stats()));
        told.push(format!("digest {:x}", yard.cache.lock().digest()));
        yard.sound();
    }
    for lease in hands.leases {
        told.push(format!("{:?}", yard.table(&lease)));
        yard.finish(lease);
    }
    hands
        .parked
        .drain(..)
        .for_each(|parked| yard.abandon(parked));
    hands.tickets.clear();
    for plan in hands.in_flight {
        yard.land(&[plan]);
    }
    // Nothing is left beyond a tier's size.
    yard.cache
        .lock()
        .resize(Tier::DEVICE, 64)
        .expect("it grows");
    yard.cache.lock().resize(Tier::HOST, 64).expect("it grows");
    yard.at_rest();
    told
}

#[expect(clippy::too_many_lines, reason = "a verb for each throw")]
fn call(yard: &Yard, dice: &mut Dice, hands: &mut Hands) -> String {
    match dice.roll(12) {
        0..3 => {
            let stem = text(dice.roll(3) as u32, dice.roll(4));
            let prompt = cat(&stem, &tokens(10 + dice.roll(3) as u32, 1 + dice.roll(12)));
            let answer = yard.cache.begin(
                yard.chain(&prompt),
                dice.roll(3) * SIZE,
                dice.roll(8) as u32,
            );
            match answer {
                Ok(Some((lease, begun))) => {
                    hands.leases.push(lease);
                    hands.in_flight.extend(begun.plans.clone());
                    format!("{begun:?}")
                }
                other => format!("{:?}", other.map(|_| ())),
            }
        }
        3 => {
            let ids: Vec<_> = hands.leases.iter().map(Lease::id).collect();
            let mut unserved = vec![];
            let grown = yard.cache.lock().grow(&ids, |_| 2, &mut unserved);
            format!("{grown:?} {unserved:?}")
        }
        4 | 5 => {
            let batch: Vec<_> = hands.leases.iter().map(|l| (l, l.tokens())).collect();
            let one = batch.get(dice.roll(4) as usize).copied();
            format!("{:?}", one.map(|row| yard.cache.seal(&[row])))
        }
        6 => dice
            .take(&mut hands.leases)
            .map_or_else(String::new, |lease| {
                let hints = [
                    Retention::SessionEnded,
                    Retention::Ordinary,
                    Retention::Retain,
                ];
                let hint = hints[dice.roll(3) as usize];
                format!("{:?}", yard.cache.finish(lease, hint))
            }),
        7 => dice
            .take(&mut hands.leases)
            .map_or_else(String::new, |lease| {
                let computed = lease.tokens();
                match yard.cache.park(lease, computed) {
                    Ok(parked) => {
                        hands.parked.push(parked);
                        "parked".to_owned()
                    }
                    Err((lease, error)) => {
                        hands.leases.push(lease);
                        error.to_string()
                    }
                }
            }),
        8 => dice
            .take(&mut hands.parked)
            .map_or_else(String::new, |parked| {
                let plan = yard.cache.lock().demote_parked(parked.id(), 2, None);
                hands.in_flight.extend(plan.clone().expect("it is parked"));
                let answer = match yard.cache.resume(parked, 0) {
                    Ok((lease, begun)) => {
                        hands.leases.push(lease);
                        hands.in_flight.extend(begun.plans.clone());
                        format!("{begun:?}")
                    }
                    Err((parked, error)) => {
                        hands.parked.push(parked);
                        format!("{error:?}")
                    }
                };
                format!("{plan:?} {answer}")
            }),
        9 => {
            let plan = yard.cache.lock().demote(Tier::DEVICE, dice.roll(5) as u32);
            hands.in_flight.extend(plan.clone());
            format!("{plan:?}")
        }
        10 => dice
            .take(&mut hands.in_flight)
            .map_or_else(String::new, |plan| {
                let good = dice.roll(plan.len() as u64 + 1) as u32;
                if dice.roll(6) == 0 {
                    yard.overdue(&plan);
                }
                let outcome = [Outcome::failed(plan.flight, good)];
                format!("{:?}", yard.cache.lock().commit(&outcome, None))
            }),
        _ => rarely(yard, dice, hands),
    }
}

fn rarely(yard: &Yard, dice: &mut Dice, hands: &mut Hands) -> String {
    match dice.roll(12) {
        8..11 => {
            let tier = Tier(dice.roll(2) as usize);
            let promised = yard.cache.promise(dice.roll(9), tier);
            let told = format!("{:?}", promised.as_ref().map(Ticket::id));
            hands.tickets.extend(promised);
            told
        }
        11 => dice
            .take(&mut hands.tickets)
            .map_or_else(String::new, |ticket| {
                format!("{:?}", yard.cache.release(ticket))
            }),
        0 => {
            yard.cache.lock().clear();
            "clear".to_owned()
        }
        1 => {
            let slots = 20 + dice.roll(8) as u32;
            format!("{:?}", yard.cache.lock().resize(Tier::DEVICE, slots))
        }
        2 => {
            let slots = 2 + dice.roll(12) as u32;
            format!("{:?}", yard.cache.lock().resize(Tier::HOST, slots))
        }
        _ => {
            for plan in hands.in_flight.drain(..) {
                yard.land(&[plan]);
            }
            String::new()
        }
    }
}

/// Law: INV-17, INV-20g, INV-20h, R2-3
#[test]
fn the_same_calls_give_the_same_answers_plans_and_stats() {
    for policy in KINDS {
        for seed in 1..9 {
            let first = history(seed, 400, policy);
            let other = std::thread::spawn(move || history(seed, 400, policy));
            let other = other.join().unwrap();
            for (at, (one, two)) in first.iter().zip(&other).enumerate() {
                assert_eq!(one, two, "seed {seed}, {policy:?}, answer {at}");
            }
            assert_eq!(first.len(), other.len());
        }
    }
}

/// The histories are worth replaying: they evict, fail, park, come back and run out of room.
/// Law: INV-17
#[test]
fn the_replayed_histories_reach_what_there_is_to_reach() {
    let told: Vec<_> = (1..9)
        .flat_map(|seed| history(seed, 400, EvictionPolicy::Recency))
        .collect();
    for what in [
        "NoRoom", "Slow", "Whole", "parked", "clear", "Plan", "InUse",
    ] {
        let seen = told.iter().filter(|answer| answer.contains(what)).count();
        assert!(seen > 0, "{what} was never answered");
    }
    for none in [
        "resumed: 0",
        "failed: 0",
        "overdue: 0",
        "evicted: [0",
        "broken: 0",
    ] {
        let mut stats = told.iter().filter(|answer| answer.contains("Counters"));
        assert!(stats.any(|stats| !stats.contains(none)), "always {none}");
    }
}
