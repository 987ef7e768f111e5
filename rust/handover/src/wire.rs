//! A connection of the decode side: what was asked on it, and what comes. Bytes are received into the slots of a flight
//! and nowhere else; each call of the system is made while the memory is lent, and what is waited for is waited for
//! outside of that. INV-36c, INV-35a

use crate::desk::{Ask, Desk, Take, Work};
use crate::flight::{Flying, Known, Wanted};
use crate::frame::{BLOCK, Frame, SUM, Told};
use crate::greeting::Identity;
use crate::landed::Bell;
use crate::link::{Link, Lost, Wake};
use crate::offers::{Gone, MOST_BLOCKS, OfferId};
use crate::places::{CHUNK, add};
use blockyard_disk::Key;
use blockyard_store::Short;
use std::collections::{HashSet, VecDeque};
use std::io::IoSliceMut;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use twox_hash::XxHash3_128;

/// Bytes that are asked for ahead, and of one `read`. One block is asked for in any case.
const WINDOW: usize = 8 << 20;
const ASKED: usize = 4 << 20;

/// Questions of takes that are out at once.
const MOST_ASKED: usize = 64;

/// How often the thread looks at what nobody wakes it for.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// Bytes a second that the other side sends at least.
const SLOWEST: u32 = 1 << 20;

/// How a peer works.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Where the other side listens: `host:port`.
    pub address: String,
    /// Who this side is.
    pub identity: Identity,
    /// Whose bytes it wants.
    pub rank: u32,
    /// Bytes of a block.
    pub bytes: u32,
    /// How long the other side may take for a meeting, an answer, or a block that is not long.
    pub timeout: Duration,
    /// Failures in a row after which it is left alone.
    pub failures: u32,
    /// For how long at first; twice as long after each try that fails.
    pub rest: Duration,
    /// What brings the bytes in place of this connection, if anything does; [`crate::Peer::land`] takes them.
    pub carrier: Option<String>,
    /// What it rings; several peers may have one.
    pub bell: Bell,
}

/// What the thread of a peer and its callers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: PeerOptions,
    pub(crate) desk: Mutex<Desk>,
    pub(crate) landed: Condvar,
    pub(crate) wake: Wake,
    /// Wakes the carrier that brings the bytes, where it is another one.
    pub(crate) carrier: Wake,
}

impl Shared {
    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        let mut desk = self.desk.lock().unwrap_or_else(PoisonError::into_inner);
        desk.catch_up();
        desk
    }
}

/// What was asked, in the order of the answers.
#[derive(Debug)]
pub(crate) enum Asked {
    Take {
        ask: u32,
        take: Box<Take>,
        told: Vec<Told>,
    },
    Read {
        ask: u32,
        number: u64,
        /// The next block that comes, and those behind it.
        row: usize,
        left: usize,
        /// Where the next one is in the offer.
        at: u32,
    },
}

/// A block that comes.
pub(crate) struct Body {
    pub(crate) number: u64,
    row: usize,
    /// Where it goes; `None` where nobody wants it any more.
    flying: Option<Arc<Flying>>,
    wanted: Option<Wanted>,
    done: usize,
    sum: XxHash3_128,
}

/// A connection, and what was asked on it.
pub(crate) struct Wire {
    pub(crate) link: Link,
    pub(crate) boot: u32,
    pub(crate) asked: VecDeque<Asked>,
    pub(crate) next: u32,
    /// Bytes that were asked for and have not come.
    pub(crate) ahead: usize,
    pub(crate) body: Option<Box<Body>>,
    /// Until when something is to come, where something was asked.
    pub(crate) until: Option<Instant>,
}

impl Wire {
    pub(crate) fn is_asked(&self) -> bool {
        !self.asked.is_empty() || self.body.is_some()
    }

    /// Says what there is to say, reads what has come, and waits for more.
    pub(crate) fn work(&mut self, shared: &Shared) -> Result<(), Lost> {
        let next = self.say(shared);
        if self.link.has_to_send() {
            self.link.send(&[])?;
        }
        let mut idle = true;
        // So much at a time, and then what is new is said.
        for _ in 0..64 {
            if !self.read(shared)? {
                break;
            }
            idle = false;
        }
        let now = Instant::now();
        if !self.is_asked() {
            self.until = None;
        } else if *self.until.get_or_insert(now + shared.options.timeout) <= now {
            return Err(Lost::Late);
        }
        if idle {
            let mut until = now + LOOK;
            for other in [self.until, next].into_iter().flatten() {
                until = until.min(other);
            }
            let sends = self.link.has_to_send();
            self.link.wait(sends, Some(&shared.wake), until)?;
        }
        Ok(())
    }

