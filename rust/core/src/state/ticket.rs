//! Tickets: blocks promised to a sequence that does not have them yet, of the device to one that is
//! to run, of a tier below it to one that is to be parked. No slot moves for them.

use super::record::Ticket;
use super::{Answer, Sealing, State};
use crate::base::{Error, ParkedId, Result, TicketId, TicketIx, Tier};

impl State {
    /// Promises a number of blocks of a tier to the holder of the ticket.
    ///
    /// # Errors
    /// `Argument` for none, for a tier that is not there, or for a store; `TooLarge`, or
    /// `NoRoom` with the tier's numbers. Nothing is promised then.
    pub fn promise(&mut self, blocks: u64, tier: Tier) -> Result<TicketId> {
        if blocks == 0 {
            let help = "must be >= 1: for no blocks no ticket is needed";
            return Err(Error::argument("blocks", blocks, help));
        }
        if !self.tiers.has(tier) {
            let help = "a ticket is for the device, or for a tier below it that the cache has";
            return Err(Error::argument("tier", tier.name(), help));
        }
        if tier == Tier::REMOTE {
            let help = "a ticket is room that is sure, and a store may lose what is kept there";
            return Err(Error::argument("tier", tier.name(), help));
        }
        let need = self.fits(tier, blocks)?;
        let decision = self.decide(tier, blocks, 0);
        self.afford(decision)?;
        self.tiers[tier].promise(need);
        let ticket = self.tickets.insert(Ticket::of(tier, need));
        Ok(TicketId(self.tickets.id(ticket)))
    }

    /// Gives a ticket back: what it kept is promised no more.
    pub fn release_ticket(&mut self, id: TicketId) -> Result<()> {
        self.ticket(id)?;
        let Ticket { tier, blocks, .. } = self.tickets.remove(id.at());
        self.tiers[tier].release(blocks);
        Ok(())
    }

    /// Runs one begin or resume with the room that a ticket of the device keeps. On
    /// success the ticket is consumed, including any unused blocks. On `NoRoom` or `Soon` it stays
    /// valid.
    ///
    /// # Errors
    /// `Spent`, `Foreign`, `State` for a ticket of a lower tier, or what `admit` says.
    pub fn redeem(
        &mut self,
        id: TicketId,
        admit: impl FnOnce(&mut Self) -> Result<Answer>,
    ) -> Result<Answer> {
        let begun = |answer: &Answer| matches!(answer, Answer::Begun(_));
        self.with_room_of(id, |tier| tier == Tier::DEVICE, admit, begun)
    }

    /// Parks with the room that a ticket of a lower tier keeps: inside it that tier never lacks room.
    /// On success the ticket is consumed, including any unused blocks. Refused, it stays valid.
    ///
    /// # Errors
    /// `Spent`, `Foreign`, `State` for a ticket of the device, or as [`State::park`].
    pub fn redeem_parking(
        &mut self,
        id: TicketId,
        row: &Sealing<'_>,
        after: Option<u64>,
    ) -> Result<ParkedId> {
        let park = |state: &mut Self| state.park(row, after);
        self.with_room_of(id, |tier| tier > Tier::DEVICE, park, |_| true)
    }

    fn with_room_of<T>(
        &mut self,
        id: TicketId,
        fits: impl FnOnce(Tier) -> bool,
        act: impl FnOnce(&mut Self) -> Result<T>,
        spends: impl FnOnce(&T) -> bool,
    ) -> Result<T> {
        let ticket = self.ticket(id)?;
        let Ticket { tier, blocks, .. } = self.tickets[ticket];
        if !fits(tier) {
            let what = format!("ticket {} is for the {}", id.number(), tier.name());
            let help = match tier {
                Tier::DEVICE => "begin with it; park with a ticket for a tier below",
                _ => "park with it; begin with a ticket for the device",
            };
            return Err(Error::state(what, help));
        }
        self.tiers[tier].release(blocks);
        let answer = act(self);
        if answer.as_ref().is_ok_and(spends) {
            self.tickets.remove(ticket);
        } else {
            // Nothing of its tier was taken meanwhile: it is backed as it was.
            self.tiers[tier].promise(blocks);
            debug_assert!(self.tiers[tier].ledger().available() >= 0);
        }
        answer
    }

    /// Blocks of a tier that tickets keep.
    pub(super) fn kept_by_tickets(&self, tier: Tier) -> u32 {
        let tickets = self.tickets.iter().map(|(_, ticket)| ticket);
        tickets
            .filter(|ticket| ticket.tier == tier)
            .map(|ticket| ticket.blocks)
            .sum()
    }

    fn ticket(&self, id: TicketId) -> Result<TicketIx> {
        self.tickets.place_of(id.0, "ticket", |_| true)
    }

    /// Takes a ticket back whose handle was dropped; counted.
    pub(crate) fn leak_ticket(&mut self, id: TicketId) {
        if self.release_ticket(id).is_ok() {
            self.counters.leaked += 1;
        }
    }
}
