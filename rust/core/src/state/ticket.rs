//! Tickets: device blocks promised to somebody who does not run yet. No slot moves for them.

use super::{Answer, State};
use crate::arena::Found;
use crate::error::{Error, Result};
use crate::id::TicketId;
use crate::record::Ticket;

impl State {
    /// Promises so many device blocks to whoever has the ticket.
    ///
    /// # Errors
    /// `Argument` for none, `TooLarge`, or `NoRoom` with the numbers; nothing is promised then.
    pub fn promise(&mut self, blocks: u64) -> Result<TicketId> {
        if blocks == 0 {
            let help = "a ticket is for one block or more; who needs none needs no ticket";
            return Err(Error::argument("blocks", blocks, help));
        }
        let need = self.fits_device(blocks)?;
        if !self.tiers[0].ledger.affords(blocks) {
            self.counters.no_room += 1;
            return Err(self.no_room(0, blocks, 0));
        }
        self.tiers[0].ledger.promise(need);
        let ticket = self.tickets.insert(Ticket::of(need));
        Ok(TicketId(self.tickets.id(ticket)))
    }

    /// Gives a ticket back: what it kept is promised no more.
    pub fn release_ticket(&mut self, id: TicketId) -> Result<()> {
        let ticket = self.ticket(id)?;
        let blocks = self.tickets.remove(ticket).blocks;
        self.tiers[0].ledger.release(blocks);
        Ok(())
    }

    /// Runs one begin or resume with the room that a ticket keeps. Whom it admits has spent the
    /// ticket, also what of it was not needed; refused, or told to wait, he has it still.
    pub fn redeem(
        &mut self,
        id: TicketId,
        admit: impl FnOnce(&mut Self) -> Result<Answer>,
    ) -> Result<Answer> {
        let ticket = self.ticket(id)?;
        let blocks = self.tickets[ticket].blocks;
        self.tiers[0].ledger.release(blocks);
        let answer = admit(self);
        if let Ok(Answer::Begun(_)) = answer {
            self.tickets.remove(ticket);
        } else {
            // Nothing was taken meanwhile: it is backed as it was.
            self.tiers[0].ledger.promise(blocks);
        }
        answer
    }

    fn ticket(&self, id: TicketId) -> Result<u32> {
        match self.tickets.find(id.0) {
            Found::Live => Ok(id.0.index),
            Found::Never => Err(Error::Foreign {
                number: id.number(),
            }),
            Found::Ended => Err(Error::Spent {
                what: "ticket",
                number: id.number(),
            }),
        }
    }

    /// Takes a ticket back whose handle was dropped; counted.
    pub(crate) fn leak_ticket(&mut self, id: TicketId) {
        if self.release_ticket(id).is_ok() {
            self.counters.leaked += 1;
        }
    }
}