    /// Asks, as far ahead as is allowed; returns when leases are to be renewed next.
    fn say(&mut self, shared: &Shared) -> Option<Instant> {
        let mut desk = shared.desk();
        let bytes = shared.options.bytes as usize;
        let (due, next) = desk.due();
        for (id, reader) in due {
            self.link.say(&Frame::Renew { id, reader });
        }
        if self.ahead > WINDOW / 2 {
            // Few questions of many blocks, not one behind each that comes.
            return next;
        }
        while self.asked.len() < MOST_ASKED
            && (self.ahead == 0 || self.ahead + bytes <= WINDOW)
            && let Some(work) = desk.work.front()
        {
            if let Work::Fetch(number) = *work {
                let most = (ASKED.min(WINDOW.saturating_sub(self.ahead)) / bytes).max(1);
                match desk.ask(number, most) {
                    Some(ask) => self.ask(&ask, bytes, shared.options.carrier.is_some()),
                    None => drop(desk.work.pop_front()),
                }
                continue;
            }
            match desk.work.pop_front() {
                Some(Work::Take(take)) => self.take(take),
                Some(Work::Done { id, reader }) => {
                    desk.said(id, reader);
                    self.link.say(&Frame::Done { id, reader });
                }
                Some(Work::Refuse { id, reader, why }) => {
                    desk.said(id, reader);
                    self.link.say(&Frame::Refuse { id, reader, why });
                }
                _ => {}
            }
        }
        next
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        // 0 is that of what nobody has asked.
        self.next = self.next.checked_add(1).unwrap_or(1);
        number
    }

    fn ask(&mut self, ask: &Ask, bytes: usize, sums: bool) {
        let number = self.number();
        self.link.say(&Frame::Read {
            ask: number,
            id: ask.first.id,
            reader: ask.first.reader,
            first: ask.first.at,
            count: ask.count as u32,
            sums,
        });
        self.ahead += ask.count * bytes;
        self.asked.push_back(Asked::Read {
            ask: number,
            number: ask.number,
            row: ask.row,
            left: ask.count,
            at: ask.first.at,
        });
    }

    fn take(&mut self, take: Box<Take>) {
        let ask = self.number();
        self.link.say(&Frame::Take {
            ask,
            id: take.id,
            boot: take.boot,
            reader: take.reader,
            first: take.first as u32,
        });
        let told = Vec::new();
        self.asked.push_back(Asked::Take { ask, take, told });
    }

    /// Takes a part of what has come; returns whether there was anything.
    fn read(&mut self, shared: &Shared) -> Result<bool, Lost> {
        let bytes = shared.options.bytes as usize;
        if let Some(body) = &mut self.body
            && body.done < bytes
        {
            return receive(&mut self.link, body, bytes);
        }
        match self.link.frame()? {
            Some(frame) => {
                self.heard(shared, frame)?;
                Ok(true)
            }
            None => self.link.fill(),
        }
    }

    fn heard(&mut self, shared: &Shared, frame: Frame) -> Result<(), Lost> {
        let options = &shared.options;
        let result = match frame {
            Frame::Sum { sum, generation } => self.summed(shared, sum, generation),
            // Between a block and its sum comes nothing.
            _ if self.body.is_some() => Err(Lost::Unasked),
            Frame::Block {
                ask,
                at,
                slot,
                length,
                generation,
            } => {
                let due = options.carrier.as_ref().map_or(options.bytes, |_| 0);
                if length != due {
                    return Err(Lost::Refused(format!(
                        "it has sent a block of {length} bytes, and they have {due} here"
                    )));
                }
                self.begins(shared, (ask, at), slot, generation)
            }
            Frame::Blocks {
                ask,
                more,
                lease_ms,
                blocks,
            } => self.told(shared, ask, more as usize, lease_ms, blocks),
            Frame::Gone { ask: 0, id, .. } => {
                shared.desk().gone(&id);
                return Ok(());
            }
            Frame::Gone { ask, id, why } => self.gone(shared, ask, &id, why),
            _ => Err(Lost::Unasked),
        };
        // What comes next has its own time.
        let seconds = u64::from(options.bytes / SLOWEST);
        self.until = Some(Instant::now() + options.timeout + Duration::from_secs(seconds));
        result
    }

