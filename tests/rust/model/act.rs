//! Carries an operation out on the real cache, then tells the naive yard.

use crate::names::REMOTE;
use crate::ops::Op;
use crate::world::World;
use crate::yard::DEVICE;
use blockyard_core::{
    Answer, Begun, Chain, End, Error, Extras, Filling, Hints, Lease, LeaseId, Outcome, Plan,
    Request, Sealing, Seals, TicketId, Tier,
};

pub(crate) fn pick<T>(list: &[T], at: u8) -> Option<usize> {
    (!list.is_empty()).then(|| at as usize % list.len())
}

impl World {
    /// Whether the core refused; `None` if there was nothing to act upon.
    pub(crate) fn act(&mut self, op: &Op) -> Option<bool> {
        match *op {
            Op::Begin(prompt, reserve, load, soon) => {
                let chain = self.chain(prompt);
                let load = if load == 255 {
                    u32::MAX
                } else {
                    u32::from(load)
                };
                return Some(self.begin(chain, u64::from(reserve), load, soon, None));
            }
            Op::Fill(more, keep) => return Some(self.fill(u64::from(more), keep)),
            Op::Append(lease, tokens, run) => {
                let lease = &self.leases[pick(&self.leases, lease)?];
                let appended = lease.append(&vec![u32::from(run); tokens as usize]);
                appended.expect("it makes its own keys");
                let chain = lease.chain();
                self.know(chain.keys());
            }
            Op::Grow(ref rows) => return self.grow(rows),
            Op::Trim(lease, by) => {
                let id = self.leases[pick(&self.leases, lease)?].id();
                let to = self.yard.leases[&id].tokens.saturating_sub(u64::from(by));
                let answer = self.cache.lock().trim(&[id], &[to]);
                self.yard.trim(id, to, &answer);
                return Some(answer.is_err());
            }
            Op::Seal(ref rows) => return self.seal(rows),
            Op::Step(ref rows, tables, safe) => return self.decode(rows, tables, safe),
            Op::Dedup(ref rows) => return self.dedup(rows),
            Op::Fork(lease, computed, reserve) => {
                let parent = &self.leases[pick(&self.leases, lease)?];
                let (computed, reserve) = (self.computed(parent, computed), u64::from(reserve));
                let mut state = self.cache.lock();
                let answer = state.fork(parent.id(), computed, reserve);
                self.yard
                    .fork(&state, parent.id(), computed, reserve, &answer);
                drop(state);
                let chain = parent.chain();
                return Some(self.admitted(answer.ok(), chain));
            }
            Op::Finish(ref leases, hints, in_flight) => {
                return self.finish(leases, hints, in_flight);
            }
            Op::Park(lease, computed, in_flight) => {
                return self.park(lease, computed, in_flight, None);
            }
            Op::Resume(parked, more, reserve) => {
                return self.resume(parked, u64::from(more), u64::from(reserve), None);
            }
            Op::Abandon(parked) => {
                let handle = self.parked.swap_remove(pick(&self.parked, parked)?);
                assert_eq!(self.cache.lock().abandon(handle.id()), Ok(()));
                self.yard.end_keep(handle.id());
                handle.spend();
            }
            Op::Demote(..) | Op::DemoteFrom(..) | Op::DemoteLease(..) | Op::Ahead(..) => {
                self.demote(op)?;
            }
            Op::WriteDown(to, most) => self.write_down(usize::from(to), usize::from(most)),
            Op::DemoteParked(parked, blocks) => {
                return self.demote_parked(parked, blocks, None);
            }
            Op::Rehome(parked, to, blocks) => {
                return self.demote_parked(parked, blocks, Some(usize::from(to)));
            }
            Op::Promote(prompt, blocks) => return Some(self.promote(prompt, blocks, DEVICE)),
            Op::Lift(prompt, blocks, to) => {
                return Some(self.promote(prompt, blocks, usize::from(to)));
            }
            Op::Land(ref rows) => self.land(rows),
            Op::LandAll => {
                let all: Vec<Outcome> = self.in_flight.iter().map(Plan::whole).collect();
                self.land_all(&all);
            }
            Op::DropLease(lease) => {
                let lease = self.leases.swap_remove(pick(&self.leases, lease)?);
                self.yard.end(lease.id(), Hints::default(), None);
            }
            Op::DropParked(parked) => {
                let parked = self.parked.swap_remove(pick(&self.parked, parked)?);
                self.yard.end_keep(parked.id());
            }
            _ => return self.act_on_all(op),
        }
        Some(false)
    }

