//! What an engine does, one thing after another, as chance has it.

use super::{Block, Flying, Request, SIZE, World, bytes};
use crate::naive::{End, Why};
use blockyard_core::{
    Chain, Extras, Fetch, FlightId, Hints, NextUse, Outcome, ParkedId, Plan, Priority, Retention,
    Stop, Tier, Wanted,
};

impl World {
    fn add(&mut self) {
        if self.requests.len() == 8 {
            return;
        }
        let (family, prompt) = (self.chance.below(3) as u32, 1 + self.chance.below(9));
        let own = self.chance.below(5);
        let mut tokens: Vec<u32> = (0..prompt as u32).map(|at| 100 * family + at).collect();
        tokens.extend((0..own as u32).map(|at| 1_000 * (self.named + 1) + at));
        let most = tokens.len() + 1 + self.chance.below(6);
        self.named += 1;
        let request = Request {
            tokens,
            most,
            ..Request::default()
        };
        self.requests.insert(self.named, request);
    }

    /// The engine gives a waiting request its blocks, and asks what is below.
    #[expect(clippy::too_many_lines, reason = "what an engine does in one call")]
    fn admit(&mut self) {
        let Some(name) = self.pick(|request| !request.runs && request.loads.is_empty()) else {
            return;
        };
        let request = &self.requests[&name];
        let blocks = request.tokens.len().div_ceil(SIZE);
        if self.free.len() < blocks {
            return;
        }
        let (kept, tokens) = (request.kept, request.tokens.clone());
        let chain = self.chain(&tokens);
        let ids: Vec<u32> = self.free[..blocks].to_vec();
        let mut computed = 0;
        let fetched = if let Some(kept) = kept {
            let view = self.cache.lock().view_parked(kept).expect("kept");
            computed = view.computed as usize;
            let (what, blocks) = (Wanted::Kept(kept), view.blocks as usize);
            let fetched = self.cache.lock().fetch(what, &ids[..blocks], 0);
            let naive = self.naive.as_ref();
            let wanted = naive.map(|naive| naive.found_kept(kept, blocks));
            self.as_wanted(fetched.expect("its own"), wanted, &ids[..blocks])
        } else {
            // The last token is computed anew, so that there are logits.
            let most = (tokens.len() - 1) / SIZE;
            let keys = &chain.keys()[..most];
            let before = self.cache.lock().digest();
            let found = self.cache.lock().find(keys, 0).expect("an engine's");
            assert_eq!(self.cache.lock().digest(), before, "find is pure");
            let blocks = found.hits.iter().sum::<u32>() as usize;
            if let (Stop::Filling(_), true) = (found.stop, self.chance.one_in(2)) {
                self.seen.soon += 1;
                return;
            }
            let what = Wanted::Keys(keys);
            let wanted = self.naive.as_ref().map(|naive| naive.found(keys));
            if let Some((tiers, end)) = &wanted {
                let count = |own: usize| tiers.iter().filter(|&&tier| tier == own).count() as u32;
                assert_eq!(found.hits, [0, count(0), count(1), 0]);
                let stop = match end {
                    End::Whole => Stop::Whole,
                    End::Missing => Stop::Missing,
                    End::Filling(flight) => Stop::Filling(*flight),
                    End::Scattered => Stop::Scattered,
                };
                assert_eq!(found.stop, stop);
            }
            let fetched = self.cache.lock().fetch(what, &ids[..blocks], 0);
            self.as_wanted(fetched.expect("found"), wanted, &ids[..blocks])
        };
        let plans = match fetched {
            Fetch::Soon(_) => {
                self.seen.soon += 1;
                return;
            }
            Fetch::Plans(plans) => plans,
        };
        self.free.drain(..blocks);
        let request = self.requests.get_mut(&name).expect("it waits");
        (request.ids, request.computed) = (ids, computed);
        request.good.clear();
        let mut first = 0;
        for plan in &plans {
            request.loads.push((plan.flight, first));
            first += plan.len();
        }
        self.seen.fetched += u32::from(first > 0);
        self.loaded(name);
    }

