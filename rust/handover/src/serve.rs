//! The prefill side: a thread that lets readers in and ends leases, and one for each reader. It gives out what was
//! offered and nothing else: before each piece of a block the hold is asked, and behind the last one the generation.
//! INV-36a, INV-36b

use crate::frame::{BLOCKS_PER_FRAME, Frame, MOST_UNPROVEN, Told};
use crate::greeting::{Identity, Other, welcome};
use crate::link::{Link, Lost, Wake, wait_for};
use crate::offers::{Gone, OfferId, Offers, Taken};
use crate::places::{CHUNK, Pieces};
use crate::sending::{LOOK, Sending};
use crate::served::{Counts, Limits, Served, count};
use blockyard_disk::Lent;
use rustix::event::PollFlags;
use rustix::net::listen as listen_again;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Offers that a yard's side and a server share.
pub type SharedOffers = Arc<Mutex<Offers>>;

/// Bytes that a thread's stack has: there may be a thousand.
const STACK: usize = 256 << 10;

/// The memory of a rank: block `at` of it is slot `at`.
#[derive(Clone, Debug)]
pub struct RankMemory {
    /// Where the bytes are.
    pub memory: Arc<dyn Pieces>,
    /// Bytes of a block.
    pub bytes: u32,
    /// Slots that there are.
    pub slots: u32,
    /// Where all of it is, for a carrier that reads memory by itself; empty without one.
    pub said: Vec<u8>,
}

#[derive(Debug)]
struct Rank {
    memory: Lent<dyn Pieces>,
    slots: u32,
    said: Vec<u8>,
}

/// Connections that are open.
#[derive(Debug, Default)]
struct Open {
    streams: BTreeMap<u64, Arc<TcpStream>>,
    next: u64,
    /// Threads that have not ended.
    threads: usize,
}

#[derive(Debug)]
struct Inner {
    offers: SharedOffers,
    identity: Identity,
    ranks: Vec<Rank>,
    bytes: Vec<u32>,
    limits: Limits,
    open: Mutex<Open>,
    ended: Condvar,
    wake: Wake,
    closing: AtomicBool,
    /// Connections that have not proved the secret yet.
    unproved: AtomicUsize,
    counts: Counts,
}

/// A server of offers, with threads of its own.
#[derive(Debug)]
pub struct OfferServer {
    inner: Arc<Inner>,
    address: SocketAddr,
    process: u32,
}

/// Seconds of the clock that a server ends leases by; it is Python's `time.monotonic`.
pub fn monotonic() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

impl OfferServer {
    /// Listens, and begins to serve.
    ///
    /// # Errors
    /// The system refuses, as where the port is taken.
    pub fn open(
        offers: SharedOffers,
        listen: &str,
        identity: Identity,
        ranks: Vec<RankMemory>,
        limits: Limits,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        // As many as may come at once: who is not let in is told so, not left to try again.
        listen_again(
            &listener,
            i32::try_from(limits.connections).unwrap_or(i32::MAX),
        )?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            offers,
            identity,
            bytes: ranks.iter().map(|rank| rank.bytes).collect(),
            ranks: ranks
                .into_iter()
                .map(|rank| Rank {
                    memory: Lent::new(rank.memory),
                    slots: rank.slots,
                    said: rank.said,
                })
                .collect(),
            limits,
            open: Mutex::new(Open {
                threads: 1,
                ..Open::default()
            }),
            ended: Condvar::new(),
            wake: Wake::new()?,
            closing: AtomicBool::new(false),
            unproved: AtomicUsize::new(0),
            counts: Counts::default(),
        });
        let thread = thread::Builder::new().name("blockyard-offers".into());
        let own = Arc::clone(&inner);
        thread.spawn(move || {
            let _ends = Ending(&own);
            // Closed before the end is told: another may listen there at once.
            let listener = listener;
            own.accept(&listener);
        })?;
        Ok(Self {
            inner,
            address,
            process: process::id(),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has done, and what it is at.
    pub fn served(&self) -> Served {
        let counts = &self.inner.counts;
        let of = |one: &AtomicU64| one.load(Ordering::Relaxed);
        Served {
            connections: self.inner.open().streams.len() as u64,
            accepted: of(&counts.accepted),
            refused: of(&counts.refused),
            unproved: of(&counts.unproved),
            differing: of(&counts.differing),
            faulty: of(&counts.faulty),
            blocks: of(&counts.blocks),
            bytes: of(&counts.bytes),
            stale: of(&counts.stale),
            gone: of(&counts.gone),
        }
    }

    /// Whether it serves nothing more.
    pub fn is_closed(&self) -> bool {
        self.inner.closing.load(Ordering::SeqCst)
    }

    /// Ends all connections. When it returns, no byte of the memory is read any more.
    ///
    /// # Returns
    /// Whether all threads have ended within that patience; each of the others ends by its own deadline.
    pub fn close(&self, patience: Duration) -> bool {
        self.inner.closing.store(true, Ordering::SeqCst);
        self.inner.wake.wake();
        let open = self.inner.open();
        for stream in open.streams.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(open);
        for rank in &self.inner.ranks {
            rank.memory.leave();
        }
        let open = self.inner.open();
        let waited = self
            .inner
            .ended
            .wait_timeout_while(open, patience, |open| open.threads > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.threads == 0
    }
}

impl Drop for OfferServer {
    fn drop(&mut self) {
        // A forked child has no threads, and the connections are its parent's.
        if self.process == process::id() {
            self.close(Duration::ZERO);
        }
    }
}

/// Says that a thread has ended, whatever way.
struct Ending<'inner>(&'inner Inner);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.open().threads -= 1;
        self.0.ended.notify_all();
    }
}

