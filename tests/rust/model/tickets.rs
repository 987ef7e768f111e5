//! Tickets in both: what is promised to who does not run yet.

use crate::act::pick;
use crate::ops::Op;
use crate::world::World;
use crate::yard::{DEVICE, Yard};
use blockyard_core::{Answer, Error, Result, State, TicketId};

impl Yard {
    fn promise(&mut self, blocks: u64, answer: &Result<TicketId>) {
        if blocks == 0 {
            let none = matches!(answer, Err(Error::Argument { name: "blocks", .. }));
            return assert!(none, "{answer:?}");
        }
        if let Err(error) = self.need(blocks * self.block_size, 0) {
            return assert_eq!(answer, &Err(error));
        }
        if let Err(error) = self.afford(&[], blocks as usize) {
            return assert_eq!(answer, &Err(error));
        }
        let id = *answer.as_ref().expect("there is room");
        assert_eq!(self.tickets.insert(id, blocks), None);
    }
}

impl World {
    pub(crate) fn act_on_ticket(&mut self, op: &Op) -> Option<bool> {
        match *op {
            Op::Promise(blocks) => {
                let answer = self.cache.lock().promise(u64::from(blocks));
                self.yard.promise(u64::from(blocks), &answer);
                let id = answer.ok();
                self.tickets
                    .extend(id.map(|id| self.cache.handle_ticket(id)));
                Some(id.is_none())
            }
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
            _ => None,
        }
    }

    /// Lets the core admit somebody, by a ticket if he has one; while the model is asked, in
    /// `then`, it is not promised to others.
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
        let blocks = self.yard.tickets.remove(&id).expect("it is open");
        let answer = state.redeem(id, act);
        then(&mut self.yard, &state, &answer);
        drop(state);
        if let Ok(Answer::Begun(_)) = answer {
            let spent = self.cache.lock().release_ticket(id);
            assert!(matches!(spent, Err(Error::Spent { .. })), "{spent:?}");
            self.tickets.retain(|ticket| {
                let other = ticket.id() != id;
                if !other {
                    ticket.spend();
                }
                other
            });
        } else {
            self.yard.tickets.insert(id, blocks);
            assert!(!self.yard.unbacked(DEVICE), "it is backed as before");
        }
        answer
    }
}