    /// What names no lease and no parked sequence.
    fn act_on_all(&mut self, op: &Op) -> Option<bool> {
        match *op {
            Op::Spare => {
                let mut state = self.cache.lock();
                let evicted = state.make_spare();
                assert_eq!(self.yard.make_spare(&state), u64::from(evicted));
            }
            Op::Unknown(flight) => {
                let id = self.in_flight[pick(&self.in_flight, flight)?].flight;
                assert_eq!(
                    self.cache.lock().mark_unknown(id),
                    Ok(self.yard.mark_unknown(id))
                );
            }
            Op::Late(flight, deadline) => {
                let (id, before) = (
                    self.ended[pick(&self.ended, flight)?],
                    self.cache.lock().stats(),
                );
                if deadline {
                    assert_eq!(self.cache.lock().mark_unknown(id), Ok(false));
                } else {
                    assert_eq!(
                        self.cache.lock().commit(&[Outcome::failed(id, 0)], None),
                        Ok(0)
                    );
                }
                let mut stats = self.cache.lock().stats();
                stats.counters.late -= 1;
                assert_eq!(stats, before, "late, and something changed");
            }
            Op::Stale(lease, verb) => {
                let id = self.spent[pick(&self.spent, lease)?];
                let error = self.use_spent(id, verb);
                assert!(matches!(error, Some(Error::Spent { .. })), "{error:?}");
                return Some(true);
            }
            Op::Done(back) => {
                let step = self.step.saturating_sub(u64::from(back));
                assert_eq!(self.cache.lock().commit(&[], Some(step)), Ok(0));
                self.yard.done(step);
            }
            Op::Clear => {
                self.cache.lock().clear();
                self.yard.clear();
            }
            Op::Forget(prompt, first, force) => self.forget(prompt, first, force),
            Op::Adopt(prompt, blocks, twist) => return Some(self.adopt(prompt, blocks, twist)),
            Op::DropNames(prompt, first) => return Some(self.drop_names(prompt, first)),
            Op::Lose(kept) => {
                let below = (1..self.yard.tiers).filter(|&tier| kept >> tier & 1 == 1);
                let kept: Vec<usize> = below.collect();
                let tiers: Vec<Tier> = kept.iter().map(|&tier| Tier(tier)).collect();
                self.cache.lock().lose_but(&tiers);
                self.yard.lose_but(&kept);
            }
            Op::Resize(tier, slots) | Op::ResizeOn(tier, slots) => {
                let (tier, slots) = (usize::from(tier), u32::from(slots));
                let answer = self.cache.lock().resize(Tier(tier), slots);
                self.yard.resize(tier, slots, &answer);
                return Some(answer.is_err());
            }
            Op::Withdraw(tier, first, step) => {
                let tier = usize::from(tier);
                let last = self.yard.limits.get(tier).copied().unwrap_or(0);
                let slots = (u32::from(first)..last).step_by(usize::from(step));
                let slots: Vec<u32> = slots.collect();
                let answer = self.cache.lock().withdraw(Tier(tier), &slots);
                self.yard.withdraw(tier, &slots, &answer);
                return Some(answer.is_err());
            }
            Op::Spoil(prompt, at, backwards) => return Some(self.spoil(prompt, at, backwards)),
            Op::Restore(tier, ref rows, slip) => return Some(self.restore(tier, rows, slip)),
            _ => return self.act_on_ticket(op).or_else(|| self.act_on_hold(op)),
        }
        Some(false)
    }

