//! A begin whose prefix lies on the device and below it: on one lower tier, or on two, by a flight for
//! each. The same blocks are loaded in both.

use crate::work::{Rig, Row};
use blockyard_core::{Key, LeaseId, Outcome, Retention, Tier};

/// Blocks of the prefix on the device, and as many below it.
const HALF: usize = 96;

pub(crate) struct Below {
    rig: Rig,
    keys: Vec<Key>,
    begun: Option<LeaseId>,
}

impl Below {
    /// A device full of idle blocks; `disk`: the last third of what is below lies on a third tier.
    pub(crate) fn new(blocks: u32, disk: bool) -> Self {
        let mut rig = Rig::with_disk(blocks, blocks, if disk { blocks } else { 0 });
        let keys = rig.source.keys(2 * HALF);
        let host = if disk { 3 * HALF / 2 } else { 2 * HALF };
        if disk {
            let slots: Vec<u32> = (0..(keys.len() - host) as u32).collect();
            let parents = &keys[host - 1..keys.len() - 1];
            let mut state = rig.cache.lock();
            let restored = state.restore(Tier::DISK, &slots, &keys[host..], parents);
            restored.expect("nothing has begun");
        }
        let lease = rig.begin(&keys[..host], 0);
        rig.seal(lease, 0, &keys[..host]);
        let plan = rig.cache.lock().demote_lease(lease, u32::MAX);
        rig.land(&[plan.expect("live").expect("none is below")]);
        let mut state = rig.cache.lock();
        let ended = state.finish(&[lease], Retention::SessionEnded, None);
        ended.expect("live");
        drop(state);
        for _ in 0..blocks as usize / HALF + 2 {
            rig.visit(HALF);
        }
        // The first half comes up, and stays as the youngest.
        let plans = rig.cache.lock().promote(&keys, HALF as u32, Tier::DEVICE);
        rig.land(&plans.expect("room"));
        let hits = rig.cache.lock().probe(&keys).hits;
        let disk = if disk { HALF as u32 / 2 } else { 0 };
        assert_eq!(hits[..2], [HALF as u32, HALF as u32 - disk], "{hits:?}");
        let (rig, begun) = (rig, None);
        Self { rig, keys, begun }
    }
}

impl Row for Below {
    fn prepare(&mut self) {}

    fn run(&mut self) -> u64 {
        self.begun = Some(self.rig.begin(&self.keys, 0));
        1
    }

    fn restore(&mut self) {
        let mut state = self.rig.cache.lock();
        let plans = state.dispatch();
        let failed = |plan: &blockyard_core::Plan| Outcome::failed(plan.flight, 0);
        let outcomes: Vec<Outcome> = plans.iter().map(failed).collect();
        state.commit(&outcomes, None).expect("in flight");
        drop(state);
        if let Some(lease) = self.begun.take() {
            self.rig.finish(lease);
        }
    }
}