    /// A block begins to come.
    fn begins(
        &mut self,
        shared: &Shared,
        place: (u32, u32),
        slot: u32,
        generation: u64,
    ) -> Result<(), Lost> {
        let Some(Asked::Read {
            ask,
            number,
            row,
            left,
            at,
        }) = self.asked.front_mut()
        else {
            return Err(Lost::Unasked);
        };
        if place != (*ask, *at) {
            return Err(Lost::Unasked);
        }
        let (number, this) = (*number, *row);
        *row += 1;
        *at += 1;
        *left -= 1;
        if *left == 0 {
            self.asked.pop_front();
        }
        let mut desk = shared.desk();
        let mut flying = desk.flying(number);
        let wanted = flying.as_ref().map(|flying| flying.wanted[this]);
        if let Some(wanted) = wanted
            && (wanted.slot, wanted.generation) != (slot, generation)
        {
            desk.counts.stale += 1;
            desk.came(number, this, Err(Short::Missing));
            shared.landed.notify_all();
            flying = None;
        }
        self.body = Some(Box::new(Body {
            number,
            row: this,
            flying,
            wanted,
            done: shared
                .options
                .carrier
                .as_ref()
                .map_or(0, |_| shared.options.bytes as usize),
            sum: XxHash3_128::new(),
        }));
        Ok(())
    }

    /// A block has come: it is good only where all that was said of it agrees. INV-35a
    fn summed(&mut self, shared: &Shared, sum: u128, generation: u64) -> Result<(), Lost> {
        let body = self.body.take().ok_or(Lost::Unasked)?;
        self.ahead = self.ahead.saturating_sub(shared.options.bytes as usize);
        let (Some(_), Some(wanted)) = (&body.flying, body.wanted) else {
            return Ok(());
        };
        let mut desk = shared.desk();
        let how = if generation != wanted.generation {
            desk.counts.stale += 1;
            Err(Short::Missing)
        } else if shared.options.carrier.is_some() {
            desk.summed(body.number, body.row, sum);
            drop(desk);
            shared.carrier.wake();
            return Ok(());
        } else if sum != body.sum.finish_128() {
            desk.counts.corrupt += 1;
            Err(Short::Corrupt)
        } else {
            Ok(())
        };
        if desk.flies(body.number) && desk.came(body.number, body.row, how) {
            drop(desk);
            shared.landed.notify_all();
        }
        Ok(())
    }

    /// Something that was asked for is not to be had.
    fn gone(&mut self, shared: &Shared, asked: u32, id: &OfferId, why: Gone) -> Result<(), Lost> {
        let mut desk = shared.desk();
        match self.asked.pop_front() {
            Some(Asked::Take { ask, take, .. }) if ask == asked && take.id == *id => {
                desk.counts.gone += 1;
                desk.answer(take.number, 0, said(why));
            }
            Some(Asked::Read {
                ask,
                number,
                row,
                left,
                ..
            }) if ask == asked => {
                self.ahead = self
                    .ahead
                    .saturating_sub(left * shared.options.bytes as usize);
                desk.counts.missing += 1;
                desk.gone(id);
                desk.came(number, row, Err(Short::Missing));
                drop(desk);
                shared.landed.notify_all();
            }
            Some(other) => {
                self.asked.push_front(other);
                return Err(Lost::Unasked);
            }
            None => return Err(Lost::Unasked),
        }
        Ok(())
    }

    /// Blocks of an offer: the ones of this request's own keys are known from now on.
    fn told(
        &mut self,
        shared: &Shared,
        asked: u32,
        more: usize,
        lease_ms: u32,
        blocks: Vec<Told>,
    ) -> Result<(), Lost> {
        let Some(Asked::Take { ask, told, .. }) = self.asked.front_mut() else {
            return Err(Lost::Unasked);
        };
        if *ask != asked || told.len() + blocks.len() + more > MOST_BLOCKS {
            return Err(Lost::Unasked);
        }
        if blocks.is_empty() && more > 0 {
            return Err(Lost::Unasked);
        }
        told.extend(blocks);
        if more > 0 {
            return Ok(());
        }
        let Some(Asked::Take { take, told, .. }) = self.asked.pop_front() else {
            return Err(Lost::Unasked);
        };
        let refused = learn(&mut shared.desk(), self.boot, &take, &told, lease_ms);
        if let Some(why) = refused {
            let (id, reader) = (take.id, take.reader);
            self.link.say(&Frame::Refuse { id, reader, why });
        }
        Ok(())
    }
}