impl Inner {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offers(&self) -> MutexGuard<'_, Offers> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Lets readers in, and ends leases in time, whoever else does.
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut look = Instant::now();
        while !self.is_closing() {
            let ready = wait_for([(listener, PollFlags::IN)], Some(&self.wake), look);
            if Instant::now() >= look {
                self.offers().sweep(monotonic());
                look = Instant::now() + LOOK;
            }
            if ready.is_err() {
                thread::sleep(LOOK);
            }
            while !self.is_closing() {
                match listener.accept() {
                    Ok((stream, _)) => self.admit(stream),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => {
                        // Descriptors are all in use, say: they come back when connections end.
                        thread::sleep(LOOK / 5);
                        break;
                    }
                }
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: TcpStream) {
        let mut open = self.open();
        let unproved = self.unproved.load(Ordering::SeqCst);
        if open.streams.len() >= self.limits.connections
            || unproved >= self.limits.unproved
            || self.is_closing()
        {
            count(&self.counts.refused);
            return;
        }
        let (number, stream) = (open.next, Arc::new(stream));
        open.next += 1;
        open.threads += 1;
        open.streams.insert(number, Arc::clone(&stream));
        drop(open);
        count(&self.counts.accepted);
        self.unproved.fetch_add(1, Ordering::SeqCst);
        let own = Arc::clone(self);
        let thread = thread::Builder::new()
            .name("blockyard-reader".into())
            .stack_size(STACK);
        let spawned = thread.spawn(move || {
            let _ends = Ending(&own);
            let _open = Connected(&own, number);
            own.note(&own.meet(stream));
        });
        if spawned.is_err() {
            self.unproved.fetch_sub(1, Ordering::SeqCst);
            self.open().streams.remove(&number);
            drop(Ending(self));
        }
    }

    fn note(&self, lost: &Lost) {
        match lost {
            Lost::Late | Lost::Wrong(_) | Lost::Unasked => count(&self.counts.faulty),
            Lost::Closed | Lost::Refused(_) | Lost::Io(_) => {}
        }
    }

    /// Serves a connection until it ends.
    fn meet(&self, stream: Arc<TcpStream>) -> Lost {
        let unproved = Unproved(&self.unproved, AtomicBool::new(true));
        let mut link = match Link::new(stream, MOST_UNPROVEN) {
            Ok(link) => link,
            Err(error) => return Lost::Io(error),
        };
        let until = Instant::now() + self.limits.patience;
        let met = welcome(&mut link, &self.identity, &self.bytes, until, || {
            unproved.end();
        });
        let other = match met {
            Ok(other) => other,
            Err(lost) => {
                if matches!(lost, Lost::Refused(_)) {
                    let was_proved = !unproved.1.load(Ordering::SeqCst);
                    let counts = &self.counts;
                    count(if was_proved {
                        &counts.differing
                    } else {
                        &counts.unproved
                    });
                }
                return lost;
            }
        };
        let mut reader = Reader {
            server: self,
            link,
            other,
            taken: BTreeSet::new(),
        };
        match reader.serve() {
            Ok(never) => match never {},
            Err(lost) => lost,
        }
    }
}

/// A connection that has not proved the secret.
struct Unproved<'count>(&'count AtomicUsize, AtomicBool);

impl Unproved<'_> {
    fn end(&self) {
        if self.1.swap(false, Ordering::SeqCst) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Unproved<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

struct Connected<'inner>(&'inner Inner, u64);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.open().streams.remove(&self.1);
    }
}

enum Never {}

/// A reader, in its own thread.
struct Reader<'server> {
    server: &'server Inner,
    link: Link,
    other: Other,
    /// Offers that it has taken, and of whose end it is told.
    taken: BTreeSet<OfferId>,
}