    /// `true` without a lease: it was refused, or is to ask again.
    fn admitted(&mut self, begun: Option<Begun>, chain: Chain) -> bool {
        let Some(begun) = begun else { return true };
        let found: u32 = begun.hits.iter().sum();
        self.cache.emit_found(&chain, found as usize);
        self.leases.push(self.cache.handle(begun.lease, chain));
        self.in_flight.extend(begun.plans);
        false
    }

    pub(crate) fn begin(
        &mut self,
        chain: Chain,
        reserve: u64,
        load: u32,
        soon: bool,
        ticket: Option<TicketId>,
    ) -> bool {
        let filling = if soon { Filling::Soon } else { Filling::Stop };
        let (keys, tokens) = (chain.keys(), chain.tokens());
        let request = Request {
            keys,
            tokens,
            reserve,
            load,
            filling,
        };
        if ticket.is_none() {
            self.ask(&request);
        }
        let answer = self.admit(
            ticket,
            |state| state.begin(&request),
            |yard, state, answer| yard.begin(state, &request, answer),
        );
        self.compare_asked(&answer);
        let begun = match answer {
            Ok(Answer::Begun(begun)) => Some(begun),
            _ => None,
        };
        self.yard.used |= begun.is_some();
        self.admitted(begun, chain)
    }

    /// What may be evicted is what the model says: exactly so many slots can be had, and all that
    /// was takeable is gone then.
    fn fill(&mut self, more: u64, keep: bool) -> bool {
        let most = self.yard.spare(DEVICE) as u64 + more;
        let mut chain = self.cache.chain(Extras::default()).expect("no extras");
        self.fills += 1;
        let tokens = vec![1 + self.fills; (most * self.yard.block_size) as usize];
        chain.extend(&tokens).expect("tokens");
        let refused = self.begin(chain, 0, 0, false, None);
        assert_eq!(refused, more > 0 || most == 0);
        if !refused && !keep {
            let lease = self.leases.pop().expect("begun");
            self.end(&lease, Hints::default(), None);
        }
        refused
    }

    fn end(&mut self, lease: &Lease, hints: Hints, after: Option<u64>) {
        assert_eq!(
            self.cache.lock().finish(&[lease.id()], hints, after),
            Ok(())
        );
        self.yard.end(lease.id(), hints, after);
        self.spend(lease);
    }

    fn spend(&mut self, lease: &Lease) {
        lease.spend();
        self.spent.push(lease.id());
    }

    fn grow(&mut self, rows: &[(u8, u8)]) -> Option<bool> {
        let mut named = Vec::new();
        for &(lease, more) in rows {
            named.push((
                self.leases[pick(&self.leases, lease)?].id(),
                u64::from(more),
            ));
        }
        let (ids, mut unserved): (Vec<LeaseId>, _) =
            (named.iter().map(|row| row.0).collect(), vec![]);
        let mut state = self.cache.lock();
        let answer = state.grow(&ids, |row| named[row].1, &mut unserved);
        self.yard.grow(&state, &named, &answer, &unserved);
        Some(answer.is_err())
    }

    fn seal(&mut self, rows: &[(u8, u8)]) -> Option<bool> {
        let mut batch = Vec::new();
        for &(lease, computed) in rows {
            let lease = &self.leases[pick(&self.leases, lease)?];
            batch.push((lease, self.computed(lease, computed)));
        }
        let mut seals = Seals::default();
        let answer = batch
            .iter()
            .try_for_each(|&(lease, computed)| seals.add(lease, computed))
            .and_then(|()| seals.apply(&mut self.cache.lock()));
        if answer.is_ok() {
            seals.remember(|at| batch[at].0);
        }
        self.yard.seal_batch(&batch, &answer);
        Some(answer.is_err())
    }

    fn dedup(&mut self, rows: &[u8]) -> Option<bool> {
        let mut ids = Vec::new();
        for &lease in rows {
            ids.push(self.leases[pick(&self.leases, lease)?].id());
        }
        let answer = self.cache.lock().dedup(&ids);
        self.yard.dedup(&ids, &answer);
        Some(answer.is_err())
    }

