//! Tickets in both: blocks promised to a request that does not run yet, or to a sequence about to
//! be parked.

use crate::act::pick;
use crate::ops::Op;
use crate::world::World;
use crate::yard::{DEVICE, Yard};
use blockyard_core::{Answer, Error, ParkedId, Result, Sealing, State, TicketId, Tier};

impl Yard {
    fn promise(&mut self, blocks: u64, tier: usize, answer: &Result<TicketId>) {
        if blocks == 0 {
            let none = matches!(answer, Err(Error::Argument { name: "blocks", .. }));
            return assert!(none, "{answer:?}");
        }
        if tier >= self.tiers.min(Tier::REMOTE.0) {
            let none = matches!(answer, Err(Error::Argument { name: "tier", .. }));
            return assert!(none, "{answer:?}");
        }
        if blocks > self.size(tier) {
            let (tier, need, capacity) = (Tier(tier), blocks, self.size(tier));
            let error = Error::TooLarge {
                tier,
                need,
                capacity,
            };
            return assert_eq!(answer, &Err(error));
        }
        if blocks > self.spare(tier) as u64 {
            let error = self.no_room(tier, blocks, self.takeable(tier));
            return assert_eq!(answer, &Err(error));
        }
        let id = *answer.as_ref().expect("there is room");
        assert_eq!(self.tickets.insert(id, (tier, blocks)), None);
    }
}

impl Yard {
    /// Sets as much headroom as there is room for, if anything runs.
    pub(crate) fn set_headroom(&mut self, blocks: u64) -> u64 {
        self.headroom = 0;
        self.headroom = blocks.min(self.spare(DEVICE) as u64);
        self.ease_headroom();
        self.headroom
    }

    /// With nothing running there is no headroom. (R1-5)
    pub(crate) fn ease_headroom(&mut self) {
        if self.leases.values().all(|seq| seq.ended.is_some()) {
            self.headroom = 0;
        }
    }
}

/// What is run with a ticket of another tier.
fn never<T>(_: &mut State) -> Result<T> {
    panic!("the ticket is for another tier");
}

impl World {
    pub(crate) fn act_on_ticket(&mut self, op: &Op) -> Option<bool> {
        match *op {
            Op::Promise(blocks) => Some(self.promise(u64::from(blocks), DEVICE)),
            Op::PromiseBelow(blocks) => Some(self.promise(u64::from(blocks), 1)),
            Op::PromiseOn(tier, blocks) => Some(self.promise(u64::from(blocks), usize::from(tier))),
            Op::Release(ticket) => {
                let at = pick(&self.tickets, ticket)?;
                let handle = self.tickets.swap_remove(at);
                assert_eq!(self.cache.lock().release_ticket(handle.id()), Ok(()));
                let again = self.cache.lock().release_ticket(handle.id());
                assert!(matches!(again, Err(Error::Spent { .. })), "{again:?}");
                self.yard.tickets.remove(&handle.id());
                handle.spend();
                Some(false)
            }
            Op::DropTicket(ticket) => {
                let at = pick(&self.tickets, ticket)?;
                let handle = self.tickets.swap_remove(at);
                self.yard.tickets.remove(&handle.id());
                Some(false)
            }
            Op::Redeem(ticket, prompt, reserve, soon) => {
                let id = self.tickets[pick(&self.tickets, ticket)?].id();
                let chain = self.chain(prompt);
                Some(self.begin(chain, u64::from(reserve), u32::MAX, soon, Some(id)))
            }
            Op::RedeemParked(ticket, parked, reserve) => {
                let id = self.tickets[pick(&self.tickets, ticket)?].id();
                self.resume(parked, 0, u64::from(reserve), Some(id))
            }
            Op::RedeemParking(ticket, lease, computed, in_flight) => {
                let id = self.tickets[pick(&self.tickets, ticket)?].id();
                self.park(lease, computed, in_flight, Some(id))
            }
            Op::Headroom(blocks) => {
                let told = self.cache.lock().set_headroom(u64::from(blocks));
                assert_eq!(u64::from(told), self.yard.set_headroom(u64::from(blocks)));
                Some(false)
            }
            _ => None,
        }
    }

    fn promise(&mut self, blocks: u64, tier: usize) -> bool {
        let answer = self.cache.lock().promise(blocks, Tier(tier));
        self.yard.promise(blocks, tier, &answer);
        let id = answer.ok();
        self.tickets
            .extend(id.map(|id| self.cache.handle_ticket(id)));
        id.is_none()
    }

    /// Has the core park a sequence, with a ticket if there is one, and tells the model in `then`.
    /// Meanwhile the model does not count the ticket as promised.
    pub(crate) fn park_in(
        &mut self,
        ticket: Option<TicketId>,
        row: &Sealing<'_>,
        after: Option<u64>,
        then: impl FnOnce(&mut Yard, &Result<ParkedId>),
    ) -> Result<ParkedId> {
        let mut state = self.cache.lock();
        let Some(id) = ticket else {
            let answer = state.park(row, after);
            drop(state);
            then(&mut self.yard, &answer);
            return answer;
        };
        let answer = state.redeem_parking(id, row, after);
        drop(state);
        let (tier, blocks) = self.yard.tickets[&id];
        if tier == DEVICE {
            assert!(matches!(answer, Err(Error::State { .. })), "{answer:?}");
            return answer;
        }
        let inside = blocks >= self.yard.blocks_of(row.computed) as u64;
        let refused = matches!(answer, Err(Error::NoRoom { .. }));
        assert!(!(inside && refused), "{answer:?} inside of {blocks} blocks");
        self.yard.tickets.remove(&id);
        then(&mut self.yard, &answer);
        self.spend_or_keep(id, (tier, blocks), answer.is_ok());
        answer
    }

    /// A ticket is consumed on success and stays valid otherwise.
    fn spend_or_keep(&mut self, id: TicketId, kept: (usize, u64), served: bool) {
        if !served {
            self.yard.tickets.insert(id, kept);
            return assert!(!self.yard.unbacked(kept.0), "it is backed as before");
        }
        let spent = self.cache.lock().release_ticket(id);
        assert!(matches!(spent, Err(Error::Spent { .. })), "{spent:?}");
        self.tickets.retain(|ticket| {
            let other = ticket.id() != id;
            if !other {
                ticket.spend();
            }
            other
        });
    }

    /// Has the core admit a request, with a ticket if there is one. While the model is asked, in
    /// `then`, it does not count the ticket as promised.
    pub(crate) fn admit(
        &mut self,
        ticket: Option<TicketId>,
        act: impl FnOnce(&mut State) -> Result<Answer>,
        then: impl FnOnce(&mut Yard, &State, &Result<Answer>),
    ) -> Result<Answer> {
        let mut state = self.cache.lock();
        let Some(id) = ticket else {
            let answer = act(&mut state);
            then(&mut self.yard, &state, &answer);
            return answer;
        };
        let kept = self.yard.tickets[&id];
        if kept.0 != DEVICE {
            let answer = state.redeem(id, never);
            assert!(matches!(answer, Err(Error::State { .. })), "{answer:?}");
            return answer;
        }
        self.yard.tickets.remove(&id);
        let answer = state.redeem(id, act);
        then(&mut self.yard, &state, &answer);
        drop(state);
        self.spend_or_keep(id, kept, matches!(answer, Ok(Answer::Begun(_))));
        answer
    }
}