    /// A fetch brings up what the lists have, from the tiers where they have it.
    fn as_wanted(
        &mut self,
        fetched: Fetch,
        wanted: Option<(Vec<usize>, End)>,
        ids: &[u32],
    ) -> Fetch {
        let Some((tiers, end)) = wanted else {
            return fetched;
        };
        match &fetched {
            Fetch::Soon(flight) => {
                let fence = self.cache.lock().must_finish(ids).expect("its own");
                assert!(
                    fence == Some(*flight) || (tiers.is_empty() && end == End::Filling(*flight))
                );
            }
            Fetch::Plans(plans) => {
                let mut told = Vec::new();
                for plan in plans {
                    told.extend(vec![plan.from.0 - 1; plan.len()]);
                    self.naive
                        .as_mut()
                        .expect("it is asked")
                        .launched(plan, Why::Fetch);
                }
                assert_eq!(told, tiers[..told.len().max(ids.len().min(tiers.len()))]);
            }
        }
        fetched
    }

    /// All its loads have ended: it runs from its good prefix.
    fn loaded(&mut self, name: u32) {
        let request = self.requests.get_mut(&name).expect("it loads");
        if !request.loads.is_empty() {
            return;
        }
        let mut blocks = 0;
        while let Some(&good) = request.good.get(&blocks).filter(|&&good| good > 0) {
            blocks += good;
        }
        let kept = request.kept.take();
        let tokens = match kept {
            Some(_) => request.computed.min(blocks * SIZE),
            None => blocks * SIZE,
        };
        let whole = kept.is_some() && tokens == request.computed;
        request.computed = tokens;
        request.runs = true;
        self.seen.resumed_whole += u32::from(whole && tokens > 0);
        if let Some(kept) = kept {
            self.let_go(kept);
        }
        self.check(name);
    }

    /// One more position of a running request is computed, if nothing forbids to write its block.
    fn compute(&mut self) {
        let Some(name) = self.pick(|request| request.runs) else {
            return;
        };
        let request = &self.requests[&name];
        let at = request.computed;
        if at == request.tokens.len() {
            return self.finish(name);
        }
        let id = request.ids[at / SIZE];
        if self
            .cache
            .lock()
            .must_finish(&[id])
            .expect("its own")
            .is_some()
        {
            self.seen.fenced += 1;
            return;
        }
        let request = self.requests.get_mut(&name).expect("it runs");
        request.computed += 1;
        let content = bytes(&request.tokens[..=at]);
        if request.computed == request.tokens.len() && request.tokens.len() < request.most {
            let next = bytes(&request.tokens) as u32 % 50;
            request.tokens.push(next);
            if request.tokens.len().div_ceil(SIZE) > request.ids.len() {
                match self.free.pop() {
                    Some(id) => request.ids.push(id),
                    // No room to grow: it waits for that, or is preempted.
                    None => _ = request.tokens.pop(),
                }
            }
        }
        self.engine[id as usize] = Block {
            bytes: content,
            ..Block::default()
        };
        self.check(name);
    }

    fn finish(&mut self, name: u32) {
        let request = self.requests.remove(&name).expect("it runs");
        let full = request.computed / SIZE;
        let chain = self.chain(&request.tokens[..request.computed]);
        let first = if full > 0 {
            self.chance.below(full) * self.chance.below(2)
        } else {
            0
        };
        let ids = &request.ids[first..full];
        let wanted = self
            .naive
            .as_mut()
            .map(|naive| naive.offload(chain.keys(), first, ids.len()));
        let offloaded = self.cache.lock().offload(chain.keys(), ids, first as u32);
        let plan = offloaded.expect("its own");
        self.describe(&chain, first, &request.tokens[first * SIZE..full * SIZE]);
        if let (Some(naive), Some(wanted)) = (self.naive.as_mut(), wanted) {
            let told = plan.as_ref().map_or(&[][..], |plan| &plan.sources);
            let copied: Vec<u32> = wanted.iter().map(|&at| ids[at]).collect();
            assert_eq!(told, copied, "what an offload copies");
            if let Some(plan) = &plan {
                naive.offloaded(chain.keys(), (first, ids.len()), &wanted, plan);
            }
        }
        // The engine may give them out again at once.
        self.free.extend(&request.ids);
    }