    fn finish(&mut self, leases: &[u8], hints: Hints, in_flight: bool) -> Option<bool> {
        let after = self.after(in_flight);
        let (mut ids, spent) = (Vec::new(), self.spent.len());
        for &lease in leases {
            ids.push(self.leases[pick(&self.leases, lease)?].id());
        }
        let rejected = |world: &Self| world.cache.lock().stats().counters.rejected;
        let before = rejected(self);
        let answer = self.cache.lock().finish(&ids, hints, after);
        // One that stands in the batch twice is rejected the second time; the others are served.
        for id in ids {
            if let Some(at) = self.leases.iter().position(|lease| lease.id() == id) {
                self.yard.end(id, hints, after);
                let lease = self.leases.swap_remove(at);
                self.spend(&lease);
            }
        }
        let twice = leases.len() as u64 - (self.spent.len() - spent) as u64;
        assert_eq!(
            (answer.is_err(), rejected(self) - before),
            (twice > 0, twice)
        );
        Some(false)
    }

    pub(crate) fn park(
        &mut self,
        lease: u8,
        computed: u8,
        in_flight: bool,
        ticket: Option<TicketId>,
    ) -> Option<bool> {
        let (at, after) = (pick(&self.leases, lease)?, self.after(in_flight));
        let lease = &self.leases[at];
        let (id, chain) = (lease.id(), lease.chain());
        let computed = self.computed(lease, computed);
        let mut seals = Seals::default();
        seals.add(lease, computed).expect("it was appended");
        let row = seals.row(lease, computed);
        let answer = self.park_in(ticket, &row, after, |yard, answer| {
            yard.park(id, chain.keys(), computed, after, answer);
        });
        match answer {
            Ok(id) => {
                let lease = self.leases.swap_remove(at);
                self.parked.push(lease.into_parked(id));
                self.spend(&lease);
                Some(false)
            }
            // What could be sealed stays sealed.
            Err(Error::NoRoom { .. }) => Some(false),
            Err(_) => Some(true),
        }
    }

    pub(crate) fn resume(
        &mut self,
        parked: u8,
        more: u64,
        reserve: u64,
        ticket: Option<TicketId>,
    ) -> Option<bool> {
        let at = pick(&self.parked, parked)?;
        let (id, chain) = (self.parked[at].id(), self.parked[at].chain());
        let (keys, tokens) = (chain.keys(), chain.tokens() + more);
        let answer = self.admit(
            ticket,
            |state| state.resume(id, keys, tokens, reserve),
            |yard, state, answer| yard.resume(state, id, keys, tokens, reserve, answer),
        );
        let Ok(Answer::Begun(begun)) = answer else {
            return Some(true);
        };
        let handle = self.parked.swap_remove(at);
        self.leases.push(handle.into_lease(begun.lease));
        self.in_flight.extend(begun.plans);
        Some(false)
    }

    fn demote(&mut self, op: &Op) -> Option<()> {
        let mut state = self.cache.lock();
        let plan = match *op {
            Op::DemoteLease(lease, blocks) => {
                let id = self.leases[pick(&self.leases, lease)?].id();
                let plan = state.demote_lease(id, u32::from(blocks));
                let plan = plan.expect("it lives");
                let most = blocks as usize;
                self.yard.demote_lease(&state, id, most, plan.as_ref());
                plan
            }
            Op::Demote(blocks) | Op::DemoteFrom(0, blocks) => {
                let plan = state.demote(Tier::DEVICE, u32::from(blocks));
                let most = blocks as usize;
                self.yard.demote(&state, DEVICE, most, plan.as_ref());
                plan
            }
            Op::DemoteFrom(from, blocks) => {
                let (from, most) = (usize::from(from), blocks as usize);
                let plan = state.demote(Tier(from), u32::from(blocks));
                self.yard.demote(&state, from, most, plan.as_ref());
                plan
            }
            Op::Ahead(from, least, grows) => {
                let from = usize::from(from);
                let plan = (from < self.yard.tiers)
                    .then(|| state.copy_ahead(Tier(from), u32::from(least), grows));
                let plan = plan.flatten();
                if let Some(plan) = &plan {
                    self.yard.copy_ahead(&state, from, plan);
                }
                plan
            }
            _ => return None,
        };
        drop(state);
        self.in_flight.extend(plan);
        Some(())
    }