/// Takes what was told of an offer; returns why it is refused, where it is.
fn learn(desk: &mut Desk, boot: u32, take: &Take, told: &[Told], lease_ms: u32) -> Option<String> {
    desk.note(true);
    if let Some(why) = wrong(take, told) {
        desk.answer(take.number, 0, format!("wrong: {why}"));
        return Some(why);
    }
    let wanted = take.keys.iter().skip(take.first).zip(told);
    let count = wanted.take_while(|(key, told)| **key == told.key).count();
    let told = &told[..count];
    if !desk.is_wanted(take.number) {
        desk.answer(take.number, 0, "given up");
        return Some("nobody waits for it any more".to_owned());
    }
    if told.is_empty() {
        desk.answer(take.number, 0, "other keys");
        return Some("it has none of this request's keys".to_owned());
    }
    desk.counts.taken += 1;
    desk.answer(take.number, take.first + count, "");
    let known = Known {
        boot,
        first: take.first,
        keys: told.iter().map(|told| told.key).collect(),
        slots: told.iter().map(|told| told.slot).collect(),
        generations: told.iter().map(|told| told.generation).collect(),
    };
    let every = Duration::from_millis((lease_ms / 3).max(10).into());
    desk.learn(take.id, take.reader, known, every);
    None
}

fn said(why: Gone) -> &'static str {
    match why {
        Gone::Ended => "ended",
        Gone::Cleared => "cleared",
        Gone::Reset => "reset",
        Gone::NoRoom => "no room",
        Gone::Soon => "soon",
    }
}

/// Why what was told is no path of blocks.
fn wrong(take: &Take, told: &[Told]) -> Option<String> {
    if told.is_empty() && take.first == 0 {
        return Some("an offer of 0 blocks".to_owned());
    }
    let mut seen = HashSet::with_capacity(told.len());
    let mut before: Option<&Key> = None;
    for (at, block) in told.iter().enumerate() {
        if before.is_some_and(|before| *before != block.parent) {
            return Some(format!("block {at} does not follow the one before it"));
        }
        if !seen.insert(block.key) || seen.contains(&block.parent) && before.is_none() {
            return Some(format!("block {at} has the key of an earlier one"));
        }
        before = Some(&block.key);
    }
    None
}

/// Receives bytes of a block, while its memory is lent, or nowhere; returns whether there were any.
fn receive(link: &mut Link, body: &mut Body, bytes: usize) -> Result<bool, Lost> {
    let from = body.done;
    let left = bytes - from;
    let (sum, mut came) = (&mut body.sum, Ok(0));
    let touched = body.flying.as_ref().and_then(|flying| {
        flying.memory.touch(|memory| {
            memory.target(body.row, from, CHUNK.min(left), &mut |pieces, room| {
                came = if pieces.is_empty() {
                    drain(link, sum, room, left)
                } else {
                    fill(link, sum, pieces, left)
                };
            });
        })
    });
    if touched.is_none() {
        // Nobody wants it any more.
        body.flying = None;
        came = drain(link, sum, CHUNK.min(left), left);
    }
    let came = came?;
    body.done += came;
    Ok(came > 0)
}

/// Fills pieces with what has come, and sums it.
fn fill(
    link: &mut Link,
    sum: &mut XxHash3_128,
    pieces: &mut [IoSliceMut<'_>],
    left: usize,
) -> Result<usize, Lost> {
    let mut ahead = 0;
    for piece in pieces.iter_mut() {
        let got = link.take_ahead(piece);
        ahead += got;
        if got < piece.len() {
            break;
        }
    }
    let came = if ahead > 0 {
        ahead
    } else {
        let room: usize = pieces.iter().map(|piece| piece.len()).sum();
        // What is known to follow a block that is not the last one is read with it.
        let beyond = if room == left { SUM + BLOCK } else { 0 };
        link.receive(pieces, beyond)?
    };
    add(sum, pieces, came);
    Ok(came)
}

/// The same for bytes that go nowhere.
fn drain(link: &mut Link, sum: &mut XxHash3_128, room: usize, left: usize) -> Result<usize, Lost> {
    let mut sink = [0; 16 << 10];
    let room = room.min(sink.len());
    fill(link, sum, &mut [IoSliceMut::new(&mut sink[..room])], left)
}