    fn preempt(&mut self) {
        let Some(name) = self.pick(|request| request.runs && request.computed > 0) else {
            return;
        };
        let request = self.requests.get_mut(&name).expect("it runs");
        let ids = std::mem::take(&mut request.ids);
        let (tokens, computed) = (request.tokens.clone(), request.computed);
        request.runs = false;
        let chain = self.chain(&tokens[..computed]);
        let used = computed.div_ceil(SIZE);
        let wanted = self
            .naive
            .as_ref()
            .map(|naive| naive.home(chain.keys(), used));
        let answer = self
            .cache
            .lock()
            .save_request(chain.keys(), &ids[..used], computed as u64);
        self.describe(&chain, 0, &tokens[..computed / SIZE * SIZE]);
        if let Some(wanted) = wanted {
            assert_eq!(answer.is_ok(), wanted.is_some(), "{answer:?}");
        }
        match answer {
            Ok((kept, plan)) => {
                if let Some(naive) = self.naive.as_mut() {
                    let places = naive.kept(kept, chain.keys(), computed, plan.as_ref());
                    let told = plan.as_ref().map_or(&[][..], |plan| &plan.sources);
                    let copied: Vec<u32> = places.iter().map(|&at| ids[at]).collect();
                    assert_eq!(told, copied, "what is copied to be kept");
                    if let Some((plan, home)) = plan.as_ref().zip(wanted.flatten()) {
                        assert_eq!(plan.to.0 - 1, home);
                    }
                }
                self.requests.get_mut(&name).expect("it waits").kept = Some(kept);
                self.seen.kept += 1;
            }
            Err(_) => self.seen.refused += 1,
        }
        self.free.extend(ids);
    }

    pub(super) fn abort(&mut self) {
        if let Some(name) = self.pick(|request| request.loads.is_empty()) {
            let request = self.requests.remove(&name).expect("picked");
            if let Some(kept) = request.kept {
                self.let_go(kept);
            }
            self.free.extend(request.ids);
        }
    }

    fn let_go(&mut self, kept: ParkedId) {
        self.cache.lock().abandon(kept).expect("kept");
        if let Some(naive) = self.naive.as_mut() {
            naive.abandon(kept);
        }
    }

    /// One flight ends, in any order, well or not; or its deadline passes.
    pub(super) fn land(&mut self) {
        if self.air.is_empty() {
            return;
        }
        let at = self.chance.below(self.air.len());
        if !self.air[at].unknown && self.chance.one_in(8) {
            self.air[at].unknown = true;
            self.seen.unknown += 1;
            let flight = self.air[at].plan.flight;
            assert!(self.cache.lock().mark_unknown(flight).expect("known"));
            if let Some(naive) = self.naive.as_mut() {
                naive.unknown(flight);
            }
            return self.came(flight, 0);
        }
        let Flying {
            plan,
            early,
            unknown,
        } = self.air.swap_remove(at);
        if plan.from == Tier::REMOTE && plan.from == plan.to {
            return self.deleted(&plan);
        }
        let read = early.unwrap_or_else(|| self.read(&plan));
        let mut good = plan.len();
        if self.chance.one_in(6) {
            good = self.chance.below(plan.len() + 1);
        }
        if let Some(lost) = read[..good].iter().position(Option::is_none) {
            self.seen.lost += 1;
            good = lost;
        }
        let flipped =
            |block: &Option<Block>| plan.from.0 > 0 && block.is_some_and(|one| one.flipped);
        let bad = read[..good].iter().position(flipped);
        good = bad.unwrap_or(good);
        for (at, block) in read.iter().enumerate() {
            // What is behind the good ones may be written, too.
            self.write(&plan, at, block.unwrap_or_default());
        }
        if plan.from == Tier::REMOTE && !unknown {
            self.seen.loaded += good as u32;
        }
        let outcome = match bad {
            Some(bad) => {
                let slot = plan.sources[bad];
                // Into a store another may put it again.
                let stays = plan.from != Tier::REMOTE && !unknown;
                if stays && self.block_of(plan.from, slot).flipped {
                    self.block(plan.from, slot).told = true;
                }
                self.seen.corrupt += 1;
                Outcome::corrupt(plan.flight, good as u32)
            }
            None => Outcome::failed(plan.flight, good as u32),
        };
        self.cache.lock().commit(&[outcome], None).expect("known");
        if let Some(naive) = self.naive.as_mut() {
            naive.landed(&plan, good, bad.is_some());
        }
        if !unknown {
            self.came(plan.flight, good);
        }
    }

