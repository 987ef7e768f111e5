//! The verbs of a cache whose device is the engine's, beside a host that is full.

use crate::work::{BLOCK, Row, Source};
use blockyard_core::{Cache, Config, Fetch, Key, KeyHash, Namespace, Plan, Presence, Wanted};
use std::hint::black_box;

/// Blocks of each path.
const LONG: usize = 128;
/// Paths that are measured: their blocks are the engine's ids, too.
const PATHS: usize = 64;
/// Rows that decode, how many of them a step touches, and how many need an id.
const ROWS: usize = 256;
const TOUCHED: usize = 4;
const GROW: usize = ROWS / BLOCK as usize;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Find,
    /// The same of a cache whose rows are sets.
    Which,
    Fetch,
    Offload,
    /// The outcomes of as many fetches as there are paths, in one call.
    Land,
    /// A step in which nothing is offloaded.
    Step,
}

pub(crate) struct Engine {
    cache: Cache,
    source: Source,
    verb: Verb,
    paths: Vec<Vec<Key>>,
    new: Vec<Vec<Key>>,
    ids: Vec<Vec<u32>>,
    plans: Vec<Plan>,
    step: usize,
}

impl Engine {
    pub(crate) fn new(blocks: u32, verb: Verb) -> Self {
        let config = Config {
            slots: vec![(PATHS * LONG) as u32, blocks],
            engine: true,
            linked: !matches!(verb, Verb::Which),
            block_size: BLOCK as u32,
            ..Config::default()
        };
        let cache = Cache::new(config, KeyHash::Sha256, &Namespace::default()).expect("valid");
        let ids = |path| {
            (path * LONG..(path + 1) * LONG)
                .map(|id| id as u32)
                .collect()
        };
        let mut engine = Self {
            cache,
            source: Source::default(),
            verb,
            paths: Vec::new(),
            new: Vec::new(),
            ids: (0..PATHS).map(ids).collect(),
            plans: Vec::new(),
            step: 0,
        };
        // More than the host has, so that it is full.
        for _ in 0..=blocks as usize / LONG / PATHS {
            engine.new_paths();
            engine.offload();
            engine.land();
            engine.paths.clone_from(&engine.new);
        }
        engine
    }

    fn new_paths(&mut self) {
        self.new = (0..PATHS).map(|_| self.source.keys(LONG)).collect();
    }

    fn offload(&mut self) {
        for (keys, ids) in self.new.iter().zip(&self.ids) {
            let plan = self
                .cache
                .lock()
                .offload(keys, ids, 0)
                .expect("the engine's");
            self.plans.extend(plan);
        }
    }

    fn fetch(&mut self) {
        for (keys, ids) in self.paths.iter().zip(&self.ids) {
            let fetched = self.cache.lock().fetch(Wanted::Keys(keys), ids, 0);
            match fetched.expect("the engine's") {
                Fetch::Plans(plans) => self.plans.extend(plans),
                Fetch::Soon(_) => unreachable!("nothing is in the air"),
            }
        }
    }

    fn land(&mut self) {
        let outcomes: Vec<_> = self.plans.drain(..).map(|plan| plan.whole()).collect();
        let mut state = self.cache.lock();
        state.commit(&outcomes, None).expect("in flight");
    }
}

impl Row for Engine {
    fn prepare(&mut self) {
        match self.verb {
            Verb::Offload => self.new_paths(),
            Verb::Land => self.fetch(),
            _ => {}
        }
    }

    fn run(&mut self) -> u64 {
        match self.verb {
            Verb::Find => {
                for keys in &self.paths {
                    let found = self.cache.lock().find(keys, 0).expect("the engine's");
                    assert_eq!(found.hits[1], LONG as u32);
                }
                PATHS as u64
            }
            Verb::Which => {
                for keys in &self.paths {
                    let found = self.cache.lock().which(keys).expect("the engine's");
                    assert_eq!(found[LONG - 1], Presence::Ready);
                }
                PATHS as u64
            }
            Verb::Fetch => {
                self.fetch();
                PATHS as u64
            }
            Verb::Offload => {
                self.offload();
                PATHS as u64
            }
            Verb::Land => {
                self.land();
                1
            }
            Verb::Step => {
                let first = self.step * TOUCHED % PATHS;
                let rows: Vec<&[Key]> = self.paths[first..first + TOUCHED]
                    .iter()
                    .map(Vec::as_slice)
                    .collect();
                let ids = &self.ids[self.step % PATHS][..GROW];
                self.step += 1;
                self.cache.lock().used(&rows, None).expect("the engine's");
                let fence = self.cache.lock().must_finish(ids);
                black_box(fence.expect("the engine's"));
                1
            }
        }
    }

    fn restore(&mut self) {
        self.land();
        if matches!(self.verb, Verb::Offload) {
            self.paths.clone_from(&self.new);
        }
    }
}