    /// The first of what a clean stop would write; to stores, what the tiers above have.
    fn write_down(&mut self, to: usize, most: usize) {
        let mut state = self.cache.lock();
        let mut keys = match state.unwritten(Tier(to)) {
            Ok(keys) => keys,
            Err(_) if to == REMOTE && state.written(Tier(to), &[]).is_ok() => {
                self.yard.paths_above(to)
            }
            Err(_) => return,
        };
        if to != REMOTE {
            self.yard.compare_unwritten(to, &keys);
        }
        keys.truncate(most);
        let instead = self.yard.keys_on(to);
        let (plans, _) = state
            .write_down(Tier(to), &keys, &instead)
            .expect("it has slots");
        self.yard.write_down(&state, to, &plans);
        drop(state);
        self.in_flight.extend(plans);
    }

    fn demote_parked(&mut self, parked: u8, blocks: u8, to: Option<usize>) -> Option<bool> {
        let id = self.parked[pick(&self.parked, parked)?].id();
        let (mut state, most) = (self.cache.lock(), blocks as usize);
        let answer = state.demote_parked(id, u32::from(blocks), to.map(Tier));
        if let Some(to) = to {
            self.yard.rehome(&state, id, to, most, &answer);
        } else {
            let plan = answer.as_ref().expect("it is parked").as_ref();
            self.yard.demote_parked(&state, id, most, plan);
        }
        drop(state);
        self.in_flight.extend(answer.iter().flatten().cloned());
        Some(answer.is_err())
    }

    fn land(&mut self, rows: &[(u8, u8, bool)]) {
        let mut outcomes = Vec::new();
        for &(flight, good, corrupt) in rows {
            let Some(at) = pick(&self.in_flight, flight) else {
                return;
            };
            let plan = &self.in_flight[at];
            let mut good = u32::from(good).min(plan.len() as u32);
            if plan.from == plan.to && plan.to > Tier::DEVICE {
                // Records that are not voided are to be voided again: the laws show that.
                good = plan.len() as u32;
            }
            outcomes.push(match corrupt {
                true => Outcome::corrupt(plan.flight, good),
                false if good as usize == plan.len() => plan.whole(),
                false => Outcome::failed(plan.flight, good),
            });
        }
        self.land_all(&outcomes);
    }

    pub(crate) fn land_all(&mut self, outcomes: &[Outcome]) {
        let answer = self.cache.lock().commit(outcomes, None);
        let mut ended = 0;
        // The order of the batch decides nothing: flights end as they were launched.
        let launched = |id| self.in_flight.iter().position(|plan| plan.flight == id);
        let mut sorted = outcomes.to_vec();
        sorted.sort_by_key(|one| (launched(one.flight), one.good, one.end != End::Corrupt));
        for Outcome {
            flight: id,
            good,
            end,
        } in sorted
        {
            let corrupt = end == End::Corrupt;
            // One that stands in the batch twice is late the second time.
            if self.yard.flies(id) {
                self.yard.land(id, good as usize, corrupt);
                self.ended.push(id);
                ended += 1;
            }
        }
        assert_eq!(answer, Ok(ended));
        self.in_flight.retain(|plan| self.yard.flies(plan.flight));
    }

    fn use_spent(&self, id: LeaseId, verb: u8) -> Option<Error> {
        let mut state = self.cache.lock();
        let row = Sealing {
            lease: id,
            computed: 0,
            first: 0,
            keys: &[],
            spoken: None,
        };
        match verb {
            0 => state.finish(&[id], Hints::default(), None).err(),
            1 => state.grow(&[id], |_| 1, &mut Vec::new()).err(),
            2 => state.trim(&[id], &[1]).err(),
            3 => state.seal(&[row]).err(),
            4 => state.park(&row, None).err(),
            _ => state.fork(id, 0, 0).err(),
        }
    }
}