    /// A load that some request waits for has ended with so many good blocks.
    fn came(&mut self, flight: FlightId, good: usize) {
        let waits = self.requests.iter_mut().find_map(|(&name, request)| {
            let at = request.loads.iter().position(|&(own, _)| own == flight)?;
            let (_, first) = request.loads.remove(at);
            request.good.insert(first, good);
            Some(name)
        });
        if let Some(name) = waits {
            let request = &self.requests[&name];
            // Short of the whole, what follows does not count.
            if request.loads.is_empty() {
                self.loaded(name);
            }
        }
    }

    fn below(&mut self, plan: Option<Plan>, kept: Option<ParkedId>) {
        if let (Some(naive), Some(plan)) = (self.naive.as_mut(), plan) {
            naive.launched(&plan, Why::Below(kept));
        }
    }

    /// What an engine says where a request ends.
    fn hints(&mut self) -> Hints {
        let retentions = [
            Retention::SessionEnded,
            Retention::Ordinary,
            Retention::Retain,
        ];
        let millis = self.chance.below(3_000_000) as u64;
        let (priority, ttl) = (self.chance.below(101) as u64, self.chance.below(60) as u32);
        Hints {
            retention: retentions[self.chance.below(3)],
            next_use: self.chance.one_in(2).then(|| NextUse::in_millis(millis)),
            priority: self
                .chance
                .one_in(2)
                .then(|| Priority::new(priority).expect("valid")),
            ttl: self.chance.one_in(2).then_some(ttl),
        }
    }

    fn elsewhere(&mut self) {
        let blocks = 1 + self.chance.below(6) as u32;
        if self.chance.one_in(3) {
            self.share();
        }
        match self.chance.below(9) {
            0..3 => {
                let from = [Tier::HOST, Tier::DISK]
                    [self.chance.below(2) * usize::from(self.naive.is_none())];
                let plan = self.cache.lock().demote(from, blocks);
                self.below(plan, None);
            }
            3 => {
                if let Some(name) = self.pick(|request| request.kept.is_some()) {
                    let kept = self.requests[&name].kept.expect("picked");
                    let moved = self
                        .cache
                        .lock()
                        .demote_parked(kept, blocks, Some(Tier::DISK));
                    if let (Some(naive), Ok(plan)) = (self.naive.as_mut(), &moved) {
                        naive.moved(kept, blocks as usize, plan.as_ref());
                    }
                    self.below(moved.ok().flatten(), Some(kept));
                }
            }
            4 => {
                if let Some(name) = self.pick(|_| true) {
                    let chain = self.chain(&self.requests[&name].tokens);
                    let plans = self.cache.lock().promote(chain.keys(), blocks, Tier::HOST);
                    for plan in plans.into_iter().flatten() {
                        self.below(Some(plan), None);
                    }
                }
            }
            5 | 6 if self.naive.is_some() => {}
            5 => {
                let tier = Tier(1 + self.chance.below(2));
                let slots = self.chance.below(40) as u32;
                let mut cache = self.cache.lock();
                if self.chance.one_in(4) {
                    _ = cache.withdraw(tier, &[slots, slots + 1]);
                } else {
                    _ = cache.resize(tier, slots);
                }
            }
            6 if self.chance.one_in(12) => self.cache.lock().clear(),
            7 if self.chance.one_in(2) => {
                let (tier, slot) = (self.chance.below(2), self.chance.below(40));
                self.below[tier][slot].flipped = true;
            }
            _ => {
                if let Some(name) = self.pick(|_| true) {
                    let chain = self.chain(&self.requests[&name].tokens);
                    let ended = self.chance.one_in(2).then(|| self.hints());
                    self.cache
                        .lock()
                        .used(&[chain.keys()], ended)
                        .expect("an engine's");
                }
            }
        }
    }

    pub(crate) fn act(&mut self) {
        match self.chance.below(20) {
            0..2 => self.add(),
            2..5 => self.admit(),
            5..11 => self.compute(),
            11..13 => self.preempt(),
            13..17 => self.land(),
            17 if self.chance.one_in(4) => self.abort(),
            _ => self.elsewhere(),
        }
        self.dispatch();
        self.sound();
    }

    /// The keys are the engine's, so that the tokens of what it offloads come beside them.
    pub(super) fn describe(&self, chain: &Chain, first: usize, tokens: &[u32]) {
        let extras = Extras::default();
        let described = self
            .cache
            .describe(chain.keys(), first, tokens, &[], extras);
        described.expect("whole blocks");
    }
}