impl Reader<'_> {
    fn serve(&mut self) -> Result<Never, Lost> {
        let limits = self.server.limits;
        let mut until = Instant::now() + limits.idle;
        let mut in_part = false;
        loop {
            if let Some(frame) = self.link.frame()? {
                self.answer(&frame)?;
                until = Instant::now() + limits.idle;
                in_part = false;
                if self.link.outbox.len() > CHUNK {
                    self.link.flush(Instant::now() + limits.patience)?;
                }
                continue;
            }
            self.tell_ends();
            self.link.flush(Instant::now() + limits.patience)?;
            let now = Instant::now();
            if self.link.has_part() && !in_part {
                until = until.min(now + limits.patience);
                in_part = true;
            }
            if now >= until {
                // Who has nothing to say for long comes again: no fault of it.
                return Err(if in_part { Lost::Late } else { Lost::Closed });
            }
            if !self.link.fill()? {
                self.link.wait(false, None, until.min(now + LOOK))?;
            }
        }
    }

    /// Tells it which of its offers have ended.
    fn tell_ends(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let offers = self.server.offers();
        let ended: Vec<_> = self.taken.iter().filter(|id| !offers.is_open(id)).collect();
        let ended: Vec<_> = ended.into_iter().map(|id| (*id, offers.why(id))).collect();
        drop(offers);
        for (id, why) in ended {
            self.taken.remove(&id);
            self.link.say(&Frame::Gone { ask: 0, id, why });
        }
    }

    fn answer(&mut self, frame: &Frame) -> Result<(), Lost> {
        let now = monotonic();
        match *frame {
            Frame::Take {
                ask,
                id,
                boot,
                reader,
                first,
            } if boot == self.server.identity.boot => self.take(ask, id, reader, first as usize),
            Frame::Take { ask, id, .. } => self.say_gone(ask, id, Gone::Reset),
            Frame::Read {
                ask,
                id,
                reader,
                first,
                count,
                sums,
            } => {
                let wanted = first as usize..(first as usize).saturating_add(count as usize);
                return self.read(ask, (id, reader), wanted, sums);
            }
            Frame::Where => {
                let rank = &self.server.ranks[self.other.rank as usize];
                self.link.say(&Frame::Memory(rank.said.clone()));
            }
            Frame::Renew { id, reader } => self.server.offers().renew(&id, reader, now),
            Frame::Done { id, reader } => self.server.offers().done(&id, reader, now),
            Frame::Refuse { id, reader, .. } => self.server.offers().refuse(&id, reader, now),
            _ => return Err(Lost::Unasked),
        }
        Ok(())
    }

    fn say_gone(&mut self, ask: u32, id: OfferId, why: Gone) {
        count(&self.server.counts.gone);
        self.link.say(&Frame::Gone { ask, id, why });
    }

    fn take(&mut self, ask: u32, id: OfferId, reader: u64, first: usize) {
        let taken = self.server.offers().take(&id, reader, first, monotonic());
        match taken {
            Ok(taken) => {
                self.taken.insert(id);
                self.tell(ask, &taken);
            }
            Err(why) => self.say_gone(ask, id, why),
        }
    }

    fn tell(&mut self, ask: u32, taken: &Taken) {
        let Taken { held, first, lease } = taken;
        let all: Vec<Told> = (*first..held.keys.len())
            .map(|at| Told {
                key: held.keys[at],
                parent: held.parents[at],
                slot: held.slots[at],
                generation: held.generations[at],
            })
            .collect();
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        let mut more = all.len();
        let mut chunks = all.chunks(BLOCKS_PER_FRAME);
        loop {
            let blocks = chunks.next().unwrap_or_default().to_vec();
            more -= blocks.len();
            self.link.say(&Frame::Blocks {
                ask,
                more: more as u32,
                lease_ms,
                blocks,
            });
            if more == 0 {
                return;
            }
        }
    }

    fn read(
        &mut self,
        ask: u32,
        (id, reader): (OfferId, u64),
        wanted: Range<usize>,
        sums: bool,
    ) -> Result<(), Lost> {
        let rank = self.other.rank as usize;
        let sending = Sending {
            memory: &self.server.ranks[rank].memory,
            bytes: self.server.bytes[rank],
            limits: &self.server.limits,
            counts: &self.server.counts,
        };
        for at in wanted {
            let held = self.server.offers().read(&id, reader, monotonic());
            let held = held.and_then(|held| {
                let slots = self.server.ranks[rank].slots;
                match held.slots.get(at) {
                    None => Err(Gone::Ended),
                    Some(&slot) if slot >= slots => Err(Gone::Reset),
                    Some(_) => Ok(held),
                }
            });
            match held {
                Ok(held) if sums => sending.sum(&mut self.link, (ask, at), &held)?,
                Ok(held) => sending.send(&mut self.link, (ask, at), &held)?,
                Err(why) => {
                    self.say_gone(ask, id, why);
                    break;
                }
            }
        }
        Ok(())
    }
}
